"""Casting stored columns to the types of the split, as `datasets` casts a file whose types are not those of the first.

dictionary of strings           string
int32                           int64
int64                           int32           an error if a value does not fit
lists, structs                  the same for their items; fields by name, a missing one is null
"""

from __future__ import annotations

import pyarrow as pa

from pipelines.prepare.sources.parquet import nested
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import first_line

__all__ = ["cast", "is_list", "require_castable"]

_ELSEWHERE = "the first file or the dataset card has it"


def require_castable(schema: pa.Schema, types: pa.Schema, *, where: str) -> None:
    """Raise SourceError, which names the file `where`, if columns of `schema` cannot be read as `types`."""
    for field in types:
        count = len(schema.get_all_field_indices(field.name))
        column = nested.field_of(schema, field.name)
        if column is None:
            raise SourceError(
                f"{where}: {'several columns' if count else 'no column'} {field.name!r}, expected one, as {_ELSEWHERE}",
                remedy="give all files the same columns, or name only some of them by a glob",
            )
        _cast_column(pa.schema([column]).empty_table().column(0), field, where=where)


def cast(batch: pa.RecordBatch, types: pa.Schema, *, where: str) -> pa.RecordBatch:
    """Return the batch with the columns of `types`, in their order. Raises: SourceError, naming `where`."""
    if batch.schema.equals(types):
        return batch
    columns = [_cast_column(batch.column(field.name), field, where=where) for field in types]
    return pa.RecordBatch.from_arrays(columns, schema=types)


def _cast_column(column: pa.Array | pa.ChunkedArray, field: pa.Field, *, where: str) -> pa.Array | pa.ChunkedArray:
    if column.type == field.type:
        return column
    from datasets.table import table_cast

    try:
        table = table_cast(pa.table({field.name: column}), pa.schema([field]))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SourceError(
            f"{where}: column {field.name!r} holds {column.type}, expected {field.type}, as {_ELSEWHERE} "
            f"({first_line(error)})",
            remedy="convert all files to the same types, or name only some of them by a glob",
        ) from error
    return table.combine_chunks().to_batches()[0].column(0) if len(table) else table.column(0)


def is_list(kind: pa.DataType) -> bool:
    """Return whether values are lists, of fixed or variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
