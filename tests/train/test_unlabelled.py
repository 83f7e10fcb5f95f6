"""Rows without label, -1: kept for prediction, and no part of training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest

from tests import building
from tests.train import training
from tests.train.finished import command
from tfrecord_io import reader

SPLITS = {"train": [0, 1, -1, 1] * 8, "validation": [1, -1, -1, 0], "test": [-1] * 6}


@pytest.fixture(scope="module")
def data() -> Path:
    """Splits with some labels, and one with none."""
    return built(SPLITS)


def built(splits: Mapping[str, Sequence[int]]) -> Path:
    """A dataset with these labels, of a ClassLabel."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    made = {
        split: datasets.Dataset.from_dict(
            {"text": [f"good text {number}" for number in range(len(labels))], "label": labels}, features=features
        )
        for split, labels in splits.items()
    }
    source = building.new_folder()
    datasets.DatasetDict(made).save_to_disk(source)
    return building.built(source, label_column="label", max_length=16)


def given(data: Path, **changes: object) -> dict[str, object]:
    return {"data": data, "model": "tests.train.small:steady", "steps": 2, **changes}


def test_the_manifest_counts_them(data: Path) -> None:
    splits = reader.open(data).splits
    assert {name: split.num_unlabelled for name, split in splits.items()} == {"train": 8, "validation": 2, "test": 6}
    assert "without label in test: 6 of 6 examples" in building.command("inspect", data).out
    assert building.command("verify", data).status == 0


@pytest.mark.slow
def test_a_split_without_labels_is_predicted_after_a_training_that_left_them_out(tmp_path: Path, data: Path) -> None:
    outcome = training.command(tmp_path / "model", **given(data))
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    assert found["split"] == "validation"
    assert found["accuracy"] in (0.0, 0.5, 1.0), "two of four rows count"
    output = tmp_path / "p.parquet"
    predicted = command("predict", model=tmp_path / "model", data=data, output=output, tpu="none")
    assert predicted.status == 0, predicted.err
    rows = pq.read_table(output).to_pylist()
    assert [row["row"] for row in rows] == list(range(6))
    assert {row["label"] for row in rows} == {row["label_id"] for row in rows} == {None}
    assert {row["prediction"] for row in rows} <= {"no", "yes"}


@pytest.mark.parametrize("option", ["train_split", "eval_split"])
def test_a_split_without_any_label_is_refused_at_once(tmp_path: Path, data: Path, option: str) -> None:
    cause, remedy = training.command(tmp_path, **given(data, **{option: "test"})).error
    assert f"--{option.replace('_', '-')} test: none of its 6 examples" in cause
    assert "train-tpu predict" in remedy


@pytest.mark.slow
def test_a_split_without_any_label_is_not_evaluated_by_itself(tmp_path: Path) -> None:
    outcome = training.command(tmp_path, **given(built({"train": [1] * 8, "test": [-1] * 8})))
    assert outcome.status == 0, outcome.err
    assert "test:" not in outcome.err
