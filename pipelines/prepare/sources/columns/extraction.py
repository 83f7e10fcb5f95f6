"""From a record batch of the source to what the layouts take: texts, label ids, kept columns; and the rows that
cannot be used.

Which rows are rejected, and why, follows from the columns alone, row by row:

    filtered            one of the user's filters left it out: no error, whatever else may be wrong with it
    held_out            it is in another split by --hold-out: no error either (not_held_out: the other way round)
    text_null           a text is null
    target_null         the text that is to be generated is null
    words_null          the list of words is null (tags_null: that of tags)
    word_null           a word is null (tag_null: a tag)
    tags_length         there are not as many tags as words
    tag_out_of_range    a ClassLabel id outside its names, or a negative number
    tag_unknown         a string that no split had when the names of tags were collected
    label_null          the label is null, or NaN
    label_out_of_range  a ClassLabel id outside its names (datasets' -1 for "no label" among them)
    label_unknown       a string that no split of the dataset had when the label names were collected
    column_null         a kept column is null, or one of its values is
    column_length       a kept vector has another length than the first row's
    int_out_of_range    a label or kept integer does not fit int32, the integer type of the device
    float_out_of_range  a label or kept number is finite, but infinite as float32

so that the launcher can count them before any tokenizing starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.sources.columns.labels import (
    INT32,
    MAX_LABEL_NAMES,
    LabelPlan,
    is_text,
    label_values,
    mark,
    mark_label,
    mark_tags,
    nulls,
    outside,
    overflows,
    strings,
)
from pipelines.prepare.sources.rows import left_out
from tfrecord_io.errors import SourceError
from tfrecord_io.schema import Feature

__all__ = [
    "MAX_LABEL_NAMES",
    "ColumnPlan",
    "Inputs",
    "LabelPlan",
    "Purpose",
    "Rows",
    "extract",
    "is_json",
    "sizes_of",
    "validate",
]

# What a layout takes a column for that is not just one more text: mostly a nested one.
Purpose = Literal["messages", "tools", "words", "tags", "answers", "target"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """The columns that become tokens: texts, and nested ones by what they are for."""

    texts: tuple[str, ...] = ()
    nested: Mapping[Purpose, str] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.texts, *self.nested.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """Which columns are read, and as what. `nested` are those with lists or structs that the layout takes, by what they
    are for. Resolved on the launcher; travels to workers.
    """

    texts: tuple[str, ...]
    nested: Mapping[Purpose, str] = dataclasses.field(default_factory=dict)
    label: LabelPlan | None = None
    kept: tuple[Feature, ...] = ()
    tags: LabelPlan | None = None

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of class ids, of rows or of words."""
        plan = self.label or self.tags
        return plan.names if plan else None

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that is read."""
        label = (self.label.column,) if self.label else ()
        return (*self.content, *label, *(feature.name for feature in self.kept))

    @property
    def content(self) -> tuple[str, ...]:
        """The columns that become tokens."""
        return (*self.texts, *self.nested.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """N usable rows: N texts (strings, valid UTF-8, no nulls) for each text column, nested columns by what they are for
    (no nulls at the top), and arrays [N, ...] by feature name. `numbers` int64 [N] are theirs in the split, where
    `extract` was told of the first.
    """

    texts: tuple[pa.Array, ...]
    arrays: dict[str, np.ndarray]
    nested: Mapping[Purpose, pa.Array] = dataclasses.field(default_factory=dict)
    numbers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(next(iter((*self.texts, *self.nested.values()))))

    def take(self, which: np.ndarray) -> Rows:
        """The rows with the indices `which`, without `arrays`."""
        indices = pa.array(which)
        return Rows(
            texts=tuple(column.take(indices) for column in self.texts),
            arrays={},
            nested={purpose: column.take(indices) for purpose, column in self.nested.items()},
            numbers=self.numbers[which] if len(self.numbers) else self.numbers,
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of several batches as one, without `arrays`."""
        return cls(
            texts=tuple(pa.concat_arrays(column) for column in zip(*(part.texts for part in parts), strict=True)),
            arrays={},
            nested={purpose: pa.concat_arrays([part.nested[purpose] for part in parts]) for purpose in parts[0].nested},
            numbers=np.concatenate([part.numbers for part in parts]),
        )


