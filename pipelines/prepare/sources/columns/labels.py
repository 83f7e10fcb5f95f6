"""Plan, validate and convert the labels of rows, and the tags of words.

    column holds                LabelPlan.kind, class names
    ClassLabel(no, yes)         class, names from the feature
    "no", "yes"                 string, names sorted over all splits
    False, True                 class, with these names
    3, 7                        int, no names
    3, 7 with --label-classes   number, names "3", "7"
    0.5                         float, no names (rows only)
    ["b"], ["a", "b"]           string, several per row
    [7], [3, 7]                 number, several per row
    [0, 1], [1, 1]              hot: vectors of one length
    List(ClassLabel(O, PER))    class, one per word

In `datasets`, a class id of -1 means "no label". docs/reference/difficult-data.md has the rule for --label-classes.
"""

import collections
import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.suggestions import listing, to_utf8
from pipelines.prepare.sources.columns.messages import is_json
from pipelines.prepare.sources.parquet.stored_columns import is_list
from pipelines.prepare.sources.resolve.features import Columns
from pipelines.prepare.sources.rows.reading import Source
from tfrecord_io.errors import ColumnError, SourceError
from tfrecord_io.schema import UNLABELLED, Feature

_log = logging.getLogger(__name__)

INT32 = (-(2**31), 2**31 - 1)
MAX_LABEL_NAMES = 10_000
_NUMBER = r"(?i)\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """Conversion of a column to labels of rows or tags of words. `kind`: see the module.

    `names`: class names; None for plain numbers, and until `with_names` has read the rows. `several`: each row has a
    list of classes, which becomes a vector of 0 and 1. `size`: length of the vectors of kind `hot`.
    """

    column: str
    kind: Literal["class", "string", "number", "int", "float", "hot"]
    names: tuple[str, ...] | None = None
    several: bool = False
    size: int = 0

    @property
    def from_rows(self) -> bool:
        """Return whether the classes must be collected from the rows."""
        return self.kind in ("string", "number")

    @property
    def feature(self) -> Feature:
        """Feature `label` of the output: a class id, a 0 or 1 for each class, or a float32 target."""
        shape = (self.size or len(self.names or ()),) if self.several else ()
        if self.kind == "float":
            return Feature(name="label", dtype="float32", shape=shape, role="label", meaning="regression target")
        meaning = "1 for classes of the row" if self.several else "class id"
        return Feature(name="label", dtype="int64", shape=shape, role="label", meaning=meaning)

    @property
    def value_set(self) -> pa.Array:
        """Array of the classes' values in the source, indexed by class id."""
        names = self.names or ()
        return pa.array(names, pa.string()) if self.kind == "string" else pa.array(map(int, names), pa.int64())


def plan_label(name: str, columns: Columns, *, tags: bool = False, classes: bool = False) -> LabelPlan:
    """Plan the conversion of the label column `name`. If its classes come from rows, `with_names` adds them.

    `tags`: the column has a list of tags per row, one per word. `classes`: each distinct number is a class. Raises:
    ColumnError.
    """
    column = columns[name]
    several = is_list(column.kind) and not tags
    kind = column.kind.value_type if tags or several else column.kind
    if column.classes is not None:
        return LabelPlan(column=name, kind="class", names=column.classes, several=several)
    if is_text(kind):
        return LabelPlan(column=name, kind="string", several=several)
    if pa.types.is_boolean(kind) and not several:
        return LabelPlan(column=name, kind="class", names=("False", "True"))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        plain: Literal["int", "float"] = "float" if pa.types.is_floating(kind) else "int"
        return LabelPlan(column=name, kind="number" if several or classes else plain, several=several)
    raise ColumnError(
        f"label column {name!r} holds {type_name(kind)}, expected class labels, strings or numbers, or lists of them",
        remedy="choose another --label-column, or keep a vector with --keep-column",
    )


