"""Fields of struct columns, named by a dot: `translation.en` is the field `en` of the column `translation`.

A column whose own name is `translation.en` comes before such a field. A field of a null struct is null.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["column_of", "field_of", "path_of", "schema_of", "select"]


def path_of(fields: pa.Schema | pa.StructType, name: str) -> tuple[str, ...] | None:
    """Return the name of the column that holds `name`, and those of the fields inside it; None if there is none."""
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
    """Return the column or the field of a struct with this name, which the returned field has too."""
    if (path := path_of(schema, name)) is None:
        return None
    field = schema.field(path[0])
    for part in path[1:]:
        field = field.type.field(part)
    return field if len(path) == 1 else pa.field(name, field.type)


def schema_of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the columns and fields `names`. Raises: KeyError if there is no such column."""
    found = {name: field_of(schema, name) for name in names}
    if missing := [name for name, field in found.items() if field is None]:
        raise KeyError(f"no column {missing[0]!r}")
    return pa.schema(found.values())


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.ChunkedArray | pa.Array | None:
    """Return the values of a column or of a field of a struct; None if there is none."""
    if (path := path_of(rows.schema, name)) is None:
        return None
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def select(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> pa.Table | pa.RecordBatch:
    """Return the columns and fields `names` as columns, in this order. Raises: KeyError if one is missing."""
    if all(name in rows.schema.names for name in names):
        return rows.select(list(names))
    schema = schema_of(rows.schema, names)
    return type(rows).from_arrays([column_of(rows, name) for name in names], schema=schema)
