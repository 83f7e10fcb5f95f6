"""Columns of a split: their features in `datasets`, and their Arrow types."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Column of a split. `kind`: its Arrow type. `text`: its feature in `datasets`, as text for messages.

    `classes`: class names if the feature is a ClassLabel or a list of them. `fields`: the fields if it is a struct.
    """

    kind: pa.DataType
    text: str
    classes: tuple[str, ...] | None = None
    fields: Mapping[str, Column] = dataclasses.field(default_factory=dict, compare=False)


class Columns(dict[str, Column]):
    @property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([(name, column.kind) for name, column in self.items()])

    def with_fields(self) -> Columns:
        """Return these columns and the fields of structs, such as `translation.en`."""
        within = {
            f"{name}.{inner}": column
            for name, outer in self.items()
            for inner, column in Columns(outer.fields).with_fields().items()
        }
        return Columns({**self, **{name: column for name, column in within.items() if name not in self}})


def columns_of(schema: pa.Schema, features: Any = None) -> Columns:
    """Return the columns of files with `schema`. `features`: their `Features`, by default from the schema's metadata.

    A column with a type that `datasets` doesn't know keeps its stored type.
    """
    described = features if features is not None else _features_of(schema)
    fields = schema if described is None else described.arrow_schema
    return Columns((field.name, _column(field, (described or {}).get(field.name))) for field in fields)


def _features_of(schema: pa.Schema) -> Any | None:
    import datasets

    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        return without_views(datasets.Features.from_arrow_schema(schema))
    return None


def without_views(features: Any) -> Any:
    """Return features with string and binary views replaced by plain types, because few functions accept views."""
    text = json.dumps(features.to_dict())
    plain = re.sub(r'("dtype": "(?:string|binary))_view"', r'\1"', text)
    return features if plain == text else type(features).from_dict(json.loads(plain))


def _column(field: pa.Field, feature: Any) -> Column:
    import datasets

    # The fields of features such as Translation have no features.
    if feature is None and (described := _features_of(pa.schema([field]))) is not None:
        field, feature = described.arrow_schema.field(0), described[field.name]
    own = feature if isinstance(feature, Mapping) else {}
    fields = field.type if pa.types.is_struct(field.type) else ()
    item = getattr(feature, "feature", feature)
    return Column(
        kind=field.type,
        text=str(field.type) if feature is None else repr(feature),
        classes=tuple(item.names) if isinstance(item, datasets.ClassLabel) else None,
        fields={inner.name: _column(inner, own.get(inner.name)) for inner in fields},
    )