def with_names(plan: LabelPlan, *, source: Source) -> LabelPlan:
    """Read the labels of all rows; return the plan with their classes, or with the length of their vectors of 0 and 1.

    Classes are sorted over all splits, so ids don't depend on the requested splits. Raises: ColumnError for over 10,000
    classes, lists without any class, fractions, or vectors of different lengths; SourceError for invalid UTF-8.
    """
    if not plan.from_rows:
        return plan
    distinct, lengths = set[Any](), set[int]()
    by_split = collections.defaultdict[str, set[Any]](set)
    for split, column in _columns_in(plan, source):
        if is_list(column.type):
            lengths.update(pc.unique(pc.list_value_length(column)).drop_null().to_pylist())
        by_split[split].update(_distinct(items_of(column)[0], plan))
        distinct |= by_split[split]
        if len(distinct) > MAX_LABEL_NAMES:
            raise ColumnError(
                f"label column {plan.column!r} has more than {MAX_LABEL_NAMES:,} distinct {plan.kind}s, too "
                "many for classes",
                remedy="choose another --label-column",
            )
    only_unlabelled = {values == {UNLABELLED} for values in by_split.values() if UNLABELLED in values}
    if only_unlabelled == {True} and not plan.several and min(distinct) == UNLABELLED < max(distinct):
        distinct.remove(UNLABELLED)
    if plan.several and not distinct:
        raise ColumnError(f"label column {plan.column!r} lists no class", remedy="choose another --label-column")
    # A list of classes has no repeats, so lists of 0 and 1 are vectors if one has over two items, or all have two.
    if plan.several and distinct <= {0, 1} and (max(lengths) > 2 or lengths == {2}):
        if len(lengths) > 1 or max(lengths) > MAX_LABEL_NAMES:
            listed = ", ".join(map(str, sorted(lengths)[:5]))
            raise ColumnError(
                f"label column {plan.column!r} holds vectors of zeros and ones with the lengths {listed}, "
                f"expected one length up to {MAX_LABEL_NAMES:,}",
                remedy="make all vectors equally long, or list the class ids of each row instead",
            )
        return dataclasses.replace(plan, kind="hot", size=lengths.pop())
    names = tuple(map(str, sorted(distinct)))
    for note in _notes_on(names) if plan.kind == "string" else ():
        _log.warning("column %r: %s", plan.column, note)
    return dataclasses.replace(plan, names=names)


def _notes_on(names: Sequence[str]) -> Iterator[str]:
    are_ids = all(name.strip().isdecimal() for name in names)
    if all(re.fullmatch(r"\s*\[.*\]\s*", name, re.DOTALL) for name in names) and names:
        yield (
            f"its labels are lists written as text, such as {names[0]!r}, so each distinct list is one class; for "
            "several classes per row, parse the lists with a --map, or store the column in JSON or Parquet"
        )
    elif all(re.fullmatch(_NUMBER, name) for name in names) and not are_ids:
        yield (
            f"its labels are numbers written as text, such as {names[0]!r}, so each distinct number is a class; "
            "to predict numbers, convert the column with a --map"
        )
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    if groups := [" and ".join(map(repr, spellings)) for spellings in alike.values() if len(spellings) > 1]:
        yield f"classes differ only by blanks or case: {listing(groups)}; spell each class in one way with a --map"
    if "" in alike:
        yield "an empty text is a class; leave such rows out with a --filter, or give them a label with a --map"


def _distinct(values: pa.Array, plan: LabelPlan) -> list[Any]:
    distinct = pc.unique(values).drop_null()
    if plan.kind == "string":
        return decode_texts(distinct, plan.column)
    numbers = [number for number in distinct.to_pylist() if number == number]  # drops NaN
    if odd := next((number for number in numbers if number % 1 or abs(number) >= 2**63), None):
        raise ColumnError(
            f"label column {plan.column!r} holds {odd}, expected classes: whole numbers (int64), or vectors of zeros "
            "and ones",
            remedy="leave --label-classes out to train on numbers; keep vectors with --keep-column",
        )
    return [int(number) for number in numbers]


def reject_labels(reasons: np.ndarray, column: pa.Array, label: LabelPlan) -> None:
    """Write a reason such as "label_null" into `reasons`, object [N], for each of N rows with an unusable label."""
    values, owners = items_of(column)
    if label.kind == "hot":
        reasons[owners[outside_range(_comparable(values), 0, 1)]] = "label_out_of_range"
        reasons[list_lengths(column) != label.size] = "label_length"
    elif label.from_rows:
        unknown = _unknown(values, label)
        if label.kind == "number" and not label.several:
            unknown &= np.asarray(_comparable(values).fill_null(0)) != UNLABELLED
        reasons[owners[unknown]] = "label_unknown"
    elif label.kind in ("class", "int") and not pa.types.is_boolean(values.type):
        least = 0 if label.several else UNLABELLED
        low, high = (least, len(label.names or ()) - 1) if label.kind == "class" else INT32
        reason = "label_out_of_range" if label.kind == "class" else "int_out_of_range"
        reasons[owners[outside_range(values, low, high)]] = reason
    elif label.kind == "float":
        reasons[overflows_float32(values)] = "float_out_of_range"
    reasons[owners[null_mask(values)]] = "label_null"
    reasons[null_mask(column)] = "label_null"


