"""From a record batch of the source to what the layouts take: texts, label ids, kept columns; and the rows that
cannot be used.

Which rows are rejected, and why, follows from the columns alone, row by row:

    text_null           a text is null
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
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare import data_files
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.sources import Source, SplitSource
from tfrecord_io.errors import ColumnError, SourceError
from tfrecord_io.schema import Feature

__all__ = ["ColumnPlan", "Inputs", "LabelPlan", "Purpose", "Rows", "extract", "plan_columns", "sizes_of", "validate"]

INT32 = (-(2**31), 2**31 - 1)
MAX_LABEL_NAMES = 10_000

# What a layout takes a nested column for.
Purpose = Literal["messages", "tools", "words", "tags", "answers"]

Plan = TypeVar("Plan")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """How the label column becomes a feature. `names` is None for plain numbers."""

    column: str
    kind: Literal["class", "string", "int", "float"]
    names: tuple[str, ...] | None = None

    @property
    def feature(self) -> Feature:
        """The schema's `label`: a class id, or a float32 target."""
        if self.kind == "float":
            return Feature(name="label", dtype="float32", shape=(), role="label", meaning="regression target")
        return Feature(name="label", dtype="int64", shape=(), role="label", meaning="class id")


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
    (no nulls at the top), and arrays [N, ...] by feature name.
    """

    texts: tuple[pa.Array, ...]
    arrays: dict[str, np.ndarray]
    nested: Mapping[Purpose, pa.Array] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter((*self.texts, *self.nested.values()))))

    def take(self, which: np.ndarray) -> Rows:
        """The rows with the indices `which`, without `arrays`."""
        indices = pa.array(which)
        return Rows(
            texts=tuple(column.take(indices) for column in self.texts),
            arrays={},
            nested={purpose: column.take(indices) for purpose, column in self.nested.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of several batches as one, without `arrays`."""
        return cls(
            texts=tuple(pa.concat_arrays(column) for column in zip(*(part.texts for part in parts), strict=True)),
            arrays={},
            nested={purpose: pa.concat_arrays([part.nested[purpose] for part in parts]) for purpose in parts[0].nested},
        )


def plan_columns(config: SourceConfig, source: Source, *, inputs: Inputs | None = None) -> ColumnPlan:
    """Finds out what each column is; `inputs` are to become tokens, without them the text columns.

    Raises: ColumnError if a column is missing in a split, or cannot be what it is to be used as.
    """
    splits = tuple(source.splits)
    inputs = inputs or Inputs(texts=config.text_columns)
    for split in splits:
        _require(config, source=source, split=split, inputs=inputs)
    labels = {split: _plan_label(config.label_column, source=source, split=split) for split in splits}
    if source.identity["kind"] in data_files.SEPARATORS:
        for name in filter(None, (config.label_column, *config.keep_columns)):
            _refuse_gaps(name, source=source)
    return ColumnPlan(
        texts=inputs.texts,
        nested=inputs.nested,
        label=_named(_same(labels, column=config.label_column, source=source), source=source),
        kept=tuple(
            _same({split: _plan_kept(name, source=source, split=split) for split in splits}, column=name, source=source)
            for name in config.keep_columns
        ),
    )


def validate(batch: pa.RecordBatch, plan: ColumnPlan) -> np.ndarray:
    """The reason for which each row cannot be used, as an object array of str; '' where it can. Reads no text."""
    reasons = np.full(batch.num_rows, "", dtype=object)
    for feature in reversed(plan.kept):
        _mark_kept(reasons, batch.column(feature.name), feature)
    if plan.label is not None:
        _mark_label(reasons, batch.column(plan.label.column), plan.label)
    for purpose, name in plan.nested.items():
        _mark(reasons, _nulls(batch.column(name)), f"{purpose}_null")
    for name in plan.texts:
        _mark(reasons, _nulls(batch.column(name)), "text_null")
    return reasons


