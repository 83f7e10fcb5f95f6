"""How the rows of a split become what a job sees: read where they lie, then taken through the user's own steps.

    pieces ──► rows as stored, with the types of the split ──► the user's functions ──► hold-out ──► batches

    as stored    0 'Good.<br />'   1 'ok'   2 'Fine.<br />'
    changed      0 'Good. '        1 null   2 'Fine. '           and row 1 is marked as filtered

Rows keep their numbers. Functions are given all columns, since they may look at any. A `RowReader` is small, and
travels to workers in the job; the launcher's `SplitSource` adds where all rows lie.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.formats.features import Columns
from pipelines.prepare.sources.formats.groups import Groups, Pieces
from pipelines.prepare.sources.rows import stored_rows, user_functions
from pipelines.prepare.sources.rows.left_out import CODES, marked
from pipelines.prepare.sources.rows.sides import Side
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import SourceError
from tfrecord_io.format.ledger import FILTERED

__all__ = ["RowChanges", "RowReader", "Source", "SplitSource", "conform", "place_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowChanges:
    """Functions that give columns of the types in `schema`, and leave about a `share` of the rows, over 0, up to 1."""

    functions: tuple[UserFunction, ...]
    schema: pa.Schema
    share: float

    def apply(self, batch: pa.RecordBatch, columns: Sequence[str], *, place: str) -> tuple[pa.RecordBatch, np.ndarray]:
        """The `columns` of the rows behind the functions, and which of them a filter has left out, bool [n]. `place`
        names the rows.

        Raises: SourceError if a function fails, or gives a column with another type than `schema` has.
        """
        table, kept = user_functions.run(self.functions, pa.Table.from_batches([batch]), place=place)
        wanted = pa.schema([self.schema.field(name) for name in columns])
        filtered = np.ones(batch.num_rows, bool)
        filtered[kept] = False
        if not filtered.any():
            return conform(table, wanted, place=place), filtered
        # Row i of the batch is row [number of rows kept before it] of what is left.
        indices = pa.array(np.cumsum(~filtered) - 1, mask=filtered)
        left = conform(table, wanted, place=place) if len(kept) else wanted.empty_table().combine_chunks()
        arrays = [_one(left.column(name)).take(indices) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=wanted), filtered


def conform(table: pa.Table, schema: pa.Schema, *, place: str) -> pa.RecordBatch:
    """The columns of `schema` in one batch. Where there was nothing but nulls to tell a type from, it is that of
    `schema`; a dictionary becomes its values. Raises: SourceError if a column is missing, or has another type.
    """
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            raise SourceError(
                f"the user's functions give no column {field.name!r} for {place}, but did for others",
                remedy="return the same columns for whatever rows there are",
            )
        column = table.column(field.name)
        if column.type != field.type:
            column = _cast(column, field, place=place)
        arrays.append(_one(column))
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def place_of(first: int, count: int, *, split: str) -> str:
    """Rows in words."""
    return f"rows {first} to {first + count - 1} of split {split!r}" if count > 1 else f"row {first} of split {split!r}"


def _cast(column: pa.ChunkedArray, field: pa.Field, *, place: str) -> pa.ChunkedArray:
    if "null" in str(column.type) or pa.types.is_dictionary(column.type):  # null, list<item: null>
        # What cannot be cast is refused below, as any other type is.
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return column.cast(field.type)
    raise SourceError(
        f"the user's functions give column {field.name!r} as {column.type} for {place}, and as {field.type} for others",
        remedy="say which type is meant, as in pyarrow.array(values, pyarrow.string())",
    )


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # Of one chunk some versions of pyarrow give a chunked array again.
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reads rows of one split. `split` is its name in messages, `types` the columns of the source as they are stored.

    Rows go through the user's `changes`, and those that are not on this `side` of a hold-out are marked (see
    `left_out`). `addresses` gives the address with credentials of a file by the one without; it is filled in the
    launcher's own process only, and never leaves it.
    """

    split: str
    types: pa.Schema
    changes: RowChanges | None = None
    side: Side | None = None
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The columns that `read` can give."""
        return self.types if self.changes is None else self.changes.schema

    @property
    def share(self) -> float:
        """About how many of the rows are not left out on purpose, over 0 and up to 1."""
        return (self.changes.share if self.changes else 1.0) * (self.side.share if self.side else 1.0)

    def read(self, pieces: Pieces, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, record batch with `columns`), in the order of the pieces. Rows that are left
        out on purpose keep their numbers, and are marked.

        Raises: SourceError if a file is gone, has changed since the plan, or cannot be decoded, and if one of the
            user's functions fails.
        """
        hashed = self.side.columns if self.side else ()
        wanted = list(dict.fromkeys([*columns, *hashed]))
        stored = wanted if self.changes is None else self.types.names
        for first, batch in stored_rows.read(pieces, stored, types=self.types, addresses=self.addresses):
            yield first, self._marked(first, batch, columns, wanted)

    def _marked(
        self, first: int, batch: pa.RecordBatch, columns: Sequence[str], wanted: Sequence[str]
    ) -> pa.RecordBatch:
        if self.changes is None and self.side is None:
            return batch
        codes = np.zeros(batch.num_rows, np.int8)
        if self.changes is not None:
            place = place_of(first, batch.num_rows, split=self.split)
            batch, filtered = self.changes.apply(batch, wanted, place=place)
            codes[filtered] = CODES[FILTERED]
        if self.side is not None:
            codes = np.where(codes == 0, self.side.codes(batch), codes)
        return marked(batch.select(list(columns)), codes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSource:
    """The rows of one split: [start, stop) ranges of the rows of the source's split `source_split`, in the order asked
    for. Rows have the numbers that they have there.
    """

    name: str
    source_split: str
    groups: Groups
    ranges: tuple[tuple[int, int], ...]
    reader: RowReader

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def read(
        self, row_ranges: Sequence[tuple[int, int]], columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, record batch) for the [start, stop) row ranges, in their order."""
        return self.reader.read(self.groups.pieces(row_ranges), columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset with its rows. `splits` are those of the output; `all_splits` are the source's own, whole, and
    `columns` what is in each of these. `identity` is what the fingerprint and the manifest say of it.
    """

    splits: Mapping[str, SplitSource]
    all_splits: Mapping[str, SplitSource]
    columns: Mapping[str, Columns]
    identity: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What its files are, or `hub`."""
        return str(self.identity["kind"])

    def columns_of(self, split: SplitSource) -> Columns:
        """The columns of one of its splits."""
        return self.columns[split.source_split]
