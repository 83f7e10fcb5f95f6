"""Keep the values of JSON files exactly as written in the file.

`datasets` infers the types of each chunk of a file, and casts the chunk to the types of the first rows. Here texts that
look like times stay texts, and casts that change characters raise LateKeysError:

    in the file                      first rows    `datasets` gives
    1.0, 12345678901234567890        text          1, 1.23...e+19
    "007", true                      int64         7, 1
    "a" and 5 in a column            text          "a" in quotes, 5

If a file is one JSON array of rows, `datasets` turns 1e-12 into 0.0; here the number stays.
"""

import contextlib
import io
import json
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

# Types and target types of casts that may change how a value is written.
_OTHER_SPELLINGS = (
    (pa.types.is_floating, pa.types.is_string),
    (pa.types.is_boolean, lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind)),
    (pa.types.is_primitive, pa.types.is_boolean),
    (pa.types.is_string, pa.types.is_boolean),
)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Within the context, `datasets` keeps JSON values as written, or refuses to cast them."""
    from datasets.packaged_modules.json import json as reader

    cast, read = reader.table_cast, reader.pandas_read_json

    def checked_cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
        for field in schema:
            if field.name not in table.column_names:
                continue
            cells = table[field.name]
            _require_same(cells, field.type, name=field.name)
            if pa.types.is_timestamp(field.type) and pa.types.is_string(cells.type):  # a card declares times
                index = table.column_names.index(field.name)
                table = table.set_column(index, field.name, _times(cells, field.type))
        return cast(table, schema)

    def read_plain(*arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The 'convert_dates' keyword")  # pandas 3.1 deprecates what 3.0 needs
            return read(*arguments, **{**options, "convert_dates": False})

    arrow = types.SimpleNamespace(read_json=_read_json, ReadOptions=pyarrow.json.ReadOptions)
    ours = {"paj": arrow, "table_cast": checked_cast, "pandas_read_json": read_plain, "ujson_dumps": json.dumps}
    names = vars(reader)
    before = {name: names[name] for name in ours}  # raises if a name is missing
    names.update(ours)
    try:
        yield
    finally:
        names.update(before)


def _read_json(source: io.BytesIO, read_options: pyarrow.json.ReadOptions) -> pa.Table:
    table = pyarrow.json.read_json(source, read_options=read_options)
    texts = [field.with_type(kind) for field in table.schema if (kind := _as_text(field.type)) != field.type]
    if not texts:
        return table
    source.seek(0)
    schema = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts))
    # pyarrow puts columns with an explicit type first.
    return pyarrow.json.read_json(source, read_options=read_options, parse_options=schema).select(table.column_names)


def _times(texts: pa.ChunkedArray, kind: pa.TimestampType) -> pa.ChunkedArray:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # with a time zone
        return texts.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


def _as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _require_same(cells: pa.ChunkedArray, kind: pa.DataType, *, name: str) -> None:
    if cells.type == kind:
        return
    if pa.types.is_struct(kind) and pa.types.is_struct(cells.type):
        for field in kind:
            if cells.type.get_field_index(field.name) >= 0:
                _require_same(pc.struct_field(cells, field.name), field.type, name=f"{name}.{field.name}")
    elif pa.types.is_list(kind) and pa.types.is_list(cells.type):
        _require_same(pc.list_flatten(cells), kind.value_type, name=name)
    elif any(was(cells.type) and now(kind) for was, now in _OTHER_SPELLINGS):
        _refuse(cells.drop_null(), kind, name=name)
    elif pa.types.is_string(cells.type) and pa.types.is_integer(kind):
        # Class names are also cast from text to integers, but don't match this pattern.
        _refuse(cells.filter(pc.match_substring_regex(cells, r"^[+-]?0\d+$|^\+\d+$|^-0$")), kind, name=name)


def _refuse(odd: pa.ChunkedArray, kind: pa.DataType, *, name: str) -> None:
    if len(odd):
        text = repr(odd[0].as_py())
        raise ValueError(f"Couldn't cast {text} in column {name!r} to {kind}: it would be written differently")
