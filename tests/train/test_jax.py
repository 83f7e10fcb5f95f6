"""JAX's backend against TensorFlow's: the same losses, metrics and predictions on any number of devices.

Keras has one backend per process, so JAX runs once, in a separate process with 8 CPU devices.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.train import models
from tests import building
from tests.building import Outcome
from tests.support import limits, seams
from tests.train import backend_runs, compare_backends, finished, training

pytestmark = [pytest.mark.slow, pytest.mark.longest]

STEPS = 4
EXACT: dict[str, Any] = {"dropout": 0.0, "learning_rate": 1e-3, "warmup": 1, "steps": STEPS, "replicas": 1}
KINDS = ("buckets", "clm", "dpo", "mixture", "mlm", "reward", "span", "t5")
# Where the point is not the model: XLA takes 6 s for a step of bert-tiny, for each length of rows.
SMALLER: dict[str, dict[str, Any]] = {
    "buckets": {"model": "tests.train.small:steady"},
    "clm": {"model": "tests.train.small:apart"},
    "dpo": {"model": "tests.train.small:next_tokens", "accumulate": 2, "schedule": "constant"},
    "mixture": {"model": "tests.train.small:steady", "accumulate": 2},
    "mlm": {"model": "tests.train.small:at_positions"},
    "reward": {"model": "tests.train.small:answer"},
}


def options_of(kind: str) -> dict[str, Any]:
    return {**compare_backends.options_of(kind), **EXACT, **SMALLER.get(kind, {})}


def of_hosts(**changes: Any) -> dict[str, Any]:
    options = {"model": "tests.train.small:bag", "global_batch_size": 32, "order": "global", "backend": "jax"}
    return {**EXACT, **options, "save_every": 2, "schedule": "constant", **changes}


@pytest.fixture(scope="module")
def folder() -> Path:
    return building.new_folder()


@pytest.fixture(scope="module")
def on_hosts(folder: Path) -> list[list[Outcome]]:
    """What each of two processes says that train together: a run in global order, one in the order of hosts, and one
    without an end, until a signal comes to the second of them.
    """
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        shared = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free.getsockname()[1]}", "JAX_NUM_PROCESSES": "2"}
    kinds: dict[str, dict[str, Any]] = {"hosts": {}, "of hosts": {"order": "hosts"}, "stopped": {"steps": 10**6}}
    commands = [training.options(folder / name, **of_hosts(replicas=8, **changes)) for name, changes in kinds.items()]
    words = [sys.executable, *backend_runs.program("jax", commands)]
    pipes: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environments = [{**building.environment(), **shared, "JAX_PROCESS_ID": str(number)} for number in range(2)]
    processes = [subprocess.Popen(words, env=environment, **pipes) for environment in environments]
    try:
        while not (folder / "stopped" / "checkpoints" / "ckpt_2").exists():
            assert not any(process.poll() for process in processes)
            time.sleep(0.05)
        processes[1].terminate()
        by_host = [backend_runs.outcomes(process.communicate(timeout=limits.PROCESS)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
    shutil.rmtree(folder / "of hosts" / "checkpoints" / "ckpt_4")
    return by_host


@pytest.fixture(scope="module")
def on_jax(folder: Path, on_hosts: list[list[Outcome]]) -> dict[str, Outcome]:
    """What JAX says of each kind, of one training run in several ways, and of one that two hosts began."""
    commands = {kind: training.options(folder / kind, **options_of(kind), backend="jax") for kind in KINDS}
    commands |= {
        "one": training.options(folder / "one", **of_hosts()),
        "eight": training.options(folder / "eight", **of_hosts(replicas=8)),
        "sharded": training.options(folder / "sharded", **of_hosts(replicas=8, shard_model=True)),
        "half": training.options(folder / "parts", **of_hosts(replicas=8, steps=2)),
        "rest": training.options(folder / "parts", **of_hosts(replicas=4)),
    }
    sharded = {**options_of("dpo"), "backend": "jax", "replicas": 4, "shard_model": True}
    commands |= {
        "half of pairs": training.options(folder / "pairs sharded", **{**sharded, "steps": 2}),
        "rest of pairs": training.options(folder / "pairs sharded", **sharded),
    }
    commands["rest of hosts"] = training.options(folder / "of hosts", **of_hosts(order="hosts"))
    words = ["--model", folder / "eight", "--data", training.data(), "--output", folder / "eight.parquet"]
    words += ["--split", "validation", "--backend", "jax", "--replicas", 8]
    commands["predict eight"] = ["predict", *map(str, words)]
    variables = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"}
    ran = backend_runs.run("jax", list(commands.values()), variables=variables, how=["one layer"])
    return dict(zip(commands, ran, strict=True))


@pytest.fixture
def on_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_layer: None) -> Callable[..., Outcome]:
    seams.put(monkeypatch, build_model=backend_runs.with_known_weights(models.build))
    return lambda **options: training.command(tmp_path, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_equal_tensorflows(kind: str, on_jax: dict[str, Outcome], on_tensorflow: Callable[..., Outcome]) -> None:
    ours, theirs = on_jax[kind], on_tensorflow(**options_of(kind))
    assert (ours.status, theirs.status) == (0, 0), ours.err + theirs.err
    losses, expected = training.losses(ours.out), training.losses(theirs.out)
    assert list(losses) == list(expected)
    np.testing.assert_allclose(list(losses.values()), list(expected.values()), atol=2e-6, rtol=1e-6)
    if "split" in ours.out:
        measured, right = ({**training.metrics(outcome.out), "split": 0} for outcome in (ours, theirs))
        assert measured == pytest.approx(right, abs=2e-6, rel=2e-6)


def test_the_number_of_devices_changes_nothing(on_jax: dict[str, Outcome]) -> None:
    one, eight, sharded, half, rest = (
        training.losses(on_jax[name].out) for name in ("one", "eight", "sharded", "half", "rest")
    )
    assert eight == pytest.approx(one, abs=2e-6), "dropout included"
    assert sharded == pytest.approx(one, abs=2e-6), "each with a part of the model"
    assert (list(half), list(rest)) == ([1, 2], [3, 4])
    assert {**half, **rest} == pytest.approx(one, abs=2e-6), "with 8 devices, then 4"
    pairs, half, rest = (training.losses(on_jax[name].out) for name in ("dpo", "half of pairs", "rest of pairs"))
    assert {**half, **rest} == pytest.approx(pairs, abs=2e-6), "each with a part of the reference, and resumed"


def test_two_hosts_train_as_one(on_hosts: list[list[Outcome]], on_jax: dict[str, Outcome]) -> None:
    (first, *_), (second, *_) = on_hosts
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert training.losses(first.out) == pytest.approx(training.losses(on_jax["eight"].out), abs=2e-6)
    assert second.out == "", "one host speaks"


def test_one_host_goes_on_with_the_batches_of_two(on_hosts: list[list[Outcome]], on_jax: dict[str, Outcome]) -> None:
    losses, rest = training.losses(on_hosts[0][1].out), on_jax["rest of hosts"]
    assert rest.status == 0, rest.err
    assert training.losses(rest.out) == pytest.approx({step: losses[step] for step in (3, 4)}, abs=2e-6)


def test_a_signal_to_one_host_stops_all_at_the_same_step(on_hosts: list[list[Outcome]]) -> None:
    (*_, first), (*_, second) = on_hosts
    assert (first.status, second.status) == (143, 143), first.err + second.err
    one, other = (re.search(r"error: (stopped by a signal after step \S+)", outcome.err) for outcome in (first, second))
    assert one is not None
    assert other is not None
    assert one[1] == other[1]


def test_evaluation_is_the_mean_over_rows(folder: Path, on_jax: dict[str, Outcome]) -> None:
    # 80 rows in batches of 32: the last one has 16 that only fill it up.
    assert on_jax["predict eight"].status == 0, on_jax["predict eight"].err
    predicted = pq.read_table(folder / "eight.parquet").to_pydict()
    assert len(predicted["label_id"]) == 80
    chances = [of[label] for of, label in zip(predicted["probabilities"], predicted["label_id"], strict=True)]
    for name in ("one", "eight", "sharded"):
        loss = training.metrics(on_jax[name].out)["loss"]
        assert loss == pytest.approx(-np.log(chances).mean(), abs=2e-6), name


def test_tensorflow_reads_the_model(folder: Path, tmp_path: Path, on_jax: dict[str, Outcome]) -> None:
    output = tmp_path / "predicted.parquet"
    words = {"model": folder / "eight", "data": training.data(), "split": "validation", "output": output}
    outcome = finished.command("predict", **words, tpu="none")
    assert outcome.status == 0, outcome.err
    ours, theirs = (pq.read_table(path)["probabilities"].to_pylist() for path in (folder / "eight.parquet", output))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_tensorflow_does_not_go_on_with_the_training(folder: Path, on_jax: dict[str, Outcome]) -> None:
    saved = (folder / "eight" / "checkpoints").iterdir()
    assert sorted(path.name for path in saved) == ["ckpt_2", "ckpt_4"]
    outcome = training.command(folder / "eight", **of_hosts(backend="tensorflow"))
    assert "backend 'jax', now 'tensorflow'" in outcome.error[0]