def extract(batch: pa.RecordBatch, plan: ColumnPlan) -> tuple[Rows, np.ndarray]:
    """The usable rows, and the reasons that `validate` gives for all of them."""
    reasons = validate(batch, plan)
    if reasons.any():
        batch = batch.filter(pa.array(reasons == ""))
    arrays: dict[str, np.ndarray] = {}
    if plan.label is not None:
        arrays["label"] = _label_values(batch.column(plan.label.column), plan.label)
    for feature in plan.kept:
        arrays[feature.name] = _kept_values(batch.column(feature.name), feature)
    rows = Rows(
        texts=tuple(_utf8(batch.column(name), name) for name in plan.texts),
        arrays=arrays,
        nested={purpose: _utf8(batch.column(name), name) for purpose, name in plan.nested.items()},
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
    if _is_text(column.type):
        return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_struct(column.type):
        parts = [_text_sizes(column.field(index)) for index in range(column.type.num_fields)]
        return np.sum([np.zeros(len(column), np.int64), *parts], axis=0) * ~_nulls(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths)
        along = np.concatenate([[0], np.cumsum(_text_sizes(column.flatten()))])
        return np.asarray(along[ends] - along[ends - lengths])
    return np.zeros(len(column), np.int64)


def _require(config: SourceConfig, *, source: Source, split: str, inputs: Inputs) -> None:
    schema = source.features[split].arrow_schema
    wanted = (*inputs.names, *([config.label_column] if config.label_column else []), *config.keep_columns)
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise ColumnError(
            f"split {split!r} has no column {', '.join(map(repr, missing))}",
            remedy=f"choose among its columns: {', '.join(schema.names)}",
        )
    if repeated := sorted({name for name in wanted if schema.names.count(name) > 1}):
        raise ColumnError(f"split {split!r} has several columns named {repeated}", remedy="rename them in the source")
    for name in inputs.texts:
        if not _is_text(schema.field(name).type):
            raise ColumnError(
                f"split {split!r}: column {name!r} holds {_shown(schema.field(name).type)}, expected text",
                remedy=f"choose a text column with --text-column: {_listing(schema, _is_text)}",
            )
    for purpose, name in inputs.nested.items():
        fits, expected = _NESTED[purpose]
        if not fits(schema.field(name).type):
            raise ColumnError(
                f"split {split!r}: column {name!r} holds {_shown(schema.field(name).type)}, expected {expected}",
                remedy=f"choose another --{purpose}-column: {_listing(schema, fits)}",
            )


def _refuse_gaps(name: str, *, source: Source) -> None:
    """In a CSV file an empty cell makes floats of a column of integers: classes would become regression targets, and
    large numbers would be rounded.
    """
    for split in source.splits:
        is_float = pa.types.is_floating(source.features[split].arrow_schema.field(name).type)
        if is_float and _has_whole_numbers_and_gaps(name, split=source.all_splits[split]):
            raise ColumnError(
                f"column {name!r} in split {split!r} holds whole numbers and empty cells, which `datasets` reads "
                "as floats, expected integers or fractions",
                remedy="fill the empty cells, or convert the files to Parquet with the type that is meant",
            )


def _has_whole_numbers_and_gaps(name: str, *, split: SplitSource) -> bool:
    has_numbers = has_gaps = False
    for _, batch in split.read(split.ranges, [name]):
        values = batch.column(0).drop_null().to_numpy(zero_copy_only=False)
        if not np.all(np.isfinite(values) & (values == np.floor(values))):
            return False
        has_numbers |= bool(len(values))
        has_gaps |= len(values) < batch.num_rows
    return has_numbers and has_gaps


def _same(plans: Mapping[str, Plan], *, column: str | None, source: Source) -> Plan:
    """What all splits have in common: one dataset has one schema."""
    (first, plan), *others = plans.items()
    for split, other in others:
        if other != plan:
            held, otherwise = (source.features[name].get(column) for name in (first, split))
            raise ColumnError(
                f"column {column!r} in split {first!r} is {held}, in {split!r} {otherwise}, expected the same in both",
                remedy="build them one at a time with --split and --output, or bring the column into one form",
            )
    return plan


def _plan_label(column: str | None, *, source: Source, split: str) -> LabelPlan | None:
    """The label as the split has it; what names its strings have is found out later."""
    if column is None:
        return None
    kind = source.features[split].arrow_schema.field(column).type
    names = getattr(source.features[split][column], "names", None)
    if names is not None:
        return LabelPlan(column=column, kind="class", names=tuple(names))
    if _is_text(kind):
        return LabelPlan(column=column, kind="string")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return LabelPlan(column=column, kind="int")
    if pa.types.is_floating(kind):
        return LabelPlan(column=column, kind="float")
    raise ColumnError(
        f"label column {column!r} holds {_shown(kind)}, expected class labels, strings, or numbers",
        remedy="choose another --label-column, or keep a vector with --keep-column",
    )


def _named(label: LabelPlan | None, *, source: Source) -> LabelPlan | None:
    if label is None or label.kind != "string":
        return label
    return dataclasses.replace(label, names=_distinct(label.column, source=source))


def _distinct(column: str, *, source: Source) -> tuple[str, ...]:
    """The label strings of every split of the dataset, sorted: the same ids whichever splits are asked for."""
    found: set[str] = set()
    for name, split in source.all_splits.items():
        schema = source.features[name].arrow_schema
        if column not in schema.names or not _is_text(schema.field(column).type):
            continue
        for _, batch in split.read(split.ranges, [column]):
            found.update(_strings(pc.unique(batch.column(0)).drop_null(), column))
            if len(found) > MAX_LABEL_NAMES:
                raise ColumnError(
                    f"label column {column!r} has more than {MAX_LABEL_NAMES} distinct strings, expected class names",
                    remedy="choose another --label-column",
                )
    return tuple(sorted(found))


def _plan_kept(name: str, *, source: Source, split: str) -> Feature:
    schema = source.features[split].arrow_schema
    kind = schema.field(name).type
    shape: tuple[int, ...] = ()
    if pa.types.is_fixed_size_list(kind):
        kind, shape = kind.value_type, (kind.list_size,)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, shape = kind.value_type, (_first_length(name, split=source.splits[split]),)
    if pa.types.is_floating(kind):
        return Feature(name=name, dtype="float32", shape=shape, role="column", meaning="column of the source")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return Feature(name=name, dtype="int64", shape=shape, role="column", meaning="column of the source")
    raise ColumnError(
        f"column {name!r} holds {_shown(schema.field(name).type)}, "
        "expected numbers or vectors of numbers of one length",
        remedy=f"leave --keep-column {name} out, or keep one of: {_listing(schema, _is_number)}",
    )


def _first_length(name: str, *, split: SplitSource) -> int:
    for _, batch in split.read(split.ranges, [name]):
        for length in pc.list_value_length(batch.column(0)).drop_null().to_pylist():
            if length > 0:
                return int(length)
    raise ColumnError(f"column {name!r} has no vector of at least one value", remedy=f"leave --keep-column {name} out")


def _strings(column: pa.Array, name: str) -> list[str]:
    try:
        values: list[str] = column.to_pylist()
    except UnicodeDecodeError as error:
        # Arrow files and JSON lines are taken without a look at what their strings hold.
        raise SourceError(
            f"column {name!r}: {error.object[:40]!r} is not UTF-8", remedy="convert the source's texts to UTF-8"
        ) from error
    return values


def _utf8(column: pa.Array, name: str) -> pa.Array:
    """The column itself. Raises: SourceError if a text in it is not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        _strings(column, name)  # says which
        raise
    return column


def _mark(reasons: np.ndarray, where: np.ndarray, reason: str) -> None:
    reasons[where] = reason


def _nulls(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), dtype=bool)


def _mark_label(reasons: np.ndarray, column: pa.Array, label: LabelPlan) -> None:
    if label.kind == "string":
        known = pc.is_in(column, value_set=pa.array(label.names or (), type=column.type))
        _mark(reasons, ~known.to_numpy(zero_copy_only=False), "label_unknown")
    elif label.kind in ("class", "int") and not pa.types.is_boolean(column.type):
        low, high = (0, len(label.names or ()) - 1) if label.kind == "class" else INT32
        _mark(
            reasons, _outside(column, low, high), "label_out_of_range" if label.kind == "class" else "int_out_of_range"
        )
    elif label.kind == "float":
        _mark(reasons, _overflows(column), "float_out_of_range")
    _mark(reasons, _nulls(column), "label_null")


def _outside(column: pa.Array, low: int, high: int) -> np.ndarray:
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    # Python integers compare with any NumPy integer type without wrapping.
    return np.asarray((values > high) | ((values < low) if values.dtype.kind != "u" else False))


def _overflows(column: pa.Array) -> np.ndarray:
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.isinf(values.astype(np.float32)) & ~np.isinf(values)


def _mark_kept(reasons: np.ndarray, column: pa.Array, feature: Feature) -> None:
    values = column
    if feature.shape:
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        _mark(reasons, lengths != feature.shape[0], "column_length")
        values = column.flatten()
        owners = np.repeat(np.arange(len(column)), np.where(_nulls(column), 0, lengths))
    else:
        owners = np.arange(len(column))
    if feature.dtype == "int64" and not pa.types.is_boolean(values.type):
        _mark(reasons, owners[_outside(values, *INT32)], "int_out_of_range")
    elif feature.dtype == "float32":
        _mark(reasons, owners[_overflows(values)], "float_out_of_range")
    _mark(reasons, owners[np.asarray(values.is_null().to_numpy(zero_copy_only=False), dtype=bool)], "column_null")
    _mark(reasons, np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool), "column_null")


def _label_values(column: pa.Array, label: LabelPlan) -> np.ndarray:
    if label.kind == "string":
        column = pc.index_in(column, value_set=pa.array(label.names or (), type=column.type))
    dtype = np.float32 if label.kind == "float" else np.int64
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(dtype)


def _kept_values(column: pa.Array, feature: Feature) -> np.ndarray:
    values = column.flatten() if feature.shape else column
    dtype = np.float32 if feature.dtype == "float32" else np.int64
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(dtype).reshape(len(column), *feature.shape)


def _shown(kind: pa.DataType) -> str:
    # What `datasets` makes of a JSON column whose values are of several types.
    return "JSON values of several types" if str(kind) == "extension<arrow.json>" else str(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list_of(fits: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and fits(kind.value_type))


def _is_struct_with(**fields: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(
        pa.types.is_struct(kind)
        and all(kind.get_field_index(name) >= 0 and fits(kind.field(name).type) for name, fits in fields.items())
    )


# What each nested column has to be, in code and in words.
_NESTED: dict[Purpose, tuple[Callable[[pa.DataType], bool], str]] = {
    "messages": (_is_list_of(_is_struct_with(role=_is_text)), "lists of messages with a role and a content"),
    "tools": (lambda kind: True, "tools"),
    "words": (_is_list_of(_is_text), "lists of words"),
    "tags": (_is_list_of(lambda kind: _is_text(kind) or pa.types.is_integer(kind)), "lists of class ids or strings"),
    "answers": (
        _is_struct_with(text=_is_list_of(_is_text), answer_start=_is_list_of(pa.types.is_integer)),
        "answers with lists of text and answer_start",
    ),
}


def _listing(schema: pa.Schema, accepts: Callable[[pa.DataType], bool]) -> str:
    return ", ".join(field.name for field in schema if accepts(field.type)) or "none of its columns fits"
