"""Trainings that end early, that keep their best checkpoint, and what a resumed one still knows."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.train import training

SMALL = {"model": "tests.train.small:steady", "learning_rate": 0.05}


def evaluations(model_dir: Path) -> dict[int, float]:
    """Loss by step."""
    found = json.loads((model_dir / "evaluations.json").read_text())
    return {each["step"]: each["metrics"]["loss"] for each in found}


def steps_of(model_dir: Path, folder: str) -> list[int]:
    """The steps of the checkpoints in a folder."""
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in (model_dir / folder).glob("*.index"))


@pytest.mark.slow
def test_it_ends_after_evaluations_that_are_not_better_and_keeps_the_best(tmp_path: Path) -> None:
    # A rate at which the loss of validation soon rises again.
    options = {**SMALL, "steps": 400, "schedule": "constant", "eval_every": 10, "log_every": 10, "keep_best": True}
    outcome = training.command(tmp_path, **options, early_stopping=2)
    assert outcome.status == 0, outcome.err
    losses = evaluations(tmp_path)
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert last == best + 20 < 400
    assert "ended early: no better loss in 2 evaluations" in outcome.err
    assert f"back to the best evaluation, after step {best}: loss {losses[best]:.4f}" in outcome.err
    assert (steps_of(tmp_path, "best"), steps_of(tmp_path, "checkpoints")[-1]) == ([best], last)
    final = json.loads(outcome.out.splitlines()[-1])
    assert final["steps"] == last
    assert final["loss"] == pytest.approx(losses[best])
    kept = keras.models.load_model(tmp_path / "model.keras").get_weights()

    again = training.command(tmp_path, **options, early_stopping=2)
    assert again.status == 0, again.err
    assert "it ended early; evaluating only" in again.err
    assert not training.losses(again.out)
    for one, other in zip(kept, keras.models.load_model(tmp_path / "model.keras").get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    options = {**SMALL, "schedule": "constant", "eval_every": 5, "early_stopping": 2, "best_metric": "accuracy"}
    whole = training.command(tmp_path / "whole", **options, steps=300)
    assert whole.status == 0, whole.err
    last = max(evaluations(tmp_path / "whole"))
    assert 10 <= last < 300
    # Interrupted right after the evaluation before the last one, which must still be counted.
    first = training.command(tmp_path / "parts", **options, steps=last - 5)
    assert first.status == 0, first.err
    second = training.command(tmp_path / "parts", **options, steps=300)
    assert second.status == 0, second.err
    assert evaluations(tmp_path / "parts") == pytest.approx(evaluations(tmp_path / "whole"))


def test_a_metric_that_the_labels_do_not_have_is_refused(tmp_path: Path) -> None:
    outcome = training.command(tmp_path, early_stopping=2, eval_every=2, best_metric="pearson")
    assert outcome.status == 2
    assert outcome.error[0] == (
        "--best-metric pearson, expected one that --task classify has on this dataset: loss, accuracy, f1, macro_f1, "
        "matthews"
    )


def test_a_dataset_without_a_split_to_evaluate_is_refused(tmp_path: Path) -> None:
    outcome = training.command(tmp_path, data=training.translations(), task="seq2seq", early_stopping=2, eval_every=2)
    assert outcome.status == 2
    cause, remedy = outcome.error
    assert cause.startswith("--early-stopping, but ")
    assert remedy.startswith("give --eval-split, one of ['train']")
