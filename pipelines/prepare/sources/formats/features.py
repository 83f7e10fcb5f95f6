"""The column types of `datasets`, derived from Arrow schemas without importing `datasets`, which takes a second.

described by                                   example                            read as
schema of a file                               string, dictionary of strings      string
its metadata `huggingface`, if the types fit   ClassLabel(names=['neg', 'pos'])   int64
a dataset card, which overrides both           ClassLabel(names=['neg', 'pos'])   the card's types
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipelines.prepare.sources.formats.casting import is_list
from tfrecord_io.errors import SourceError

__all__ = ["Column", "Columns", "columns_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its Arrow type `kind`, and the feature of `datasets` as `text` for messages.

    `names` are the class names of a ClassLabel, `item_names` those of a list of ClassLabel, and `fields` the columns
    inside a struct.
    """

    kind: pa.DataType
    text: str
    names: tuple[str, ...] | None = None
    item_names: tuple[str, ...] | None = None
    fields: Mapping[str, Column] = dataclasses.field(default_factory=dict, compare=False)


class Columns(dict[str, Column]):
    """A split's columns by name."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The names and types as an Arrow schema."""
        return pa.schema([(name, column.kind) for name, column in self.items()])

    def with_fields(self) -> Columns:
        """Return the columns, and behind them the fields of structs, such as `translation.en` (see `nested`)."""
        within = {
            f"{name}.{inner}": column
            for name, outer in self.items()
            for inner, column in Columns(outer.fields).with_fields().items()
        }
        return Columns({**self, **{name: column for name, column in within.items() if name not in self}})


def columns_of(schema: pa.Schema, features: Any = None) -> Columns:
    """Return the columns of files with this schema.

    `features` are those of a dataset card (JSON, as `datasets` writes it); names, order and types are then the card's.
    Values that `datasets` decodes (pictures, sounds, arrays with a shape) keep their stored types.

    Raises: SourceError if a file and its card have different columns.
    """
    if features is None:
        in_metadata = _features_in_metadata(schema)
        return Columns((field.name, _of_field(field, in_metadata.get(field.name))) for field in schema)
    if set(features) != set(schema.names):
        raise SourceError(
            f"the files have the columns {sorted(schema.names)}, but their dataset card lists {sorted(features)}",
            remedy="correct the card, or name the files themselves as DATASET",
        )
    return Columns((name, _of_card(feature, schema.field(name))) for name, feature in features.items())


def _features_in_metadata(schema: pa.Schema) -> Mapping[str, Any]:
    """Return the features that `datasets` wrote into the schema, by column."""
    written = (schema.metadata or {}).get(b"huggingface")
    if written is None:
        return {}
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return dict(json.loads(written).get("info", {}).get("features") or {})
    return {}


def _of_field(field: pa.Field, feature: Any) -> Column:
    """Return the column of a field; the metadata's feature counts only if it has the stored type."""
    column = _of_feature(feature)
    if column is not None and column.kind == field.type and field.nullable:
        return column
    return _of_type(_as_read(field.type))


def _of_card(feature: Any, field: pa.Field) -> Column:
    if (column := _of_feature(feature)) is not None:
        return column
    name = feature.get("_type") if isinstance(feature, Mapping) else None
    column = _of_type(_as_read(field.type))
    return dataclasses.replace(column, text=f"{name}()") if name else column


def _of_type(kind: pa.DataType) -> Column:
    fields = {field.name: _of_type(field.type) for field in kind} if pa.types.is_struct(kind) else {}
    return Column(kind=kind, text=_shown(kind), fields=fields)


def _of_feature(feature: Any) -> Column | None:
    """Return the column that a feature describes; None if it is malformed, or its type is that of its storage."""
    try:
        kind, text = _parse(feature)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        return None
    items = feature[0] if isinstance(feature, list) else feature.get("feature") if is_list(kind) else None
    inside = _of_type(kind).fields
    if inside and isinstance(feature, Mapping) and not isinstance(feature.get("_type"), str):
        inside = {name: _of_feature(feature[name]) or column for name, column in inside.items()}
    return Column(kind=kind, text=text, names=_class_names(feature), item_names=_class_names(items), fields=inside)


