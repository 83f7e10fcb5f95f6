"""Select stored columns and struct fields by dotted names, and cast them to the types of the split.

`translation.en` is the field `en` of the column `translation`; a column named `translation.en` takes precedence. A
field of a null struct is null. As in `datasets`, files are cast to the types of the first file: dictionaries to
strings, integers to other sizes if all values fit, lists item by item, and structs by field name, with nulls for
missing fields.
"""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.errors import SourceError
from tfrecord_io.shown import first_line

_ELSEWHERE = "as in the first file or the dataset card"


def path_of(fields: pa.Schema | pa.StructType, name: str) -> tuple[str, ...] | None:
    """Return the path to the column or struct field `name`, such as ('translation', 'en'); None if there is none."""
    if fields.get_field_index(name) >= 0:
        return (name,)
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        head, index = ".".join(parts[:count]), fields.get_field_index(".".join(parts[:count]))
        kind = fields.field(index).type if index >= 0 else pa.null()
        if pa.types.is_struct(kind) and (path := path_of(kind, ".".join(parts[count:]))):
            return (head, *path)
    return None


def field_of(schema: pa.Schema, name: str) -> pa.Field | None:
    """Return the Arrow field of a column or struct field, under its full `name`; None if there is none."""
    if (path := path_of(schema, name)) is None:
        return None
    field = schema.field(path[0])
    for part in path[1:]:
        field = field.type.field(part)
    return field if len(path) == 1 else pa.field(name, field.type)


def schema_of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of the columns and struct fields `names`. Raises: KeyError."""
    fields = {name: field_of(schema, name) for name in names}
    if missing := [name for name, field in fields.items() if field is None]:
        raise KeyError(f"no column {missing[0]!r}")
    return pa.schema(fields.values())


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.ChunkedArray | pa.Array | None:
    """Return the values of the column or struct field `name`; None if there is none."""
    if (path := path_of(rows.schema, name)) is None:
        return None
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def select(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> pa.Table | pa.RecordBatch:
    """Return the columns and struct fields `names`, in this order. Raises: KeyError."""
    schema = schema_of(rows.schema, names)
    return type(rows).from_arrays([column_of(rows, name) for name in names], schema=schema)


def require_castable(schema: pa.Schema, types: pa.Schema, *, where: str, as_named: bool = False) -> None:
    """Check that the file `where` has the columns of `types`, and that they can be cast.

    `as_named`: a dataset card declares the types, so casts may change values. Raises: SourceError.
    """
    for field in types:
        count = len(schema.get_all_field_indices(field.name))
        column = field_of(schema, field.name)
        if column is None:
            raise SourceError(
                f"{where}: {'several columns' if count else 'no column'} {field.name!r}, expected one, {_ELSEWHERE}",
                remedy="give all files the same columns, or name only some of them with a glob",
            )
        if not as_named and not _is_alike(column.type, field.type):
            raise _other_type(column.type, field, "a cast would change values", where=where)
        _cast_column(pa.schema([column]).empty_table().column(0), field, where=where)


def _is_alike(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return False if a cast may change values: 7 to '7', '007' to 7, 2 to True, or a time to another time zone."""
    if pa.types.is_dictionary(kind):
        return _is_alike(kind.value_type, wanted)
    if is_list(kind) and is_list(wanted):
        return _is_alike(kind.value_type, wanted.value_type)
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        names = [field.name for field in wanted if kind.get_field_index(field.name) >= 0]
        return all(_is_alike(kind.field(name).type, wanted.field(name).type) for name in names)
    return pa.types.is_null(kind) or _form(kind) == _form(wanted)


def _form(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_timestamp(kind):
        return "time" if kind.tz is None else "time of a zone"
    is_text = re.fullmatch("(large_)?(string|binary)(_view)?", str(kind)) or pa.types.is_fixed_size_binary(kind)
    return "text" if is_text else str(kind)


def cast(batch: pa.RecordBatch, types: pa.Schema, *, where: str) -> pa.RecordBatch:
    """Cast a batch of the file `where` to `types`. Raises: SourceError."""
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
        raise _other_type(column.type, field, first_line(error), where=where) from error
    return table.combine_chunks().to_batches()[0].column(0) if len(table) else table.column(0)


def _other_type(kind: pa.DataType, field: pa.Field, reason: str, *, where: str) -> SourceError:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return SourceError(
        f"{where}: column {field.name!r} holds {kind}, expected {field.type}, {_ELSEWHERE} ({reason})",
        remedy="convert all files to the same types, or name only some of them with a glob",
    )


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
