"""Labels with classes that only the rows show: numbers as classes, lists of classes, and vectors of 0 and 1."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from pipelines.prepare.sources.columns.column_planning import plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.columns.labels import LabelPlan
from tests import building
from tests.support.columns import _source, dataset, planned, run
from tfrecord_io.errors import ColumnError

NAMES = datasets.ClassLabel(names=["x", "y", "z"])
BOOL, INT, FLOAT = (datasets.Value(name) for name in ("bool", "int64", "float32"))


def plan(folder: Path, labels: Sequence[Any], feature: Any = None, **options: Any) -> LabelPlan:
    made = dataset({"label": feature} if feature else None, label=labels)
    label = planned(folder / "source", made, label_column="label", **options).label
    assert label is not None
    return label


def extracted(label: LabelPlan, values: pa.Array) -> tuple[list[str], list[Any]]:
    reasons, arrays = run(ColumnPlan(texts=("text",), label=label), label=values)
    return reasons, arrays["label"]


@pytest.mark.parametrize(
    ("labels", "feature", "names", "multi_hot"),
    [
        ([["b"], ["a", "b"], []], None, ("a", "b"), [[0, 1], [1, 1], [0, 0]]),
        ([[70], [3, 70, 70]], None, ("3", "70"), [[0, 1], [1, 1]]),
        ([[1], [0, 1]], None, ("0", "1"), [[0, 1], [1, 1]]),
        ([[2.0], [5.0]], None, ("2", "5"), [[1, 0], [0, 1]]),
        ([[2], []], datasets.List(NAMES), ("x", "y", "z"), [[0, 0, 1], [0, 0, 0]]),
        ([[0, 1, 1], [1, 0, 0]], None, None, [[0, 1, 1], [1, 0, 0]]),
        ([[0.0, 1.0]], datasets.List(FLOAT, length=2), None, [[0, 1]]),
        ([[True, False, True]], datasets.List(BOOL), None, [[1, 0, 1]]),
    ],
)
def test_lists_become_0_and_1_for_each_class(
    tmp_path: Path, labels: list[Any], feature: Any, names: Any, multi_hot: list[list[int]]
) -> None:
    label = plan(tmp_path, labels, feature)
    assert (label.names, label.feature.shape, label.feature.role) == (names, (len(multi_hot[0]),), "label")
    kind = feature.pa_type if hasattr(feature, "pa_type") else None
    assert extracted(label, pa.array(labels, kind)) == ([""] * len(labels), multi_hot)


@pytest.mark.parametrize(
    ("labels", "cause"),
    [
        ([[0, 1, 1], [1, 0]], "vectors of zeros and ones with the lengths 2, 3, expected one length"),
        ([[0.5, 1.0]], r"holds 0.5, expected classes: whole numbers \(int64\), or vectors of zeros and ones"),
        ([[1e300]], r"holds 1e\+300, expected classes: whole numbers"),
        ([[], []], "lists no class"),
        ([[number] for number in range(10_001)], "more than 10,000 distinct numbers"),
    ],
)
def test_lists_that_are_no_classes_are_refused(tmp_path: Path, labels: list[Any], cause: str) -> None:
    with pytest.raises(ColumnError, match=cause):
        plan(tmp_path, labels, datasets.List(INT) if labels == [[], []] else None)


@pytest.mark.parametrize(
    ("label", "values", "reasons"),
    [
        (
            LabelPlan(column="label", kind="string", names=("a",), several=True),
            [["a"], ["b"], ["a", None], None],
            ["", "label_unknown", "label_null", "label_null"],
        ),
        (
            LabelPlan(column="label", kind="class", names=("a", "b"), several=True),
            [[1], [2], [-1]],
            ["", "label_out_of_range", "label_out_of_range"],
        ),
        (
            LabelPlan(column="label", kind="hot", size=2, several=True),
            [[0, 1], [1], [0, 2], [None, 1]],
            ["", "label_length", "label_out_of_range", "label_null"],
        ),
        (LabelPlan(column="label", kind="hot", size=2, several=True), [[0.0, 0.5]], ["label_out_of_range"]),
    ],
)
def test_rows_whose_lists_do_not_fit_get_a_reason(label: LabelPlan, values: list[Any], reasons: list[str]) -> None:
    assert extracted(label, pa.array(values))[0] == reasons


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64()])
def test_numbers_as_classes_are_numbered_in_their_order(tmp_path: Path, kind: pa.DataType) -> None:
    feature = datasets.Value("int64" if pa.types.is_integer(kind) else "float64")
    label = plan(tmp_path, [10, 5, 0, 5], feature, label_classes=True)
    assert label.names == ("0", "5", "10")
    assert extracted(label, pa.array([5, 0, 10, 7, None], kind)) == (
        ["", "", "", "label_unknown", "label_null"],
        [1, 0, 2],
    )


@pytest.mark.parametrize(
    ("train", "test", "names", "ids"),
    [
        ([0, 1], [-1], ("0", "1"), [0, 1, -1]),
        ([3, 5], [-1], ("3", "5"), [0, 1, -1]),
        ([-1, 1], [-1], ("-1", "1"), [0, 1, 0]),
        ([-2, 1], [-1], ("-2", "-1", "1"), [0, 2, 1]),
        ([-1], [-1], ("-1",), [0, 0]),
    ],
)
def test_minus_one_is_no_class_where_a_split_has_no_other_label(
    tmp_path: Path, train: list[int], test: list[int], names: tuple[str, ...], ids: list[int]
) -> None:
    splits = {"train": dataset(label=train), "test": dataset(label=test)}
    label = plan_columns(*_source(tmp_path / "d", splits, label_column="label", label_classes=True)).label
    assert label is not None
    assert (label.names, *extracted(label, pa.array(train + test))) == (names, [""] * len(ids), ids)


# Labels written as text, and the note about their classes.
WRITTEN: dict[str, tuple[list[str], str]] = {
    "lists": (["['comedy', 'drama']", "[]"], "are lists written as text"),
    "scores": (["3.5", "0.0", "2.75"], "are numbers written as text"),
    "case": (["pos", "Pos", "neg"], "differ only by blanks or case: 'Pos' and 'pos'"),
    "blanks": (["pos", "pos ", "p os"], "differ only by blanks or case: 'pos' and 'pos '"),
    "empty": (["pos", "", "neg"], "an empty text is a class"),
    "plain texts": (["pos", "neg"], ""),
    "digits": (["1", "0", "2"], ""),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_texts_that_may_mean_otherwise_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    values, words = WRITTEN[kind]
    plan(tmp_path, values)
    assert len(caplog.messages) == bool(words)
    assert words in caplog.text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([4.0, 0.0, 2.0], "so they are treated as numbers to predict; give --label-classes"),
        (
            [-1, -1],
            "all sampled labels are -1, which is a value like any other; if it means no label, give --label-classes",
        ),
        ([0.5, 1.0], ""),
    ],
)
def test_numbers_that_may_be_meant_otherwise_are_named_in_a_plan(tmp_path: Path, values: list[Any], words: str) -> None:
    source = building.source(tmp_path / "d", train=[{"text": "a", "label": value} for value in values])
    options = ("--tokenizer", building.tokenizer(), "--label-column", "label", "--max-length", 8)
    outcome = building.command("plan", source, *options)
    assert outcome.status == 0, outcome.err
    lines = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == bool(words)
    assert words in "".join(lines)


def test_numbers_that_are_not_whole_are_no_classes(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"holds 2.5, expected classes: whole numbers.*; leave --label-classes out"):
        plan(tmp_path, [1.0, 2.5], label_classes=True)


def test_booleans_have_two_classes(tmp_path: Path) -> None:
    label = plan(tmp_path, [True, True])
    assert (label.names, extracted(label, pa.array([True, False, None]))) == (
        ("False", "True"),
        (["", "", "label_null"], [1, 0]),
    )


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"text": f"good {row}", "tags": ["a", "b"][: row % 3], "hot": [row % 2, 1, 0], "stars": 1 + row % 5}
        for row in range(count)
    ]


@pytest.mark.parametrize("column", ["tags", "hot", "stars"])
def test_a_finished_dataset_knows_its_classes(tmp_path: Path, column: str) -> None:
    source = building.source(tmp_path / "in", **{"train-0": rows(12), "test": rows(4)})
    out = tmp_path / "out"
    options = {"label_column": column, "label_classes": True, "no_shuffle": True, "shard_size": "2kB"}
    assert building.command("build", source, *building.options(out, **options)).status == 0
    label = building.read_rows(out, "test")["label"].tolist()
    expected = {"tags": [[0, 0], [1, 0], [1, 1], [0, 0]], "hot": [[0, 1, 0], [1, 1, 0]] * 2, "stars": [0, 1, 2, 3]}
    assert label == expected[column]
    shown = building.command("inspect", out, "--rows", 1).out
    assert {"tags": "label []", "hot": "label [0, 1, 0]", "stars": "label '1'"}[column] in shown
    shard = building.read_manifest(out).splits["train"].shards[0]
    (out / shard.name).unlink()
    repaired = building.command("verify", out, "--repair")
    assert repaired.status == 0, repaired.err
    building.source(source, **{"train-1": rows(3)})
    appended = building.command("build", source, *building.options(out, append=True, **options))
    assert appended.status == 0, appended.err
    assert building.read_manifest(out).splits["train"].num_examples == 15
