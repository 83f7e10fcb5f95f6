"""The rows of a split as the user's functions make them, batch by batch.

    as stored    0 'Good.<br />'   1 'ok'   2 'Fine.<br />'
    changed      0 'Good. '        1 null   2 'Fine. '           and row 1 is marked as filtered

Rows keep their numbers. All columns are read, since a function may look at any.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources import user_functions
from pipelines.prepare.sources.user_functions import UserFunction
from tfrecord_io.errors import SourceError

__all__ = ["RowChanges", "conform", "place_of"]


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
