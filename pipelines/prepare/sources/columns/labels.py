"""Labels of rows, and tags of words.

    column holds                the plan                              values
    ClassLabel(no, yes)         class, names from the feature         0 1
    "no", "yes"                 string, names sorted over all splits  0 1
    3, 7, True                  int, no names                         3 7 1
    0.5                         float, no names (rows only)           0.5

A class id of -1 stands for "no label" in `datasets`, as in test splits whose labels are kept secret: such a row is kept
with the label -1, and training and evaluation count it as nothing.

    List(ClassLabel(O, PER))    class, as above                       one value for each word

Rows whose label or tags cannot be used get a reason (see `extraction`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.suggestions import to_utf8
from pipelines.prepare.sources.formats.features import Column
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from tfrecord_io.errors import ColumnError, SourceError
from tfrecord_io.schema import UNLABELLED, Feature

__all__ = [
    "INT32",
    "MAX_LABEL_NAMES",
    "LabelPlan",
    "decode_texts",
    "is_text",
    "label_values",
    "list_lengths",
    "null_mask",
    "outside_range",
    "overflows_float32",
    "plan_label",
    "reject_labels",
    "reject_tags",
    "tag_values",
    "type_name",
    "with_names",
]

INT32 = (-(2**31), 2**31 - 1)
MAX_LABEL_NAMES = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """How a column becomes labels of rows, or tags of words if it holds lists. `names` is None for plain numbers."""

    column: str
    kind: Literal["class", "string", "int", "float"]
    names: tuple[str, ...] | None = None

    @property
    def feature(self) -> Feature:
        """The feature `label` of the schema: a class id, or a float32 target."""
        if self.kind == "float":
            return Feature(name="label", dtype="float32", shape=(), role="label", meaning="regression target")
        return Feature(name="label", dtype="int64", shape=(), role="label", meaning="class id")


def plan_label(column: str, found: Column, *, lists: bool = False) -> LabelPlan:
    """Plan the labels of a column, or with `lists` of the items of its lists; `with_names` adds the names of strings.

    Raises: ColumnError if the column cannot be a label.
    """
    kind, names = (found.kind.value_type, found.item_names) if lists else (found.kind, found.names)
    if names is not None:
        return LabelPlan(column=column, kind="class", names=names)
    if is_text(kind):
        return LabelPlan(column=column, kind="string")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return LabelPlan(column=column, kind="int")
    if pa.types.is_floating(kind):
        return LabelPlan(column=column, kind="float")
    raise ColumnError(
        f"label column {column!r} holds {type_name(kind)}, expected class labels, strings, or numbers",
        remedy="choose another --label-column, or keep a vector with --keep-column",
    )


def with_names(plan: LabelPlan, *, source: Source) -> LabelPlan:
    """Return the plan with the names of string labels.

    The names are those in every split of the source, sorted, so that ids do not depend on the splits asked for.

    Raises: ColumnError if there are too many to be class names; SourceError if one is not UTF-8.
    """
    if plan.kind != "string":
        return plan
    names: set[str] = set()
    for split in source.all_splits.values():
        for values in _texts_in(plan.column, split=split, schema=source.columns_of(split).arrow_schema):
            names.update(decode_texts(pc.unique(values).drop_null(), plan.column))
            if len(names) > MAX_LABEL_NAMES:
                raise ColumnError(
                    f"label column {plan.column!r} has more than {MAX_LABEL_NAMES} distinct strings, "
                    "expected class names",
                    remedy="choose another --label-column",
                )
    return dataclasses.replace(plan, names=tuple(sorted(names)))


def reject_labels(reasons: np.ndarray, column: pa.Array, label: LabelPlan) -> None:
    """Set the reason of rows whose label cannot be used. `reasons`: object [N], changed in place."""
    if label.kind == "string":
        reasons[_unknown(column, label)] = "label_unknown"
    elif label.kind in ("class", "int") and not pa.types.is_boolean(column.type):
        low, high = (UNLABELLED, len(label.names or ()) - 1) if label.kind == "class" else INT32
        reason = "label_out_of_range" if label.kind == "class" else "int_out_of_range"
        reasons[outside_range(column, low, high)] = reason
    elif label.kind == "float":
        reasons[overflows_float32(column)] = "float_out_of_range"
    reasons[null_mask(column)] = "label_null"


def reject_tags(reasons: np.ndarray, words: pa.Array, tags: pa.Array, plan: LabelPlan) -> None:
    """Set the reason of rows whose tags or words cannot be used, except null lists. `reasons`: as `reject_labels`."""
    values, owners = tags.flatten(), _owners(tags)
    if plan.kind == "string":
        reasons[owners[_unknown(values, plan)]] = "tag_unknown"
    else:
        high = len(plan.names or ()) - 1 if plan.kind == "class" else INT32[1]
        reasons[owners[outside_range(values, 0, high)]] = "tag_out_of_range"
    reasons[owners[null_mask(values)]] = "tag_null"
    reasons[_owners(words)[null_mask(words.flatten())]] = "word_null"
    reasons[list_lengths(words) != list_lengths(tags)] = "tags_length"


def label_values(column: pa.Array, label: LabelPlan) -> np.ndarray:
    """Return the labels of usable rows: int64 [N], or float32 [N]."""
    if label.kind == "string":
        column = pc.index_in(column, value_set=pa.array(label.names or (), type=column.type))
    dtype = np.float32 if label.kind == "float" else np.int64
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(dtype)


def tag_values(column: pa.Array, plan: LabelPlan) -> np.ndarray:
    """Return the tags of all W words of usable rows, one row after the other, int64 [W]."""
    return label_values(column.flatten(), plan)


def null_mask(column: pa.Array) -> np.ndarray:
    """Return which values are null or NaN, bool [N]."""
    return np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), dtype=bool)


def outside_range(column: pa.Array, low: int, high: int) -> np.ndarray:
    """Return which integers are below `low` or above `high`, bool [N]; False for nulls."""
    values = column.fill_null(0 if low <= 0 <= high else low).to_numpy(zero_copy_only=False)
    # Comparisons with Python integers do not wrap around, whatever the NumPy type.
    return np.asarray((values > high) | ((values < low) if values.dtype.kind != "u" else False))


def overflows_float32(column: pa.Array) -> np.ndarray:
    """Return which finite numbers are infinite as float32, bool [N]."""
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.isinf(values.astype(np.float32)) & ~np.isinf(values)


def decode_texts(column: pa.Array, name: str) -> list[str]:
    """Return the texts of a column. Raises: SourceError if one is not UTF-8."""
    try:
        values: list[str] = column.to_pylist()
    except UnicodeDecodeError as error:
        # Files are read without checking what their strings hold.
        raise SourceError(f"column {name!r}: {error.object[:40]!r} is not UTF-8", remedy=to_utf8(b"")) from error
    return values


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type in messages."""
    # `datasets` reads a JSON column with values of several types as this extension type.
    return "JSON values of several types" if str(kind) == "extension<arrow.json>" else str(kind)


def _texts_in(column: str, *, split: SplitSource, schema: pa.Schema) -> Iterator[pa.Array]:
    """Yield a column of texts, or the items of a column of lists of texts, batch by batch; nothing for other types."""
    kind = schema.field(column).type if column in schema.names else pa.null()
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_text(kind.value_type if lists else kind):
        for _, batch in split.read(split.ranges, [column]):
            yield batch.column(0).flatten() if lists else batch.column(0)


def _unknown(column: pa.Array, plan: LabelPlan) -> np.ndarray:
    known = pc.is_in(column, value_set=pa.array(plan.names or (), type=column.type))
    return np.asarray(~known.to_numpy(zero_copy_only=False))


def list_lengths(column: pa.Array) -> np.ndarray:
    """Return the length of each list, int64 [N]; 0 for null."""
    return np.asarray(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _owners(column: pa.Array) -> np.ndarray:
    """Return the index of the row of each item in the lists, int64."""
    return np.repeat(np.arange(len(column)), list_lengths(column))