def reject_tags(reasons: np.ndarray, words: pa.Array, tags: pa.Array, plan: LabelPlan) -> None:
    """Write a reason such as "tag_null" into `reasons`, object [N], for each of N rows with unusable tags or words."""
    values, owners = items_of(tags)
    if plan.kind == "string":
        reasons[owners[_unknown(values, plan)]] = "tag_unknown"
    else:
        high = len(plan.names or ()) - 1 if plan.kind == "class" else INT32[1]
        reasons[owners[outside_range(values, 0, high)]] = "tag_out_of_range"
    reasons[owners[null_mask(values)]] = "tag_null"
    items, of_items = items_of(words)
    reasons[of_items[null_mask(items)]] = "word_null"
    reasons[list_lengths(words) != list_lengths(tags)] = "tags_length"


def label_values(column: pa.Array, label: LabelPlan) -> np.ndarray:
    """Return the labels of N usable rows: int64 or float32 [N], or uint8 [N, C] if a row may have several of C classes.

    For word tags, return the tags of all W words, int64 [W].
    """
    values, owners = items_of(column)
    if label.from_rows:
        values = pc.index_in(_comparable(values), value_set=label.value_set).fill_null(UNLABELLED)
    dtype = np.float32 if label.kind == "float" else np.int64
    labels = np.asarray(values).astype(dtype)
    if not label.several:
        return labels
    if label.kind == "hot":
        return labels.astype(np.uint8).reshape(len(column), label.size)
    has_class = np.zeros((len(column), *label.feature.shape), np.uint8)
    has_class[owners, labels] = 1
    return has_class


def null_mask(column: pa.Array) -> np.ndarray:
    """Return which of N values are null or NaN, bool [N]."""
    return np.asarray(column.is_null(nan_is_null=True), dtype=bool)


def outside_range(column: pa.Array, low: int, high: int) -> np.ndarray:
    """Return which of N integers are below `low` or above `high`, bool [N]; False for nulls."""
    values = np.asarray(column.fill_null(0 if low <= 0 <= high else low))
    # Comparisons with Python integers don't wrap around, whatever the NumPy type.
    return np.asarray((values > high) | ((values < low) if values.dtype.kind != "u" else False))


def overflows_float32(column: pa.Array) -> np.ndarray:
    """Return which of N numbers are finite, but infinite as float32, bool [N]."""
    values = np.asarray(column.fill_null(0))
    with np.errstate(over="ignore"):
        return np.isinf(values.astype(np.float32)) & ~np.isinf(values)


def decode_texts(column: pa.Array, name: str) -> list[str]:
    """Return the texts of the column `name` as a list. Raises: SourceError if one is not UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        raise SourceError(f"column {name!r}: {error.object[:40]!r} is not UTF-8", remedy=to_utf8(b"")) from error


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def type_name(kind: pa.DataType) -> str:
    return "JSON values of several types" if is_json(kind) else str(kind)


def _columns_in(plan: LabelPlan, source: Source) -> Iterator[tuple[str, pa.Array]]:
    for split in source.all_splits.values():
        schema = source.columns_of(split).arrow_schema
        kind = schema.field(plan.column).type if plan.column in schema.names else pa.null()
        kind = kind.value_type if is_list(kind) else kind
        if is_text(kind) if plan.kind == "string" else pa.types.is_primitive(kind) and not pa.types.is_null(kind):
            for _, batch in split.read(split.ranges, [plan.column]):
                yield split.name, batch.column(0)


def _comparable(values: pa.Array) -> pa.Array:
    if is_text(values.type):
        return values.cast(pa.string())
    if not pa.types.is_floating(values.type):
        return values.cast(pa.int64(), safe=False)
    # Fractions become -2^63, which is not a class id.
    numbers = np.asarray(values.fill_null(0.5))
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)
    return pa.array(np.where(whole, numbers, -(2.0**63)).astype(np.int64))


def _unknown(column: pa.Array, plan: LabelPlan) -> np.ndarray:
    return ~np.asarray(pc.is_in(_comparable(column), value_set=plan.value_set))


def list_lengths(column: pa.Array) -> np.ndarray:
    """Return the length of each of N lists, int64 [N]; 0 for a null list."""
    return np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)


def items_of(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column's values, or the joined items if it holds lists, and the row index of each, int64."""
    if not is_list(column.type):
        return column, np.arange(len(column))
    return column.flatten(), np.repeat(np.arange(len(column)), list_lengths(column))
