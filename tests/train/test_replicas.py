"""The CPU split into replicas: what a TPU's 8 cores would do, on any machine. Several of them are in a process of their
own, since a CPU can be split only before TensorFlow has used it.
"""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train import training


def finished(model_dir: Path, **changes: Any) -> str:
    """Standard output of a training in a process of its own."""
    process = training.program(model_dir, **changes)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_a_model_on_8_replicas_learns_to_tell_reviews_apart(tmp_path: Path) -> None:
    out = finished(tmp_path, replicas=8, global_batch_size=32, steps=40, warmup=4)
    # Half of the 80 reviews are positive: 65 % by chance would be 2.7 standard deviations off.
    # Five seeds gave 0.79 to 0.83.
    assert training.metrics(out)["accuracy"] >= 0.65


@pytest.mark.slow
def test_replicas_share_a_batch_without_changing_its_loss(tmp_path: Path) -> None:
    # Without dropout, which differs between replicas on purpose.
    one = training.command(tmp_path / "1", model="tests.train.small:steady", replicas=1)
    assert one.status == 0, one.err
    four = finished(tmp_path / "4", model="tests.train.small:steady", replicas=4)
    np.testing.assert_allclose(list(training.losses(one.out).values()), list(training.losses(four).values()), rtol=1e-3)


@pytest.mark.slow
def test_rows_are_gathered_from_all_replicas(tmp_path: Path) -> None:
    options = {
        "data": training.questions(), "task": "span", "model": "tests.train.small:spans", "eval_split": "train",
        "steps": 1, "learning_rate": 1e-9,
    }  # fmt: skip
    one = training.command(tmp_path / "1", **options)
    assert one.status == 0, one.err
    outputs = one.out, finished(tmp_path / "2", **options, replicas=2)
    found = [{name: value for name, value in training.metrics(out).items() if name != "split"} for out in outputs]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path: Path, stop: signal.Signals) -> None:
    process = training.program(tmp_path, replicas=2, steps=2000)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(stop)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + stop, err
    assert "stopped by a signal after step" in err.splitlines()[-2]
    [saved] = (tmp_path / "checkpoints").glob("*.index")
    step = int(saved.stem.removeprefix("ckpt-"))
    assert 1 <= step < 2000
    assert max(training.losses(out), default=1) in (step - 1, step, 1)
