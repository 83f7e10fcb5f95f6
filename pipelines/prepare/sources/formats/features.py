"""What `datasets` says of columns, found from their Arrow schema and without `datasets`, whose import takes a second.

source                                         says                               read as
schema of a file                               string, dictionary of strings      string
its metadata `huggingface`, if the types fit   ClassLabel(names=['neg', 'pos'])   int64
a dataset card, before both                    the same                           its types
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

__all__ = ["Column", "Columns", "described"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """What `datasets` says of a column: its Arrow type, and `text` for people. `names` are those of class ids, and
    `item_names` those of class ids in lists.
    """

    kind: pa.DataType
    text: str
    names: tuple[str, ...] | None = None
    item_names: tuple[str, ...] | None = None


class Columns(dict[str, Column]):
    """A split's columns by name."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """Their names and types."""
        return pa.schema([(name, column.kind) for name, column in self.items()])


def described(schema: pa.Schema, features: Any = None) -> Columns:
    """The columns of files with this schema; `features` are those of a dataset card, as `datasets` writes them in JSON.

    With a card the columns are the card's, in its order, and of its types. What `datasets` decodes (pictures, sounds,
    arrays of a shape) stays as it is stored.

    Raises: SourceError if a file and its card don't have the same columns.
    """
    if features is None:
        known = _in_metadata(schema)
        return Columns((field.name, _of_field(field, known.get(field.name))) for field in schema)
    if set(features) != set(schema.names):
        raise SourceError(
            f"the files have the columns {sorted(schema.names)}, but their dataset card says {sorted(features)}",
            remedy="bring the card and the files into the same columns, or name the files themselves as DATASET",
        )
    return Columns((name, _of_card(feature, schema.field(name))) for name, feature in features.items())


def _in_metadata(schema: pa.Schema) -> Mapping[str, Any]:
    """What `datasets` wrote into the schema, by column."""
    written = (schema.metadata or {}).get(b"huggingface")
    if written is None:
        return {}
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return dict(json.loads(written).get("info", {}).get("features") or {})
    return {}


def _of_field(field: pa.Field, feature: Any) -> Column:
    """What the metadata says holds if it says the stored type."""
    said = _of_feature(feature)
    if said is not None and said.kind == field.type and field.nullable:
        return said
    kind = _as_read(field.type)
    return Column(kind=kind, text=_shown(kind))


def _of_card(feature: Any, field: pa.Field) -> Column:
    said = _of_feature(feature)
    if said is not None:
        return said
    name = feature.get("_type") if isinstance(feature, Mapping) else None
    return Column(kind=_as_read(field.type), text=f"{name}()" if name else _shown(field.type))


def _of_feature(feature: Any) -> Column | None:
    """The column that a feature describes; None if it is none, or none of those with a type of their own."""
    try:
        kind, text = _parsed(feature)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        return None
    items = feature[0] if isinstance(feature, list) else feature.get("feature") if is_list(kind) else None
    return Column(kind=kind, text=text, names=_class_names(feature), item_names=_class_names(items))


def _class_names(feature: Any) -> tuple[str, ...] | None:
    is_class = isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel"
    return tuple(map(str, feature["names"])) if is_class else None


def _parsed(feature: Any) -> tuple[pa.DataType, str]:
    """Type and text of a feature. Raises: whatever comes of one that is none."""
    if isinstance(feature, list):
        (item,) = feature
        kind, text = _parsed(item)
        return pa.list_(kind), f"List({text})"
    name = feature.get("_type")
    if not isinstance(name, str):
        fields = {key: _parsed(value) for key, value in feature.items()}
        kinds = [(key, kind) for key, (kind, _) in fields.items()]
        return pa.struct(kinds), f"{{{', '.join(f'{key!r}: {text}' for key, (_, text) in fields.items())}}}"
    return _PARSERS[name](feature)


def _parsed_value(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    kind = _type_named(feature["dtype"])
    return kind, _shown(kind)


def _parsed_class(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    return pa.int64(), f"ClassLabel(names={list(feature['names'])})"


def _parsed_list(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    length = int(feature.get("length", -1))
    kind, text = _parsed(feature["feature"])
    return pa.list_(kind, length), f"List({text}{f', length={length}' if length >= 0 else ''})"


def _parsed_sequence(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    """What older releases wrote: of a struct it is a struct of lists."""
    held = feature["feature"]
    is_struct = isinstance(held, Mapping) and not isinstance(held.get("_type"), str)
    if not is_struct or all(value.get("_type") in ("List", "Sequence") for value in held.values()):
        return _parsed_list(feature)
    return _parsed({key: {**feature, "_type": "List", "feature": value} for key, value in held.items()})


def _parsed_large_list(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    kind, text = _parsed(feature["feature"])
    return pa.large_list(kind), f"LargeList({text})"


def _parsed_json(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    return pa.json_(), "Json(decode=True)"


def _parsed_translation(feature: Mapping[str, Any]) -> tuple[pa.DataType, str]:
    languages = list(feature["languages"])
    return pa.struct([(name, pa.string()) for name in sorted(languages)]), f"Translation(languages={languages})"


_PARSERS = {
    "Value": _parsed_value,
    "ClassLabel": _parsed_class,
    "List": _parsed_list,
    "LargeList": _parsed_large_list,
    "Sequence": _parsed_sequence,
    "Json": _parsed_json,
    "Translation": _parsed_translation,
}

# What pyarrow calls otherwise than `datasets`.
_ALIASES = {
    "double": "float64",
    "float": "float32",
    "halffloat": "float16",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}


def _type_named(name: str) -> pa.DataType:
    """The type that `datasets` calls so. Raises: ValueError."""
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
    """The type that `datasets` reads a stored one as: values for dictionaries, and everything may be null."""
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
    """The type as `datasets` shows it."""
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
