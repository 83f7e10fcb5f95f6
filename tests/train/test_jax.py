"""JAX's engine against TensorFlow's: the same losses, metrics, predictions, on any number of devices.

Keras has one backend in a process, so what JAX does is done once, in a process of its own with 8 CPU devices.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.train import models
from tests import building
from tests.building import Outcome
from tests.train import backend_runs, finished, training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 4
EXACT: dict[str, Any] = {"dropout": 0.0, "learning_rate": 1e-3, "warmup": 1, "steps": STEPS, "replicas": 1}
KINDS = ("accumulate", "buckets", "everywhere", "mixture", "mlm", "packed", "seq2seq", "span")


@functools.cache
def options_of(kind: str) -> dict[str, Any]:
    """Options of a training of a kind."""
    built, reviews, small = building.built, building.REVIEWS, "tests.train.small"
    chosen: dict[str, Callable[[], dict[str, Any]]] = {
        "accumulate": lambda: {"model": f"{small}:steady", "accumulate": 2},
        "buckets": lambda: {
            "model": "bert-tiny",
            "data": built(reviews, label_column="label", max_length=16, bucket_lengths="8,16"),
        },
        "everywhere": lambda: {"task": "mlm", "model": f"{small}:everywhere"},
        "mixture": lambda: {"model": f"{small}:steady", "data": (training.data(),) * 2, "weights": "2,1"},
        "mlm": lambda: {"task": "mlm", "model": "bert-tiny"},
        "packed": lambda: {
            "task": "clm",
            "model": "gpt2-tiny",
            "data": built(reviews, layout="pack", max_length=64),
        },
        "seq2seq": lambda: {"task": "seq2seq", "model": "t5-tiny", "data": training.translations()},
        "span": lambda: {
            "task": "span",
            "model": f"{small}:spans",
            "data": training.questions(),
            "eval_split": "train",
        },
    }
    return {**EXACT, **chosen[kind]()}


@pytest.fixture(scope="module")
def folder() -> Path:
    """What JAX leaves."""
    return building.new_folder()


@pytest.fixture(scope="module")
def on_jax(folder: Path) -> dict[str, Outcome]:
    """What JAX says of each kind, and of one training in several ways."""
    commands = {kind: training.options(folder / kind, **options_of(kind), backend="jax") for kind in KINDS}
    one: dict[str, Any] = {**EXACT, "model": "tests.train.small:bag", "backend": "jax", "global_batch_size": 32}
    eight = {**one, "replicas": 8}
    masked = {**options_of("everywhere"), "backend": "jax", "schedule": "constant"}
    commands |= {
        "one": training.options(folder / "one", **one),
        "eight": training.options(folder / "eight", **eight, save_every=2),
        "sharded": training.options(folder / "sharded", **eight, shard_model=True),
        "global": training.options(folder / "global", **{**eight, "order": "global"}),
        "whole": training.options(folder / "whole", **{**masked, "replicas": 8}),
        "half": training.options(folder / "parts", **{**masked, "replicas": 8, "steps": 2}),
        "rest": training.options(folder / "parts", **{**masked, "replicas": 4}),
    }
    model, data = str(folder / "eight"), str(training.data())
    output = str(folder / "predicted.parquet")
    commands["predict"] = ["predict", "--model", model, "--data", data, "--split", "validation", "--output", output]
    commands["predict"] += ["--backend", "jax", "--replicas", "8"]
    variables = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    return dict(zip(commands, backend_runs.run("jax", list(commands.values()), **variables), strict=True))


@pytest.fixture
def on_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """A training of TensorFlow, from the same first weights."""
    monkeypatch.setattr(models, "build", backend_runs.with_known_weights(models.build))
    return lambda **options: training.command(tmp_path, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_tensorflow(
    kind: str, on_jax: dict[str, Outcome], on_tensorflow: Callable[..., Outcome]
) -> None:
    ours, theirs = on_jax[kind], on_tensorflow(**options_of(kind))
    assert (ours.status, theirs.status) == (0, 0), ours.err + theirs.err
    found, expected = training.losses(ours.out), training.losses(theirs.out)
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), atol=2e-6, rtol=1e-6)
    if "split" in ours.out:
        measured, right = ({**training.metrics(each.out), "split": 0} for each in (ours, theirs))
        assert measured == pytest.approx(right, abs=2e-6, rel=2e-6)


def test_the_number_of_devices_changes_nothing(on_jax: dict[str, Outcome]) -> None:
    one, eight, sharded, whole, half, rest = (
        training.losses(on_jax[name].out) for name in ("one", "eight", "sharded", "whole", "half", "rest")
    )
    assert eight == pytest.approx(one, abs=2e-6), "dropout included"
    assert sharded == pytest.approx(one, abs=2e-6), "each with a part of the model"
    assert (list(half), list(rest)) == ([1, 2], [3, 4])
    assert {**half, **rest} == pytest.approx(whole, abs=2e-6), "with 8 devices, then 4"


def test_two_hosts_train_as_one(folder: Path, on_jax: dict[str, Outcome]) -> None:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    options = {**EXACT, "model": "tests.train.small:bag", "global_batch_size": 32, "replicas": 8, "order": "global"}
    commands = [training.options(folder / "hosts", **options, backend="jax", save_every=2)]

    def host(number: int) -> Outcome:
        variables = {"JAX_COORDINATOR_ADDRESS": coordinator, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
        [outcome] = backend_runs.run("jax", commands, **variables)
        return outcome

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(host, range(2))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert training.losses(first.out) == pytest.approx(training.losses(on_jax["global"].out), abs=2e-6)
    assert second.out == ""


def test_evaluation_is_the_mean_over_rows(folder: Path, on_jax: dict[str, Outcome]) -> None:
    # 80 rows in batches of 32 on 8 devices: the last one has 16 that only fill it up.
    assert on_jax["predict"].status == 0, on_jax["predict"].err
    predicted = pq.read_table(folder / "predicted.parquet").to_pydict()
    assert len(predicted["label_id"]) == 80
    chances = [of[label] for of, label in zip(predicted["probabilities"], predicted["label_id"], strict=True)]
    loss = training.metrics(on_jax["eight"].out)["loss"]
    assert loss == pytest.approx(-np.log(chances).mean(), abs=1e-6)


def test_tensorflow_reads_the_model(folder: Path, tmp_path: Path, on_jax: dict[str, Outcome]) -> None:
    output = tmp_path / "predicted.parquet"
    words = {"model": folder / "eight", "data": training.data(), "split": "validation", "output": output}
    outcome = finished.command("predict", **words, tpu="none")
    assert outcome.status == 0, outcome.err
    ours, theirs = (pq.read_table(each)["probabilities"].to_pylist() for each in (folder / output.name, output))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_tensorflow_does_not_go_on_with_the_training(folder: Path, on_jax: dict[str, Outcome]) -> None:
    saved = (folder / "eight" / "checkpoints").iterdir()
    assert sorted(path.name for path in saved) == ["ckpt_2", "ckpt_4"]
    outcome = training.command(folder / "eight", **EXACT, model="tests.train.small:bag", global_batch_size=32)
    assert "backend 'jax', now 'tensorflow'" in outcome.error[0]