def validate(batch: pa.RecordBatch, plan: ColumnPlan) -> np.ndarray:
    """The reason for which each row cannot be used, as an object array of str; '' where it can. Reads no text."""
    reasons = np.full(batch.num_rows, "", dtype=object)
    for feature in reversed(plan.kept):
        _mark_kept(reasons, batch.column(feature.name), feature)
    if plan.label is not None:
        mark_label(reasons, batch.column(plan.label.column), plan.label)
    if plan.tags is not None:
        mark_tags(reasons, batch.column(plan.nested["words"]), batch.column(plan.tags.column), plan.tags)
    for purpose, name in plan.nested.items():
        if purpose == "tools":
            continue  # a conversation may have none
        mark(reasons, nulls(batch.column(name)), f"{purpose}_null")
    for name in plan.texts:
        mark(reasons, nulls(batch.column(name)), "text_null")
    if (codes := left_out.codes_of(batch)) is not None:
        for reason, code in left_out.CODES.items():
            mark(reasons, codes == code, reason)
    return reasons


def extract(batch: pa.RecordBatch, plan: ColumnPlan, *, first: int = 0) -> tuple[Rows, np.ndarray]:
    """The usable rows, and the reasons that `validate` gives for all of them. `first` is the number of the first."""
    reasons = validate(batch, plan)
    if reasons.any():
        batch = batch.filter(pa.array(reasons == ""))
    arrays: dict[str, np.ndarray] = {}
    if plan.label is not None:
        arrays["label"] = label_values(batch.column(plan.label.column), plan.label)
    for feature in plan.kept:
        arrays[feature.name] = _kept_values(batch.column(feature.name), feature)
    rows = Rows(
        texts=tuple(_utf8(batch.column(name), name) for name in plan.texts),
        arrays=arrays,
        nested={purpose: _utf8(batch.column(name), name) for purpose, name in plan.nested.items()},
        numbers=first + np.flatnonzero(reasons == ""),
    )
    return rows, reasons


def sizes_of(batch: pa.RecordBatch, columns: Sequence[str]) -> np.ndarray:
    """UTF-8 bytes of text in each row, int64 [N], from the offsets alone; 0 for null. Of a nested column, of all texts
    in it.
    """
    total = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        total += _text_sizes(batch.column(name))
    return total


def _text_sizes(column: pa.Array) -> np.ndarray:
    if is_text(column.type):
        return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_struct(column.type):
        parts = [_text_sizes(column.field(index)) for index in range(column.type.num_fields)]
        return np.sum([np.zeros(len(column), np.int64), *parts], axis=0) * ~nulls(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths)
        along = np.concatenate([[0], np.cumsum(_text_sizes(column.flatten()))])
        return np.asarray(along[ends] - along[ends - lengths])
    if is_json(column.type):
        return _text_sizes(column.storage)
    return np.zeros(len(column), np.int64)


def _utf8(column: pa.Array, name: str) -> pa.Array:
    """The column itself. Raises: SourceError if a text in it is not UTF-8, or what nests its values is damaged."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            strings(column, name)  # says which
        raise SourceError(
            f"column {name!r}: its values are damaged ({error})",
            remedy="check that the source is complete, and run the same command again",
        ) from error
    return column


def _mark_kept(reasons: np.ndarray, column: pa.Array, feature: Feature) -> None:
    values = column
    if feature.shape:
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        mark(reasons, lengths != feature.shape[0], "column_length")
        values = column.flatten()
        owners = np.repeat(np.arange(len(column)), np.where(nulls(column), 0, lengths))
    else:
        owners = np.arange(len(column))
    if feature.dtype == "int64" and not pa.types.is_boolean(values.type):
        mark(reasons, owners[outside(values, *INT32)], "int_out_of_range")
    elif feature.dtype == "float32":
        mark(reasons, owners[overflows(values)], "float_out_of_range")
    mark(reasons, owners[np.asarray(values.is_null().to_numpy(zero_copy_only=False), dtype=bool)], "column_null")
    mark(reasons, np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool), "column_null")


def _kept_values(column: pa.Array, feature: Feature) -> np.ndarray:
    values = column.flatten() if feature.shape else column
    dtype = np.float32 if feature.dtype == "float32" else np.int64
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype).reshape(len(column), *feature.shape)


def is_json(kind: pa.DataType) -> bool:
    """Whether it is what `datasets` makes of JSON values of several types: their text."""
    return str(kind) == "extension<arrow.json>"
