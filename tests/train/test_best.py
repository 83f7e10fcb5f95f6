"""Which evaluation is the best, and what a resumed training knows of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipelines.train.best import History
from pipelines.train.metrics.evaluation import is_better
from tfrecord_io.errors import OutputError


def history(folder: Path, *losses: float, metric: str = "loss") -> History:
    """Evaluations after 10, 20, ... steps."""
    found = History(str(folder), metric=metric)
    for number, value in enumerate(losses, start=1):
        found.add(10 * number, {metric: value})
    return found


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
def test_errors_are_better_low_and_all_else_high(metric: str, value: float, than: float | None, better: bool) -> None:
    assert is_better(metric, value, than) is better


def test_evaluations_since_the_best_are_counted(tmp_path: Path) -> None:
    found = history(tmp_path, 0.5, 0.3, 0.3, 0.4)
    assert found.best is not None
    assert (found.best.step, found.since_best) == (20, 2), "the first of equals"
    assert found.add(50, {"loss": 0.2})
    assert found.since_best == 0


def test_a_resumed_training_forgets_what_it_will_do_again(tmp_path: Path) -> None:
    history(tmp_path, 0.5, 0.4, 0.6, 0.1)
    resumed = History(str(tmp_path), metric="loss")
    resumed.open(30)
    assert resumed.best is not None
    assert (resumed.best.step, resumed.since_best) == (20, 1)
    assert resumed.add(40, {"loss": 0.1})
    anew = History(str(tmp_path), metric="loss")
    anew.open(0)
    assert anew.best is None


def test_the_same_step_counts_once(tmp_path: Path) -> None:
    found = history(tmp_path, 0.5, 0.6)
    found.add(20, {"loss": 0.6})
    assert found.since_best == 1


def test_no_number_is_never_the_best_and_is_written_as_json(tmp_path: Path) -> None:
    found = history(tmp_path, math.nan, math.nan, metric="pearson")
    assert (found.best, found.since_best) == (None, 2)
    assert "NaN" not in (tmp_path / "evaluations.json").read_text()
    resumed = History(str(tmp_path), metric="pearson")
    resumed.open(20)
    assert resumed.since_best == 2


@pytest.mark.parametrize("text", ["", "{", "7", "[1]", '[{"step": 1}]', '[{"step": "x", "metrics": {}}]'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluations.json").write_text(text)
    with pytest.raises(OutputError, match="cannot be read"):
        History(str(tmp_path), metric="loss").open(10)
