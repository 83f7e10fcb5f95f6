"""Trainings on several datasets: what is mixed, what is reported of each, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.train import datasets
from pipelines.train.config import TrainConfig
from tests import building
from tests.train import training
from tfrecord_io.errors import ConfigError
from tfrecord_io.mixture import Mixture


def other() -> Path:
    """The first 40 reviews, as a dataset of its own."""
    return building.reviews(max_length=16, limit=40, name="few")


def config(*folders: Path, **changes: object) -> TrainConfig:
    data = tuple(map(str, folders))
    options = {"data": data, "task": "classify", "model": "bert-tiny", "model_dir": "unused", **changes}
    return TrainConfig(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_training_on_two_datasets_evaluates_each_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    options = {"data": (training.data(), other()), "weights": "3,1"}
    first = training.command(tmp_path / "model", steps=4, **options)
    assert first.status == 0, first.err
    evaluated = [line for line in map(json.loads, first.out.splitlines()) if "split" in line]
    name = building.read_manifest(training.data()).name
    assert [line["split"] for line in evaluated] == [f"{name}/validation", "few/validation", "validation"]
    assert evaluated[2]["examples"] == evaluated[0]["examples"] + evaluated[1]["examples"]

    resumed = training.command(tmp_path / "model", steps=8, **options)
    assert list(training.losses(resumed.out)) == [5, 6, 7, 8]
    refused = training.command(tmp_path / "model", steps=9, **{**options, "weights": "1,1"})
    assert "holds another training" in refused.error[0]


@pytest.mark.slow
def test_datasets_of_one_name_are_told_apart() -> None:
    found = datasets.open_data(config(training.data(), training.data(), weights="3,1"))
    assert isinstance(found, Mixture)
    first, second = found.datasets
    assert second == f"{first}-2"
    assert found.rates("train") == {first: 0.75, second: 0.25}


@pytest.mark.parametrize(
    ("folders", "changes", "words"),
    [
        (1, {"weights": "1"}, "with one --data"),
        (1, {"temperature": 2.0}, "with one --data"),
        (2, {"weights": "1"}, "for each of the 2 --data"),
        (2, {"weights": "1,0"}, "above 0"),
        (2, {"weights": "1,nan"}, "above 0"),
        (2, {"weights": "much,little"}, "0.7,0.3"),
        (2, {"weights": "1,1", "temperature": 2.0}, "expected one of them"),
        (2, {"temperature": 0.0}, "--temperature 0.0"),
        (0, {}, "no --data"),
    ],
)
def test_options_that_contradict_each_other_are_named(folders: int, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(*[Path("d")] * folders, **changes)