def _class_names(feature: Any) -> tuple[str, ...] | None:
    is_class = isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel"
    return tuple(map(str, feature["names"])) if is_class else None


def _parse(feature: Any) -> tuple[pa.DataType, str]:
    """Return type and text of a feature. Raises: KeyError, TypeError and others for a malformed one."""
    if isinstance(feature, list):
        (item,) = feature
        kind, text = _parse(item)
        return pa.list_(kind), f"List({text})"
    name = feature.get("_type")
    if not isinstance(name, str):
        fields = {key: _parse(value) for key, value in feature.items()}
        kinds = [(key, kind) for key, (kind, _) in fields.items()]
        return pa.struct(kinds), f"{{{', '.join(f'{key!r}: {text}' for key, (_, text) in fields.items())}}}"
    return _PARSERS[name](feature)


def _parse_value(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    kind = _type_named(feature["dtype"])
    return kind, _shown(kind)


def _parse_class(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    return pa.int64(), f"ClassLabel(names={list(feature['names'])})"


def _parse_list(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    length = int(feature.get("length", -1))
    kind, text = _parse(feature["feature"])
    return pa.list_(kind, length), f"List({text}{f', length={length}' if length >= 0 else ''})"


def _parse_sequence(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    """Parse a feature of older releases, which is a struct of lists if its items are structs."""
    held = feature["feature"]
    is_struct = isinstance(held, Mapping) and not isinstance(held.get("_type"), str)
    if not is_struct or all(value.get("_type") in ("List", "Sequence") for value in held.values()):
        return _parse_list(feature)
    return _parse({key: {**feature, "_type": "List", "feature": value} for key, value in held.items()})


def _parse_large_list(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    kind, text = _parse(feature["feature"])
    return pa.large_list(kind), f"LargeList({text})"


def _parse_json(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    return pa.json_(), "Json(decode=True)"


def _parse_translation(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    languages = list(feature["languages"])
    return pa.struct([(name, pa.string()) for name in sorted(languages)]), f"Translation(languages={languages})"


_PARSERS = {
    "Value": _parse_value,
    "ClassLabel": _parse_class,
    "List": _parse_list,
    "LargeList": _parse_large_list,
    "Sequence": _parse_sequence,
    "Json": _parse_json,
    "Translation": _parse_translation,
}

# Names of `datasets` for types that pyarrow names differently.
_ALIASES = {
    "double": "float64",
    "float": "float32",
    "halffloat": "float16",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}


def _type_named(name: str) -> pa.DataType:
    """Return the type that `datasets` gives this name. Raises: ValueError."""
    if found := re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*tz=([\w/+\-:]+)\]", name):
        return pa.timestamp(found[1], found[2])
    if found := re.fullmatch(r"decimal(128|256)\((\d+),\s*(-?\d+)\)", name):
        return (pa.decimal128 if found[1] == "128" else pa.decimal256)(int(found[2]), int(found[3]))
    if found := re.fullmatch(r"fixed_size_binary\[(\d+)\]", name):
        return pa.binary(int(found[1]))
    if name in ("string_view", "binary_view"):
        return pa.string_view() if name == "string_view" else pa.binary_view()
    return pa.type_for_alias(name)


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type as which `datasets` reads a stored one: values instead of dictionaries, and all nullable."""
    if pa.types.is_dictionary(kind):
        return _as_read(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_read(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_as_read(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_as_read(kind.value_type))
    return pa.list_(_as_read(kind.value_type)) if pa.types.is_list(kind) else kind


def _shown(kind: pa.DataType) -> str:
    """Return the type in the notation of `datasets`."""
    if pa.types.is_struct(kind):
        return f"{{{', '.join(f'{field.name!r}: {_shown(field.type)}' for field in kind)}}}"
    if pa.types.is_fixed_size_list(kind):
        return f"List({_shown(kind.value_type)}, length={kind.list_size})"
    if pa.types.is_large_list(kind):
        return f"LargeList({_shown(kind.value_type)})"
    if pa.types.is_list(kind):
        return f"List({_shown(kind.value_type)})"
    if isinstance(kind, pa.JsonType):
        return "Json(decode=True)"
    return f"Value({_ALIASES.get(str(kind), str(kind))!r})"
