"""Choice of the best evaluation, training runs that end early or keep it, and resumed training runs."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest

from pipelines.train.checkpoints import History
from tests.train import training
from tfrecord_io.errors import OutputError

SMALL = {"model": "tests.train.small:steady", "learning_rate": 0.05}


def history(folder: Path, *losses: float, metric: str = "loss") -> History:
    evaluations = History(str(folder), metric=metric)
    for number, value in enumerate(losses, start=1):
        evaluations.add(10 * number, {metric: value})
    return evaluations


@pytest.mark.parametrize(
    ("metric", "value", "than", "better"),
    [
        ("loss", 0.1, 0.2, True),
        ("perplexity", 0.1, 0.2, True),
        ("mae", 0.2, 0.2, False),
        ("accuracy", 0.1, 0.2, False),
        ("spearman", 0.3, 0.2, True),
        ("f1", math.nan, None, False),
        ("f1", 0.0, None, True),
    ],
)
def test_low_errors_are_better(tmp_path: Path, metric: str, value: float, than: float | None, better: bool) -> None:
    evaluations = history(tmp_path, *([] if than is None else [than]), metric=metric)
    assert evaluations.add(90, {metric: value}) is better


def test_evaluations_since_the_best_are_counted(tmp_path: Path) -> None:
    losses = history(tmp_path, 0.5, 0.3, 0.3, 0.4)
    assert (losses.best, losses.since_best) == (20, 2), "the first of equals"
    assert losses.add(50, {"loss": 0.2})
    assert not losses.add(60, {"loss": 0.6})
    losses.add(60, {"loss": 0.6})
    assert losses.since_best == 1, "the same step counts once"


def test_a_resumed_training_forgets_what_it_will_do_again(tmp_path: Path) -> None:
    history(tmp_path, 0.5, 0.4, 0.6, 0.1)
    resumed = History(str(tmp_path), metric="loss")
    resumed.open(30)
    assert (resumed.best, resumed.since_best) == (20, 1)
    assert resumed.add(40, {"loss": 0.1})
    anew = History(str(tmp_path), metric="loss")
    anew.open(0)
    assert anew.best is None


def test_no_number_is_never_the_best_and_is_written_as_json(tmp_path: Path) -> None:
    evaluations = history(tmp_path, math.nan, math.nan, metric="pearson")
    assert (evaluations.best, evaluations.since_best) == (None, 2)
    assert "NaN" not in (tmp_path / "evaluations.json").read_text()
    resumed = History(str(tmp_path), metric="pearson")
    resumed.open(20)
    assert resumed.since_best == 2


@pytest.mark.parametrize("text", ["", "{", "7", "[1]", '[{"step": 1}]', '[{"step": "x", "metrics": {}}]'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluations.json").write_text(text)
    with pytest.raises(OutputError, match="cannot be read"):
        History(str(tmp_path), metric="loss").open(10)


def evaluations(model_dir: Path) -> dict[int, float]:
    entries = json.loads((model_dir / "evaluations.json").read_text())
    return {entry["step"]: entry["metrics"]["loss"] for entry in entries}


def steps_of(model_dir: Path, folder: str) -> list[int]:
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in (model_dir / folder).glob("*.index"))


@pytest.mark.slow
def test_it_ends_after_evaluations_that_are_not_better_and_keeps_the_best(tmp_path: Path) -> None:
    # A rate at which the loss of validation soon rises again.
    options = {**SMALL, "steps": 400, "schedule": "constant", "eval_every": 10, "log_every": 10, "keep_best": True}
    outcome = training.done(tmp_path, **options, early_stopping=2)
    losses = evaluations(tmp_path)
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert last == best + 20 < 400
    assert "ended early: no better loss in 2 evaluations" in outcome.err
    assert f"using the best evaluation, after step {best}: loss {losses[best]:.4f}" in outcome.err
    assert (steps_of(tmp_path, "best"), steps_of(tmp_path, "checkpoints")[-1]) == ([best], last)
    final = json.loads(outcome.out.splitlines()[-1])
    assert final["steps"] == last
    assert final["loss"] == pytest.approx(losses[best])
    kept = keras.models.load_model(tmp_path / "model.keras").get_weights()

    again = training.done(tmp_path, **options, early_stopping=2)
    assert "--early-stopping ended the training run; only evaluating" in again.err
    assert not training.losses(again.out)
    for one, other in zip(kept, keras.models.load_model(tmp_path / "model.keras").get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    options = {**SMALL, "schedule": "constant", "eval_every": 5, "early_stopping": 2, "best_metric": "accuracy"}
    training.done(tmp_path, **options, steps=300, save_every=5)
    whole = evaluations(tmp_path)
    assert 10 <= max(whole) < 300
    # As if interrupted right after the evaluation before the last one, which must still be counted.
    for path in (tmp_path / "checkpoints").glob(f"ckpt-{max(whole)}.*"):
        path.unlink()
    again = training.done(tmp_path, **options, steps=300)
    assert f"continuing after step {max(whole) - 5}\n" in again.err
    assert evaluations(tmp_path) == pytest.approx(whole)


def test_a_dataset_without_a_split_to_evaluate_is_refused(tmp_path: Path) -> None:
    outcome = training.command(tmp_path, data=training.translations(), task="seq2seq", early_stopping=2, eval_every=2)
    assert outcome.status == 2
    cause, remedy = outcome.error
    assert cause.startswith("--early-stopping needs evaluations, but ")
    assert remedy.startswith("give --eval-split train, or ")
