"""Describe the features of a dataset: name, dtype, fixed shape, role and meaning.

`ROLES` defines how features are checked, padded, decoded, shown and exported. Only a feature of role `column` can have
dtype `string` (UTF-8 text) or `bytes`: one value per record, in object arrays.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

from tfrecord_io.errors import SchemaError

__all__ = [
    "ANSWERS",
    "MOST_VALUES",
    "MOST_VALUE_BYTES",
    "OF_TOKENS",
    "ROLES",
    "TOKEN_IDS",
    "UNLABELLED",
    "DType",
    "Feature",
    "Role",
    "RoleSpec",
    "Schema",
    "Side",
]

Values = TypeVar("Values")

DType = Literal["int64", "float32", "string", "bytes"]
Side = Literal["input", "target", "chosen", "rejected"]
ANSWERS: tuple[Side, ...] = ("chosen", "rejected")
_OfRow = Literal["token_ids", "attention_mask", "token_type_ids", "num_tokens", "segment_ids", "positions", "loss_mask"]
_OfTarget = Literal["target_ids", "target_mask"]
_OfChosen = Literal["chosen_ids", "chosen_mask", "chosen_loss_mask"]
_OfRejected = Literal["rejected_ids", "rejected_mask", "rejected_loss_mask"]
_OfAnnotations = Literal["token_labels", "token_label_mask", "start_position", "end_position"]
_OfSource = Literal["source_row", "char_starts", "char_ends", "label", "column"]
Role = Literal[_OfRow, _OfTarget, _OfChosen, _OfRejected, _OfAnnotations, _OfSource]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """Properties of all features with the same role.

    shape: L and T are the lengths of a row and of a target in tokens, C is a number of classes.
    values: "ids" of the vocabulary, "mask" (0 or 1), "from 0" (numbers of at least 0), or "any".
    padding: the value on padding; "pad" is the tokenizer's pad id, None means that the value varies.
    side: the token sequence that the values belong to.
    feature_name: the usual name of the feature; "" if it equals the role's name.
    marks_tokens: whether values are 0 on padding and nowhere else.
    marks_learned: whether values are 1 on the tokens to learn.
    exported_as: the column in Parquet exports; None for the feature's name; "" for none, if others imply the values.
    """

    meaning: str
    shape: Literal["[L]", "[T]", "[]", "[] or [C]", "any"] = "[L]"
    dtypes: tuple[DType, ...] = ("int64",)
    values: Literal["ids", "mask", "from 0", "any"] = "from 0"
    padding: Literal["pad", 0] | None = None
    side: Side = "input"
    feature_name: str = ""
    is_label: bool = False
    marks_tokens: bool = False
    marks_learned: bool = False
    shown_as: Literal["text", "marks", "value"] = "marks"
    exported_as: str | None = None


_IDS: Any = {"values": "ids", "padding": "pad", "shown_as": "text"}
_MASK: Any = {"values": "mask", "padding": 0}
_OF_TARGET: Any = {"shape": "[T]", "side": "target", "exported_as": "labels"}


def _answer(side: Side) -> dict[Any, RoleSpec]:
    meaning, name = f"ids of the prompt and its {side} answer", f"{side}_input_ids"
    mask = RoleSpec(
        meaning=f"1 on tokens of the prompt and its {side} answer, 0 on padding",
        side=side,
        feature_name=f"{side}_attention_mask",
        marks_tokens=True,
        exported_as="",
        **_MASK,
    )
    learned = f"1 on tokens of the {side} answer"
    return {
        f"{side}_ids": RoleSpec(meaning=meaning, side=side, feature_name=name, exported_as=f"{side}_ids", **_IDS),
        f"{side}_mask": mask,
        f"{side}_loss_mask": RoleSpec(meaning=learned, side=side, marks_learned=True, exported_as="", **_MASK),
    }


ROLES: Mapping[Role, RoleSpec] = {
    "token_ids": RoleSpec(
        meaning="ids of the tokenizer's vocabulary, special tokens and padding included",
        feature_name="input_ids",
        exported_as="input_ids",
        **_IDS,
    ),
    "attention_mask": RoleSpec(meaning="1 on tokens, 0 on padding", marks_tokens=True, exported_as="", **_MASK),
    "token_type_ids": RoleSpec(
        meaning="0 on the first text of a pair, 1 on the second, as the tokenizer gives them", values="any"
    ),
    "num_tokens": RoleSpec(
        meaning="where no mask is stored: that many tokens, then padding on the right", shape="[]", exported_as=""
    ),
    "segment_ids": RoleSpec(
        meaning="1, 2, ... on the tokens of the first, second, ... document of a row",
        padding=0,
        marks_tokens=True,
        exported_as="seq_lengths",
    ),
    "positions": RoleSpec(meaning="a token's place in its segment, from 0", padding=0, exported_as="position_ids"),
    "loss_mask": RoleSpec(meaning="1 on the tokens to be learned", marks_learned=True, exported_as="labels", **_MASK),
    "target_ids": RoleSpec(meaning="ids of the text to generate", **_IDS, **_OF_TARGET),
    "target_mask": RoleSpec(meaning="1 on tokens of the target", marks_tokens=True, **_MASK, **_OF_TARGET),
    **{role: spec for side in ANSWERS for role, spec in _answer(side).items()},
    "token_labels": RoleSpec(
        meaning="class id of each token, 0 where it has none",
        values="any",
        padding=0,
        is_label=True,
        exported_as="labels",
    ),
    "token_label_mask": RoleSpec(meaning="1 where a token has a label of its own", exported_as="labels", **_MASK),
    "start_position": RoleSpec(
        meaning="index in the row of an answer's first token, 0 where there is no answer in it", shape="[]"
    ),
    "end_position": RoleSpec(meaning="index of its last token, 0 likewise", shape="[]"),
    "source_row": RoleSpec(meaning="number of the row of the source, in its split", shape="[]", shown_as="value"),
    "char_starts": RoleSpec(
        meaning="where the token begins in the row's text, in characters; 0 on special tokens", padding=0
    ),
    "char_ends": RoleSpec(meaning="where it ends", padding=0),
    "label": RoleSpec(
        meaning="class id, an index into the label names, or -1 where a row has none; without label names an integer; "
        "or for each of C classes 1 if the row has it, else 0; or a number for regression",
        shape="[] or [C]",
        dtypes=("int64", "float32"),
        values="any",
        is_label=True,
        shown_as="value",
    ),
    "column": RoleSpec(
        meaning="a column of the source, kept as it was",
        shape="any",
        dtypes=get_args(DType),
        values="any",
        shown_as="value",
    ),
}
OF_TOKENS = tuple(role for role, spec in ROLES.items() if spec.shape == "[L]")
TOKEN_IDS = tuple(role for role, spec in ROLES.items() if spec.values == "ids")

UNLABELLED = -1

# Maximum number of values per record, up to 160 MB. A row of a million tokens has 2 to 7 million values.
MOST_VALUES = 1 << 24
MOST_VALUE_BYTES = 1 << 20
_MOST_DIMENSIONS = 8
_MOST_BYTES = {"int64": 10, "float32": 4, "string": MOST_VALUE_BYTES, "bytes": MOST_VALUE_BYTES}
# Maximum bytes of a map entry besides name and values: tags and lengths.
_MOST_FRAMING = 64

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,127}\Z")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of every record. `dtype` is the stored type; `shape` excludes the batch dimension.

    constant: an integer that all values equal, such as 0 for token type ids of single texts, or None. Readers need not
        parse these values.

    Raises: SchemaError for an invalid name, dtype, shape, role or constant.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: Role
    meaning: str = ""
    constant: int | None = None

    def __post_init__(self) -> None:
        for problem, remedy in self._problems():
            raise SchemaError(f"feature {self.name!r}: {problem}", remedy=remedy)

    def _problems(self) -> Iterator[tuple[str, str]]:
        # Only the first counts: later checks rely on earlier ones.
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            problem = "invalid name, expected a letter or underscore, then letters, digits, '_', '-' or '.'"
            yield problem, "rename the column"
        if self.dtype not in get_args(DType):
            yield f"dtype {self.dtype!r}, expected one of {get_args(DType)}", ""
        if self.is_bytes and (self.shape != () or self.role != "column"):
            problem = f"dtype {self.dtype} with role {self.role!r} and shape {self.shape!r:.100}"
            yield f"{problem}, expected role 'column' and shape ()", ""
        if self.role not in get_args(Role):
            yield f"role {self.role!r}, expected one of {get_args(Role)}", ""
        if not isinstance(self.shape, tuple) or not all(type(size) is int and size > 0 for size in self.shape):
            yield f"shape {self.shape!r:.100}, expected a tuple of positive sizes", ""
        if len(self.shape) > _MOST_DIMENSIONS:
            problem = f"{len(self.shape)} dimensions, expected at most {_MOST_DIMENSIONS}"
            yield problem, "leave this column out, or flatten its values"
        is_int64 = type(self.constant) is int and -(2**63) <= self.constant < 2**63
        if self.constant is not None and not (is_int64 and self.dtype == "int64"):
            yield f"constant {self.constant!r:.100}, expected an int64 value, and dtype int64", ""

    @property
    def is_bytes(self) -> bool:
        """Whether the values are text or bytes."""
        return self.dtype in ("string", "bytes")

    @property
    def array_dtype(self) -> str:
        """Name of the NumPy dtype of arrays of the values."""
        return "object" if self.is_bytes else self.dtype

    @property
    def num_values(self) -> int:
        """Number of values in one record, 1 for a scalar."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Schema:
    """Features of a dataset, in the order of the reader's dicts.

    Raises: SchemaError for no features, a repeated name, or more than 2^24 values per record.
    """

    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise SchemaError("the schema has no features, expected at least one")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise SchemaError(
                f"several features have the name {repeated[0]!r}, expected distinct names",
                remedy="rename or leave out one of the columns",
            )
        if (values := sum(feature.num_values for feature in self.features)) > MOST_VALUES:
            raise SchemaError(
                f"{values:,} values in a record, expected at most {MOST_VALUES:,}",
                remedy="give a smaller --max-length, or leave out large columns",
            )

    @property
    def most_record_bytes(self) -> int:
        """Maximum size of a serialized record in bytes."""
        names = sum(len(name) + _MOST_FRAMING for name in self.names)
        return names + sum(feature.num_values * _MOST_BYTES[feature.dtype] for feature in self.features)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)

    @property
    def of_bytes(self) -> tuple[str, ...]:
        """Names of the features of text or bytes."""
        return tuple(feature.name for feature in self.features if feature.is_bytes)

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SchemaError(f"no feature {name!r}, expected one of {list(self.names)}")

    def with_row_length(self, length: int) -> Schema:
        """Return a schema with other shapes, for rows of `length` tokens."""
        shapes = [(length,) if feature.role in OF_TOKENS else feature.shape for feature in self.features]
        pairs = zip(self.features, shapes, strict=True)
        return Schema(tuple(dataclasses.replace(feature, shape=shape) for feature, shape in pairs))

    def with_role(self, role: Role) -> Feature | None:
        """Return the first feature with this role, or None."""
        return next((feature for feature in self.features if feature.role == role), None)

    @property
    def token_features(self) -> tuple[Feature, ...]:
        """Features that contain token ids."""
        return tuple(feature for feature in self.features if feature.role in TOKEN_IDS)

    @property
    def row_ids(self) -> Feature | None:
        """First feature that contains a row's token ids, or None."""
        return next((feature for feature in self.token_features if feature.role in OF_TOKENS), None)

    def ids_of(self, side: Side) -> Feature | None:
        """Return the feature with the ids of one token sequence of a row, or None."""
        return self._of_side(side, lambda spec: spec.values == "ids")

    def mask_of(self, side: Side) -> Feature | None:
        """Return the feature that is 1 on the tokens of `side` and 0 on padding, or None."""
        return self._of_side(side, lambda spec: spec.values == "mask" and spec.marks_tokens)

    def loss_mask_of(self, side: Side) -> Feature | None:
        """Return the feature that is 1 on those tokens of `side` that a model learns, or None."""
        return self._of_side(side, lambda spec: spec.marks_learned)

    def _of_side(self, side: Side, fits: Callable[[RoleSpec], bool]) -> Feature | None:
        specs = ((feature, ROLES[feature.role]) for feature in self.features)
        return next((feature for feature, spec in specs if spec.side == side and fits(spec)), None)

    def values(self, columns: Mapping[str, Values], role: Role) -> Values | None:
        """Return the entry of `columns`, by feature name, of the first feature with this role, or None."""
        feature = self.with_role(role)
        return None if feature is None else columns[feature.name]
