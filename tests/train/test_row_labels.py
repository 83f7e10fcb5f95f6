"""Labels of rows: integers without names, which the data say, and -1 for none, which only prediction takes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import datasets as huggingface
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.train import setup
from pipelines.train.config import TrainConfig
from pipelines.train.setup import TrainingSetup
from tests import building
from tests.train import training
from tests.train.finished import done
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ConfigError, ReaderError
from tfrecord_io.manifest import LabelRange

pytestmark = pytest.mark.slow


def labelled(train: Sequence[int], validation: Sequence[int], **options: object) -> Path:
    rows = [[{"text": f"good {row}", "label": label} for row, label in enumerate(some)] for some in (train, validation)]
    source = building.source(building.new_folder(), train=rows[0], validation=rows[1])
    return building.built(source, label_column="label", max_length=8, **options)


def num_labels(folder: Path, number: int | None = None) -> int | None:
    config = TrainConfig(data=str(folder), task="classify", model="bert-tiny", num_labels=number)
    return setup.with_num_labels(config, reader.open(folder), eval_split="validation").num_labels


def test_the_manifest_has_the_range_of_each_split(tmp_path: Path) -> None:
    folder = labelled([1, 5, 3, 5], [2])
    splits = reader.open(folder).splits
    assert splits["train"].labels == LabelRange(smallest=1, largest=5, distinct=3)
    assert splits["validation"].labels == LabelRange(smallest=2, largest=2, distinct=1)
    assert "labels in train: 3 values from 1 to 5" in building.command("inspect", folder).out


def test_tags_have_a_range_too(tmp_path: Path) -> None:
    rows = [{"tokens": ["good", "film"], "tags": [row % 3, 4]} for row in range(6)]
    source = building.source(tmp_path / "in", train=rows)
    splits = reader.open(building.built(source, layout="tokens", max_length=8)).splits
    assert splits["train"].labels == LabelRange(smallest=0, largest=4, distinct=4)


def test_labels_from_0_need_no_option_and_a_larger_number_is_allowed() -> None:
    folder = labelled([0, 1, 2] * 4, [1, 1])
    assert (num_labels(folder), num_labels(folder, 5)) == (3, 5)


@pytest.mark.parametrize(
    ("labels", "number", "cause", "remedy"),
    [
        ([1, 2, 3], None, "labels have 3 values from 1 to 3, expected 0 to 2", "--label-classes.*--num-labels 4"),
        ([1, 2, 3], 3, "--num-labels 3: .*3 values from 1 to 3, expected 0 to 2", "--num-labels 4"),
        ([0, 5, 10], None, "3 values from 0 to 10, expected 0 to 2", "--num-labels 11"),
        ([-1, 1, 1], 2, "2 values from -1 to 1, expected 0 to 1", "makes each value a class$"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: list[int], number: int | None, cause: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=cause) as caught:
        num_labels(labelled(labels, labels), number)
    assert re.search(remedy, caught.value.remedy or "")


def test_minus_one_is_a_label_where_no_class_names_say_otherwise() -> None:
    dataset = reader.open(labelled([-1, 1, -1], [1]))
    batch = next(iter(dataset.dataset("train", global_batch_size=3, training=False)))
    np.testing.assert_array_equal(np.sort(batch["label"]), [-1, -1, 1])
    np.testing.assert_array_equal(batch["example_weight"], [1, 1, 1])
    with pytest.raises(ReaderError, match="values from -1 to 1, classification expects 0 to 1"):
        dataset.dataset("train", global_batch_size=3, objective=objectives.classification())
    assert dataset.splits["train"].num_unlabelled == 0


def checked(data: Path, out: Path) -> TrainingSetup:
    return setup.check(TrainConfig(data=str(data), task="classify", model="bert-tiny", model_dir=str(out), tpu="none"))


def test_stars_from_1_to_5_can_be_classes(tmp_path: Path) -> None:
    stars = [1 + row % 5 for row in range(40)]
    assert checked(labelled(stars, stars[:10], label_classes=True), tmp_path).task.num_outputs == 5


SPLITS = {"train": [0, 1, -1, 1] * 8, "validation": [1, -1, -1, 0], "test": [-1] * 6}


@pytest.fixture(scope="module")
def data() -> Path:
    return built(SPLITS)


def built(splits: Mapping[str, Sequence[int]]) -> Path:
    features = huggingface.Features(
        {"text": huggingface.Value("string"), "label": huggingface.ClassLabel(names=["no", "yes"])}
    )
    made = {
        split: huggingface.Dataset.from_dict(
            {"text": [f"good text {number}" for number in range(len(labels))], "label": labels}, features=features
        )
        for split, labels in splits.items()
    }
    source = building.new_folder()
    huggingface.DatasetDict(made).save_to_disk(source)
    return building.built(source, label_column="label", max_length=16)


def options_of(data: Path, **changes: object) -> dict[str, object]:
    return {"data": data, "model": "tests.train.small:steady", "steps": 2, **changes}


def test_the_manifest_counts_them(data: Path) -> None:
    splits = reader.open(data).splits
    assert {name: split.num_unlabelled for name, split in splits.items()} == {"train": 8, "validation": 2, "test": 6}
    assert "without label in test: 6 of 6 examples" in building.command("inspect", data).out
    assert building.command("verify", data).status == 0


def test_a_split_without_labels_is_predicted_after_a_training_that_left_them_out(tmp_path: Path, data: Path) -> None:
    outcome = training.done(tmp_path / "model", **options_of(data))
    metrics = training.metrics(outcome.out)
    assert metrics["split"] == "validation"
    assert metrics["accuracy"] in (0.0, 0.5, 1.0), "two of four rows count"
    output = tmp_path / "p.parquet"
    done("predict", model=tmp_path / "model", data=data, output=output, tpu="none")
    rows = pq.read_table(output).to_pylist()
    assert [row["row"] for row in rows] == list(range(6))
    assert {row["label"] for row in rows} == {row["label_id"] for row in rows} == {None}
    assert {row["prediction"] for row in rows} <= {"no", "yes"}


@pytest.mark.parametrize("option", ["train_split", "eval_split"])
def test_a_split_without_any_label_is_refused_at_once(tmp_path: Path, data: Path, option: str) -> None:
    cause, remedy = training.command(tmp_path, **options_of(data, **{option: "test"})).error
    assert f"--{option.replace('_', '-')} test: no example in " in cause
    assert "has a label (6 examples with label -1)" in cause
    assert "train-tpu predict" in remedy


def test_a_split_without_any_label_is_not_evaluated_by_itself(tmp_path: Path) -> None:
    assert checked(built({"train": [1] * 8, "test": [-1] * 8}), tmp_path).eval_split is None
