"""Labels: one for each row, or a tag for each word of a row.

    column holds                the plan                              values
    ClassLabel(no, yes)         class, names from the feature         0 1
    "no", "yes"                 string, names sorted over all splits  0 1
    3, 7, True                  int, no names                         3 7 1
    0.5                         float, no names (rows only)           0.5

    List(ClassLabel(O, PER))    class, as above                       one value for each word

What cannot be used is marked row by row, with its reason (see `columns`).
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
from tfrecord_io.schema import Feature

__all__ = [
    "INT32",
    "MAX_LABEL_NAMES",
    "LabelPlan",
    "is_text",
    "label_values",
    "list_lengths",
    "mark",
    "mark_label",
    "mark_tags",
    "named",
    "nulls",
    "outside",
    "overflows",
    "plan_label",
    "shown",
    "strings",
    "tag_values",
]

INT32 = (-(2**31), 2**31 - 1)
MAX_LABEL_NAMES = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """How a column becomes labels of rows, or of words where it holds lists. `names` is None for plain numbers."""

    column: str
    kind: Literal["class", "string", "int", "float"]
    names: tuple[str, ...] | None = None

    @property
    def feature(self) -> Feature:
        """The schema's `label`: a class id, or a float32 target."""
        if self.kind == "float":
            return Feature(name="label", dtype="float32", shape=(), role="label", meaning="regression target")
        return Feature(name="label", dtype="int64", shape=(), role="label", meaning="class id")


def plan_label(column: str, found: Column, *, lists: bool = False) -> LabelPlan:
    """The labels as a split has them, in lists or not; what names its strings have is found out by `named`.

    Raises: ColumnError if the column can be no label.
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
        f"label column {column!r} holds {shown(kind)}, expected class labels, strings, or numbers",
        remedy="choose another --label-column, or keep a vector with --keep-column",
    )


def named(plan: LabelPlan, *, source: Source) -> LabelPlan:
    """The plan with the names of its strings: those of every split of the dataset, sorted, so that ids are the same
    whichever splits are asked for.

    Raises: ColumnError if there are too many for names of classes; SourceError if one is not UTF-8.
    """
    if plan.kind != "string":
        return plan
    found: set[str] = set()
    for split in source.all_splits.values():
        for values in _texts_in(plan.column, split=split, schema=source.columns_of(split).arrow_schema):
            found.update(strings(pc.unique(values).drop_null(), plan.column))
            if len(found) > MAX_LABEL_NAMES:
                raise ColumnError(
                    f"label column {plan.column!r} has more than {MAX_LABEL_NAMES} distinct strings, "
                    "expected class names",
                    remedy="choose another --label-column",
                )
    return dataclasses.replace(plan, names=tuple(sorted(found)))


def mark_label(reasons: np.ndarray, column: pa.Array, label: LabelPlan) -> None:
    """Marks the rows whose label cannot be used."""
    if label.kind == "string":
        mark(reasons, _unknown(column, label), "label_unknown")
    elif label.kind in ("class", "int") and not pa.types.is_boolean(column.type):
        low, high = (0, len(label.names or ()) - 1) if label.kind == "class" else INT32
        mark(reasons, outside(column, low, high), "label_out_of_range" if label.kind == "class" else "int_out_of_range")
    elif label.kind == "float":
        mark(reasons, overflows(column), "float_out_of_range")
    mark(reasons, nulls(column), "label_null")


def mark_tags(reasons: np.ndarray, words: pa.Array, tags: pa.Array, plan: LabelPlan) -> None:
    """Marks the rows whose tags, or whose words, cannot be used. Null lists are another matter."""
    values, owners = tags.flatten(), _owners(tags)
    if plan.kind == "string":
        mark(reasons, owners[_unknown(values, plan)], "tag_unknown")
    else:
        high = len(plan.names or ()) - 1 if plan.kind == "class" else INT32[1]
        mark(reasons, owners[outside(values, 0, high)], "tag_out_of_range")
    mark(reasons, owners[nulls(values)], "tag_null")
    mark(reasons, _owners(words)[nulls(words.flatten())], "word_null")
    mark(reasons, list_lengths(words) != list_lengths(tags), "tags_length")


def label_values(column: pa.Array, label: LabelPlan) -> np.ndarray:
    """The labels of usable rows: int64 [N], or float32 [N]."""
    if label.kind == "string":
        column = pc.index_in(column, value_set=pa.array(label.names or (), type=column.type))
    dtype = np.float32 if label.kind == "float" else np.int64
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(dtype)


def tag_values(column: pa.Array, plan: LabelPlan) -> np.ndarray:
    """The labels of all words of usable rows, one row after the other, int64 [W]."""
    return label_values(column.flatten(), plan)


def mark(reasons: np.ndarray, where: np.ndarray, reason: str) -> None:
    """Gives the rows `where` (bool [N], or indices) that reason."""
    reasons[where] = reason


def nulls(column: pa.Array) -> np.ndarray:
    """Bool [N]: what is null or NaN."""
    return np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), dtype=bool)


def outside(column: pa.Array, low: int, high: int) -> np.ndarray:
    """Bool [N]: integers below `low` or above `high`; not nulls."""
    values = column.fill_null(0 if low <= 0 <= high else low).to_numpy(zero_copy_only=False)
    # Python integers compare with any NumPy integer type without wrapping.
    return np.asarray((values > high) | ((values < low) if values.dtype.kind != "u" else False))


def overflows(column: pa.Array) -> np.ndarray:
    """Bool [N]: finite numbers that are infinite as float32."""
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.isinf(values.astype(np.float32)) & ~np.isinf(values)


def strings(column: pa.Array, name: str) -> list[str]:
    """The texts of a column. Raises: SourceError if one is not UTF-8."""
    try:
        values: list[str] = column.to_pylist()
    except UnicodeDecodeError as error:
        # Arrow files and JSON lines are taken without a look at what their strings hold.
        raise SourceError(f"column {name!r}: {error.object[:40]!r} is not UTF-8", remedy=to_utf8(b"")) from error
    return values


def is_text(kind: pa.DataType) -> bool:
    """Whether values of that type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def shown(kind: pa.DataType) -> str:
    """The type as errors name it."""
    # What `datasets` makes of a JSON column whose values are of several types.
    return "JSON values of several types" if str(kind) == "extension<arrow.json>" else str(kind)


def _texts_in(column: str, *, split: SplitSource, schema: pa.Schema) -> Iterator[pa.Array]:
    """The column of a split, or what its lists hold, batch by batch, if these are texts."""
    kind = schema.field(column).type if column in schema.names else pa.null()
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_text(kind.value_type if lists else kind):
        for _, batch in split.read(split.ranges, [column]):
            yield batch.column(0).flatten() if lists else batch.column(0)


def _unknown(column: pa.Array, plan: LabelPlan) -> np.ndarray:
    known = pc.is_in(column, value_set=pa.array(plan.names or (), type=column.type))
    return np.asarray(~known.to_numpy(zero_copy_only=False))


def list_lengths(column: pa.Array) -> np.ndarray:
    """How many values each list has, int64 [N]; 0 for null."""
    return np.asarray(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _owners(column: pa.Array) -> np.ndarray:
    """For each value in the lists the index of its row."""
    return np.repeat(np.arange(len(column)), list_lengths(column))
