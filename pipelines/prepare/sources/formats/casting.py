"""Stored columns in the types of the split: what changes no value, and a refusal of the rest.

dictionary of strings           string
int32                           int64          values are looked at if it is the other way round
large_string, string_view       string
lists, structs                  the same of what they hold; fields by name, a missing one is null
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tfrecord_io.errors import SourceError
from tfrecord_io.shown import first_line

__all__ = ["MisfitError", "cast", "is_list", "require", "unknown_column"]

_ELSEWHERE = "the first file or the dataset card has it"


class MisfitError(Exception):
    """A row that does not have the types of the source: how many rows and bytes come before it, and what it has."""

    def __init__(self, what: str, *, rows: int, num_bytes: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.rows = rows
        self.num_bytes = num_bytes


def unknown_column(found: Sequence[str], expected: Sequence[str]) -> str | None:
    """What to say of the first column that is not expected, if there is one."""
    unknown = next((name for name in found if name not in expected), None)
    return None if unknown is None else f"column {unknown!r}, expected only {', '.join(map(repr, expected))}"


def require(schema: pa.Schema, types: pa.Schema, *, place: str) -> None:
    """Raises: SourceError, which names `place`, if a file with this schema can't be read as `types`."""
    for field in types:
        count = len(schema.get_all_field_indices(field.name))
        if count != 1:
            raise SourceError(
                f"{place}: {'several columns' if count else 'no column'} {field.name!r}, expected one, as {_ELSEWHERE}",
                remedy="bring all files into the same columns, or name only some of them by a glob",
            )
        held = schema.field(field.name).type
        if not _keeps_values(held, field.type):
            raise _refused(held, field, place=place)


def cast(batch: pa.RecordBatch, types: pa.Schema, *, place: str) -> pa.RecordBatch:
    """The batch with the columns of `types`, in their order. Raises: SourceError, which names `place`."""
    if batch.schema.equals(types):
        return batch
    columns = [_column(batch.column(field.name), field, place=place) for field in types]
    return pa.RecordBatch.from_arrays(columns, schema=types)


def _column(column: pa.Array, field: pa.Field, *, place: str) -> pa.Array:
    if column.type == field.type:
        return column
    if not _keeps_values(column.type, field.type):
        raise _refused(column.type, field, place=place)
    try:
        return _as(column, field.type)
    except (pa.ArrowException, ValueError) as error:
        raise _refused(column.type, field, place=place, cause=f" ({first_line(error)})") from error


def _refused(held: pa.DataType, field: pa.Field, *, place: str, cause: str = "") -> SourceError:
    return SourceError(
        f"{place}: column {field.name!r} holds {held}, expected {field.type}, as {_ELSEWHERE}{cause}",
        remedy="bring all files into the same types, or name only some of them by a glob",
    )


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _as(column, kind.storage_type))
    if isinstance(column, pa.ExtensionArray):
        return _as(column.storage, kind)
    return column if column.type == kind else column.cast(kind)


def _keeps_values(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a safe cast gives the same values, or an error."""
    held, wanted = _stored(held), _stored(wanted)
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


def _stored(kind: pa.DataType) -> pa.DataType:
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
    """Whether each value is a list, of one length or of many."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


_FAMILIES = (_is_string, _is_binary, pa.types.is_decimal, pa.types.is_date)
