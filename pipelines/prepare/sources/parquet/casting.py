"""Casting stored columns to the types of the split, refusing casts that would change a value.

dictionary of strings           string
int32                           int64          the other way round if all values fit
large_string, string_view       string
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
        if not _keeps_values(column.type, field.type):
            raise _type_error(column.type, field, where=where)


def cast(batch: pa.RecordBatch, types: pa.Schema, *, where: str) -> pa.RecordBatch:
    """Return the batch with the columns of `types`, in their order. Raises: SourceError, naming `where`."""
    if batch.schema.equals(types):
        return batch
    columns = [_cast_column(batch.column(field.name), field, where=where) for field in types]
    return pa.RecordBatch.from_arrays(columns, schema=types)


def _cast_column(column: pa.Array, field: pa.Field, *, where: str) -> pa.Array:
    if column.type == field.type:
        return column
    if not _keeps_values(column.type, field.type):
        raise _type_error(column.type, field, where=where)
    try:
        return _cast_array(column, field.type)
    except (pa.ArrowException, ValueError) as error:
        raise _type_error(column.type, field, where=where, cause=f" ({first_line(error)})") from error


def _type_error(held: pa.DataType, field: pa.Field, *, where: str, cause: str = "") -> SourceError:
    return SourceError(
        f"{where}: column {field.name!r} holds {held}, expected {field.type}, as {_ELSEWHERE}{cause}",
        remedy="convert all files to the same types, or name only some of them by a glob",
    )


def _cast_array(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _cast_array(column, kind.storage_type))
    if isinstance(column, pa.ExtensionArray):
        return _cast_array(column.storage, kind)
    return column if column.type == kind else column.cast(kind)


def _keeps_values(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a safe cast either keeps all values or raises."""
    held, wanted = _storage_type(held), _storage_type(wanted)
    if held == wanted or pa.types.is_null(held):
        return True
    if is_list(held) and is_list(wanted):
        return _keeps_values(held.value_type, wanted.value_type)
    if pa.types.is_struct(held) and pa.types.is_struct(wanted):
        return _keeps_fields(held, wanted)
    if pa.types.is_floating(held):
        return bool(pa.types.is_floating(wanted) and held.bit_width <= wanted.bit_width)
    if pa.types.is_integer(held):
        return bool(pa.types.is_integer(wanted) or pa.types.is_floating(wanted))
    if pa.types.is_timestamp(held):
        return bool(pa.types.is_timestamp(wanted) and held.tz == wanted.tz)
    return any(fits(held) and fits(wanted) for fits in _FAMILIES)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _keeps_fields(held: pa.StructType, wanted: pa.StructType) -> bool:
    names = [field.name for field in held]
    return len(set(names)) == len(names) and all(
        wanted.get_field_index(field.name) >= 0 and _keeps_values(field.type, wanted.field(field.name).type)
        for field in held
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of fixed or variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


_FAMILIES = (_is_string, _is_binary, pa.types.is_decimal, pa.types.is_date)
