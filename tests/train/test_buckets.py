"""Rows of several lengths: a compiled step for each, and everything else as with one."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.train.steps import Learner
from tests import building
from tests.train import training

LENGTHS = (8, 24)


@pytest.fixture(scope="module")
def data() -> Path:
    return building.built(building.REVIEWS, label_column="label", max_length=24, bucket_lengths="8,24")


@pytest.mark.slow
def test_each_length_is_traced_once_and_a_resumed_training_goes_on_with_the_next_batch(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[tuple[int, ...]] = []
    traced_part = Learner.loss

    def noted(self: Learner, weights: Any, state: Any, batch: Any, total: Any) -> Any:
        traced.append(tuple(batch[0]["input_ids"].shape))
        return traced_part(self, weights, state, batch, total)

    monkeypatch.setattr(Learner, "loss", noted)
    options = {"data": data, "model": "tests.train.small:steady", "steps": 12, "steps_per_call": 3, "log_every": 3}
    whole = training.done(tmp_path, **options, save_every=6)
    assert traced == [(16, length) for length in LENGTHS]
    assert "compiling a step for each of the row lengths 8, 24" in whole.err
    assert training.metrics(whole.out)["examples"] == 80
    losses = training.losses(whole.out)
    assert list(losses) == [3, 6, 9, 12]

    for path in (tmp_path / "checkpoints").glob("ckpt-12.*"):
        path.unlink()
    rest = training.done(tmp_path, **options)
    assert training.losses(rest.out) == {step: losses[step] for step in (9, 12)}, "to the last bit"


@pytest.mark.parametrize(
    ("mixed", "words"),
    [
        (True, "expected one length, since a batch of a mixture"),
        (False, "the model does not take rows of all lengths [8, 24]"),
    ],
)
def test_what_needs_one_length_is_refused(tmp_path: Path, data: Path, mixed: bool, words: str) -> None:
    outcome = training.command(tmp_path, data=(data, training.data()) if mixed else data)
    assert outcome.status == 2
    assert words in outcome.error[0]
