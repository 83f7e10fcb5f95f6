"""What each column is taken for, which rows are refused and why, and that none of it depends on how Arrow cut them."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.column_planning import plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan, extract, text_bytes_of, validate
from pipelines.prepare.sources.columns.labels import LabelPlan
from tests.building import opened
from tests.support.columns import _batch, _source, dataset, planned, run
from tfrecord_io.errors import ColumnError, SourceError
from tfrecord_io.schema import Feature

BIG = 2**31
INT = pa.int64()
FAR = "int_out_of_range"
HALVES = pa.array([np.float16(0.5), None, np.float16("nan"), np.float16("inf")], pa.float16())
# A null vector may hide values.
HIDDEN = pa.ListArray.from_arrays(
    pa.array([0, 2, 4, 6], pa.int32()), pa.array([1, BIG, 3, None, 5, 6]), mask=pa.array([True, True, False])
)


def _label(kind: Any, *, names: tuple[str, ...] | None = None) -> ColumnPlan:
    return ColumnPlan(texts=("text",), label=LabelPlan(column="label", kind=kind, names=names))


def _kept(dtype: Any, *shape: int) -> ColumnPlan:
    return ColumnPlan(texts=("text",), kept=(Feature(name="kept", dtype=dtype, shape=shape, role="column"),))


def test_sizes_are_utf8_bytes_of_all_texts_together() -> None:
    batch = _batch(a=pa.array(["é", None, "abc"]), b=pa.array(["xy", "z", ""], pa.large_string()))
    assert text_bytes_of(batch, ("a", "b")).tolist() == [4, 1, 3]
    assert text_bytes_of(batch.slice(1), ("a", "b")).tolist() == [1, 3]


def test_text_that_is_not_utf8_is_an_error_that_names_the_column() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 3], np.int32))
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfea")])
    with pytest.raises(SourceError, match=r"column 'text': b'\\xff\\xfe' is not UTF-8; convert"):
        extract(_batch(text=broken), ColumnPlan(texts=("text",)))


NO_TEXT = {"int64": [1, 2], "list": [[1], [2]], "null": [None, None], "binary": [b"a", b"b"]}
NO_LABEL = [[[[1]], [[2]]], [None, None], [{"a": 1}, {"a": 2}]]
NOT_KEPT = [[None], [[["nested"]]], [[[1]]], [{"a": 1}], [[]], [["a"]]]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        *(
            (
                {"body": ["a", "b"], "number": values},
                {"text_columns": ("number",)},
                rf"column 'number' holds {held}.*expected text.*--text-column: text, body",
            )
            for held, values in NO_TEXT.items()
        ),
        (
            {"x": [1]},
            {"text_columns": ("body",), "keep_columns": ("x", "y")},
            r"split 'train' has no column 'body', 'y'; choose among its columns: text, x",
        ),
        *(
            ({"label": values}, {"label_column": "label"}, r"holds .*expected class labels, strings or numbers")
            for values in NO_LABEL
        ),
        *(({"kept": values, "number": [1]}, {"keep_columns": ("kept",)}, "column 'kept' holds") for values in NOT_KEPT),
    ],
)
def test_a_column_that_cannot_be_what_it_is_named_for_is_refused(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ColumnError, match=words):
        planned(tmp_path / "d", dataset(**columns), **options)


@pytest.mark.parametrize(
    ("name", "content", "column", "advice"),
    [
        ("a.csv", "a,b\nx,y\n", "a,b", "name each column separately: --text-column a --text-column b"),
        ("a.csv", "text;label\nx;1\n", "text", "add --source-option delimiter=';': the header line has a single name"),
        ("a.csv", "text\tlabel\nx\t1\n", "text", "add --source-option delimiter='\\t': the header line"),
        (
            "a.csv",
            "good film,0\nbad,1\n",
            "text",
            """if the file has no header line, add --source-option names='["text", "label"]'""",
        ),
        ("a.json", '{"data": [{"text": "a"}]}', "text", "field=data: the rows seem to be inside 'data'"),
    ],
)
def test_a_missing_column_has_a_likely_cause(tmp_path: Path, name: str, content: str, column: str, advice: str) -> None:
    (tmp_path / name).write_text(content)
    config = SourceConfig(dataset=str(tmp_path / name), text_columns=(column,))
    with pytest.raises(ColumnError) as raised:
        plan_columns(config, opened(config))
    assert advice in raised.value.remedy


def test_a_column_that_one_split_lacks_is_an_error_that_names_the_split(tmp_path: Path) -> None:
    splits = {"train": dataset(label=[1]), "test": dataset(other=[1])}
    with pytest.raises(ColumnError, match=r"split 'test' has no column 'label'"):
        plan_columns(*_source(tmp_path / "d", splits, label_column="label"))


def test_class_labels_bring_their_names_and_minus_one_is_no_label(tmp_path: Path) -> None:
    made = dataset({"label": datasets.ClassLabel(names=["no", "yes"])}, label=[0, 1, -1, None])
    plan = planned(tmp_path / "d", made, label_column="label")
    assert plan.label == LabelPlan(column="label", kind="class", names=("no", "yes"))
    reasons, arrays = run(plan, label=pa.array([0, 1, -1, 2, -2, None]))
    assert reasons == ["", "", "", "label_out_of_range", "label_out_of_range", "label_null"]
    assert arrays == {"label": [0, 1, -1]}


@pytest.mark.parametrize("options", [{}, {"splits": ("test",)}, {"splits": ("train[:1]",)}, {"limit": 1}])
def test_string_labels_become_ids_in_sorted_order_over_all_splits(tmp_path: Path, options: dict[str, Any]) -> None:
    splits = {"train": dataset(label=["pos", "neg", None, "pos"]), "test": dataset(label=["mixed", "neg"])}
    plan = plan_columns(*_source(tmp_path / "d", splits, label_column="label", **options))
    assert plan.label == LabelPlan(column="label", kind="string", names=("mixed", "neg", "pos"))
    reasons, arrays = run(plan, label=pa.array(["pos", "neg", None, "new", "mixed"]))
    assert reasons == ["", "", "label_null", "label_unknown", ""]
    assert arrays == {"label": [2, 1, 0]}


def test_labels_of_the_splits_must_mean_the_same(tmp_path: Path) -> None:
    splits = {
        "train": dataset({"label": datasets.ClassLabel(names=["no", "yes"])}, label=[0]),
        "test": dataset({"label": datasets.ClassLabel(names=["yes", "no"])}, label=[0]),
    }
    config, source = _source(tmp_path / "d", splits, label_column="label")
    with pytest.raises(ColumnError, match=r"ClassLabel.*in split 'train', but ClassLabel.*in split 'test', expected"):
        plan_columns(config, source)


@pytest.mark.parametrize(
    ("values", "kind"), [([1, 2], "int"), ([True, False], "class"), ([0.5, 1.0], "float"), (["a", "b"], "string")]
)
def test_a_label_is_what_its_column_holds(tmp_path: Path, values: Sequence[Any], kind: str) -> None:
    plan = planned(tmp_path / "d", dataset(label=values), label_column="label")
    assert plan.label is not None
    assert plan.label.kind == kind
    assert plan.label.feature.dtype == ("float32" if kind == "float" else "int64")


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 2], "int64", ()),
        ([True, False], "int64", ()),
        ([0.5, 1.0], "float32", ()),
        ([[1, 2], [3, 4]], "int64", (2,)),
        ([[], None, [0.5, 1.0, 2.0]], "float32", (3,)),
    ],
)
def test_a_kept_column_has_one_dtype_and_shape(tmp_path: Path, values: Any, dtype: str, shape: tuple[int, ...]) -> None:
    (feature,) = planned(tmp_path / "d", dataset(kept=values), keep_columns=("kept",)).kept
    assert (feature.name, feature.dtype, feature.shape, feature.role) == ("kept", dtype, shape, "column")


# Values of each type: converted, or refused with a reason

INTEGERS = (pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64())
VALUES: list[tuple[ColumnPlan, pa.Array, list[str], list[Any]]] = [
    *((_label("int"), pa.array([3, None, 100], kind), ["", "label_null", ""], [3, 100]) for kind in INTEGERS),
    (_label("int"), pa.array([True, None, False]), ["", "label_null", ""], [1, 0]),
    (_label("int"), pa.array([BIG - 1, BIG, -BIG, -BIG - 1]), ["", FAR, "", FAR], [BIG - 1, -BIG]),
    (_label("int"), pa.array([2**64 - 1, 5], pa.uint64()), [FAR, ""], [5]),
    *(
        (_label("float"), HALVES.cast(kind), ["", "label_null", "label_null", ""], [0.5, math.inf])
        for kind in (pa.float16(), pa.float32(), pa.float64())
    ),
    (_label("float"), pa.array([1.5, 1e39, -1e300]), ["", "float_out_of_range", "float_out_of_range"], [1.5]),
    (_kept("float32"), pa.array([1.5, 1e39, None]), ["", "float_out_of_range", "column_null"], [1.5]),
    *((_kept("int64"), pa.array([1, None, 3], kind), ["", "column_null", ""], [1, 3]) for kind in INTEGERS),
    (_kept("int64"), pa.array([True, None]), ["", "column_null"], [1]),
    (_kept("int64", 2), pa.array([[True, False], [None, True]]), ["", "column_null"], [[1, 0]]),
    (_kept("int64"), pa.array([5, 2**63, None], pa.uint64()), ["", FAR, "column_null"], [5]),
    (_kept("int64", 2), pa.array([[1, -BIG - 1], [BIG - 1, -BIG]]), [FAR, ""], [[BIG - 1, -BIG]]),
    *(
        (
            _kept("int64", 2),
            pa.array([[1, 2], [3], [4, 5, 6], [], None, [7, None], [8, 9]], kind),
            ["", *["column_length"] * 3, *["column_null"] * 2, ""],
            [[1, 2], [8, 9]],
        )
        for kind in (pa.list_(INT), pa.large_list(INT))
    ),
    (
        _kept("int64", 2),
        pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(INT, 2)),
        ["", "column_null", "column_null", ""],
        [[1, 2], [4, 5]],
    ),
    (_kept("int64", 2), HIDDEN, ["column_null", "column_null", ""], [[5, 6]]),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "values", "reasons", "arrays"), VALUES)
def test_values_become_those_of_the_feature_or_have_a_reason(
    plan: ColumnPlan, values: pa.Array, reasons: list[str], arrays: list[Any]
) -> None:
    name = "label" if plan.label else "kept"
    assert run(plan, **{name: values}) == (reasons, {name: arrays})


def test_the_first_of_several_reasons_is_the_text_then_the_label_then_kept_columns_in_order() -> None:
    kept = tuple(Feature(name=name, dtype="int64", shape=(), role="column") for name in ("a", "b"))
    plan = ColumnPlan(texts=("text",), label=LabelPlan(column="label", kind="int"), kept=kept)
    batch = _batch(
        text=pa.array([None, "x", "x", "x"]),
        label=pa.array([None, None, 1, 1], INT),
        a=pa.array([None, None, BIG, 1], INT),
        b=pa.array([None, None, None, None], INT),
    )
    assert validate(batch, plan).tolist() == ["text_null", "label_null", "int_out_of_range", "column_null"]


# Slices: an Arrow array may be a window into a longer one

_NUMBERS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([BIG - 1, BIG, -BIG, -BIG - 1]))
_FLOATS = st.one_of(st.none(), st.floats(), st.sampled_from([1e39, math.nan]))
_FIXED = st.one_of(st.none(), st.lists(_NUMBERS, min_size=2, max_size=2))
_VECTORS = st.one_of(st.none(), st.lists(_FLOATS, max_size=3))
_LABELS = st.sampled_from(["a", "b", "z", None])
_ROW = st.tuples(st.one_of(st.none(), st.text(max_size=3)), _LABELS, _NUMBERS, _FLOATS, _FIXED, _VECTORS)
_ALL = ColumnPlan(
    texts=("text",),
    label=LabelPlan(column="label", kind="string", names=("a", "b")),
    kept=(
        Feature(name="number", dtype="int64", shape=(), role="column"),
        Feature(name="float", dtype="float32", shape=(), role="column"),
        Feature(name="fixed", dtype="int64", shape=(2,), role="column"),
        Feature(name="vector", dtype="float32", shape=(2,), role="column"),
    ),
)
_TYPES = [pa.string(), pa.large_string(), INT, pa.float64(), pa.list_(INT, 2), pa.list_(pa.float64())]
_NAMES = ("text", "label", "number", "float", "fixed", "vector")


@pytest.mark.slow
@given(rows=st.lists(_ROW, min_size=1, max_size=20), data=st.data())
def test_slices_give_what_the_whole_gives(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(list(values), kind) for values, kind in zip(columns, _TYPES, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, _NAMES)
    whole, reasons = extract(batch, _ALL)
    cuts = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=5))})
    parts = [extract(batch.slice(start, stop - start), _ALL) for start, stop in itertools.pairwise(cuts)]
    assert [reason for _, part in parts for reason in part] == reasons.tolist()
    assert [text for part, _ in parts for text in part.texts[0].to_pylist()] == whole.texts[0].to_pylist()
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(np.concatenate([part.arrays[name] for part, _ in parts]), values)
