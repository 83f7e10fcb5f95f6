"""The CPU split into replicas, like a TPU's 8 cores, on any machine.

Several replicas run in a separate process, since a CPU can be split only before TensorFlow has used it.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.train import models, run
from tests.building import Outcome
from tests.support import limits, seams
from tests.train import backend_runs, training
from tests.train.finished import finished, predicted


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[dict[str, Any]]]:
    """Output of a training run on four replicas, and their predictions with another model."""
    folder = tmp_path_factory.mktemp("four")
    predict = {"model": finished("classify", "tests.train.small:bag"), "data": training.data(), "split": "validation"}
    predict |= {"tpu": "none", "replicas": 4, "batch_size": 36, "output": folder / "four.parquet"}
    commands = [training.options(folder / "model", **of_spans(), replicas=4), ["predict", *training.flags(**predict)]]
    trained, predicted = backend_runs.run("tensorflow", commands)
    assert (trained.status, predicted.status) == (0, 0), trained.err + predicted.err
    return trained, pq.read_table(folder / "four.parquet").to_pylist()


def of_spans() -> dict[str, Any]:
    return {"data": training.questions(), "task": "span", "model": "tests.train.small:spans", "eval_split": "train"}


@pytest.mark.slow
def test_replicas_share_a_batch_without_changing_its_loss_and_rows_are_gathered_from_all(
    tmp_path: Path, four: tuple[Outcome, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seams.put(monkeypatch, build_model=backend_runs.with_known_weights(models.build))
    one = training.done(tmp_path, **of_spans())
    assert training.losses(four[0].out) == pytest.approx(training.losses(one.out), rel=1e-3)
    metrics, expected = ({**training.metrics(outcome.out), "split": 0} for outcome in (four[0], one))
    assert metrics == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_replicas_predict_the_same_as_one(tmp_path: Path, four: tuple[Outcome, list[dict[str, Any]]]) -> None:
    model = finished("classify", "tests.train.small:bag")
    one = predicted(tmp_path, model=model, data=training.data(), split="validation")
    assert [row["row"] for row in four[1]] == [row["row"] for row in one]
    chances = np.array([[row["probabilities"] for row in rows] for rows in (four[1], one)])
    np.testing.assert_allclose(chances[0], chances[1], atol=1e-6)


@pytest.mark.slow
def test_after_a_signal_the_last_step_is_saved_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TPU_NAME", "TPU_GRPC_URL", "COLAB_TPU_ADDR", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    process = training.program(tmp_path, replicas=2, steps=2000, tpu="auto")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    out, err = process.communicate(timeout=limits.PROCESS)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "stopped by a signal after step" in err.splitlines()[-2]
    first, second, third, *others, cause, remedy = [line.split()[0] for line in err.splitlines()]
    assert (first, second, third, cause, remedy) == ("warning:", "remedy:", "replicas:", "error:", "remedy:"), err
    assert set(others) <= {"step", "first"}, "TensorFlow says nothing"
    [saved] = (tmp_path / "checkpoints").glob("*.index")
    step = int(saved.stem.removeprefix("ckpt-"))
    assert 1 <= step < 2000
    assert max(training.losses(out), default=1) in (step - 1, step, 1)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_first_interrupt_is_noted_and_a_second_one_is_an_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with run._stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("handlers")
def test_a_job_in_the_background_ignores_ctrl_c_and_saves_on_sigterm() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `nohup train-tpu … &` in a script begins
    with run._stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stop == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
