"""Trainings on several datasets: what is mixed, and what is reported of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.train import datasets
from pipelines.train.config import TrainConfig
from tests import building
from tests.train import training
from tfrecord_io.mixture import Mixture


def other() -> Path:
    """The first 40 reviews, as a dataset of its own."""
    return building.reviews(max_length=16, limit=40, name="few")


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
    folders = (str(training.data()),) * 2
    found = datasets.open_data(TrainConfig(data=folders, task="classify", model="bert-tiny", weights="3,1"))
    assert isinstance(found, Mixture)
    first, second = found.datasets
    assert second == f"{first}-2"
    assert found.rates("train") == {first: 0.75, second: 0.25}
