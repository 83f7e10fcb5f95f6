"""The rows of a split as the user's steps make them: read like `ArrowFiles`, so that nothing else needs to know.

    files      0 'Good.<br />'   1 'ok'   2 'Fine.<br />'
    read       0 'Good. '        1 null   2 'Fine. '           and a mark [False, True, False]

Rows keep their numbers. A row that a filter leaves out stays as one of nulls, with a mark in a column of its own, which
is there only if a batch has such rows: `columns.validate` gives it the reason "filtered".

All columns are read, since a function may look at any, in parts of about 4 MB.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.prepare import steps
from pipelines.prepare.steps import Step
from tfrecord_io.errors import SourceError

if TYPE_CHECKING:
    from pipelines.prepare.arrow_files import ArrowFiles
    from pipelines.prepare.staged_files import StagedFiles

__all__ = ["MARK", "SteppedFiles", "conform", "marked", "place_of", "without_mark"]

# No column of a source is called so.
MARK = "\0filtered"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SteppedFiles:
    """All `columns` of `files`, taken through `steps`, which give columns of the types in `schema`, and leave about a
    `share` of the rows, over 0 and up to 1.
    """

    files: ArrowFiles | StagedFiles
    split: str
    columns: tuple[str, ...]
    steps: tuple[Step, ...]
    schema: pa.Schema
    share: float

    def over(self, files: ArrowFiles | StagedFiles | SteppedFiles) -> SteppedFiles:
        """The same of a copy of the files. Raises: ValueError if the copy has taken steps already."""
        if isinstance(files, SteppedFiles):
            raise ValueError("steps are taken once")
        return dataclasses.replace(self, files=files)

    def read(
        self,
        segments: Sequence[tuple[int, int]],
        columns: Sequence[str],
        *,
        unread: Collection[str] = (),
        in_parts: bool = False,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch) for the given ascending [start, stop) row ranges. `unread` and
        `in_parts` change nothing: functions need the values, and batches are small.

        Raises: SourceError if a step fails, or gives a column with another type than `schema` has.
        """
        for first, batch in self.files.read(segments, self.columns, in_parts=True):
            yield first, self._stepped(first, batch, columns)

    def _stepped(self, first: int, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        place = place_of(first, batch.num_rows, split=self.split)
        table, kept = steps.run(self.steps, pa.Table.from_batches([batch]), place=place)
        wanted = pa.schema([self.schema.field(name) for name in columns])
        if len(kept) == batch.num_rows:
            return conform(table, wanted, place=place)
        filtered = np.ones(batch.num_rows, bool)
        filtered[kept] = False
        # Row i of the batch is row [number of rows kept before it] of what is left.
        indices = pa.array(np.cumsum(~filtered) - 1, mask=filtered)
        left = conform(table, wanted, place=place) if len(kept) else wanted.empty_table().combine_chunks()
        arrays = [_one(left.column(name)).take(indices) for name in columns]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(filtered)], names=[*columns, MARK])


def conform(table: pa.Table, schema: pa.Schema, *, place: str) -> pa.RecordBatch:
    """The columns of `schema` in one batch. Where there was nothing but nulls to tell a type from, it is that of
    `schema`; a dictionary becomes its values. Raises: SourceError if a column is missing, or has another type.
    """
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            raise SourceError(
                f"the steps give no column {field.name!r} for {place}, but did for others",
                remedy="return the same columns for whatever rows there are",
            )
        column = table.column(field.name)
        if column.type != field.type:
            column = _cast(column, field, place=place)
        arrays.append(_one(column))
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def marked(batch: pa.RecordBatch) -> np.ndarray | None:
    """Which rows a filter has left out, bool [n]; None if none."""
    index = batch.schema.get_field_index(MARK)
    return None if index < 0 else np.asarray(batch.column(index).to_numpy(zero_copy_only=False), dtype=bool)


def without_mark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of the source."""
    return batch.select([name for name in batch.schema.names if name != MARK])


def place_of(first: int, count: int, *, split: str) -> str:
    """Rows in words."""
    return f"rows {first} to {first + count - 1} of split {split!r}" if count > 1 else f"row {first} of split {split!r}"


def _cast(column: pa.ChunkedArray, field: pa.Field, *, place: str) -> pa.ChunkedArray:
    if "null" in str(column.type) or pa.types.is_dictionary(column.type):  # null, list<item: null>
        # What cannot be cast is refused below, as any other type is.
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return column.cast(field.type)
    raise SourceError(
        f"the steps give column {field.name!r} as {column.type} for {place}, and as {field.type} for others",
        remedy="say which type is meant, as in pyarrow.array(values, pyarrow.string())",
    )


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # Of one chunk some versions of pyarrow give a chunked array again.
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
