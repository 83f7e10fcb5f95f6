"""The parts of a preflight that need no compiler: names, arithmetic, the search, tables, and how the compiler fails."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from pipelines.train.config import TrainConfig
from pipelines.train.errors import CompilerError, UnfitError
from pipelines.train.preflight import compiler, preflight, tpu_slices
from pipelines.train.preflight.compiler import Compiled
from pipelines.train.preflight.preflight import Preflight, largest
from tests import building
from tests.support import seams
from tests.train import rule_breakers
from tfrecord_io.errors import ConfigError

GIB = 2**30
CONFIG = TrainConfig(data="d", task="classify", model="bert-tiny", global_batch_size=256, precision="float32")
COSTS = {"argument_bytes": GIB, "memory_bytes": 4 * GIB, "flops": 6.15e12, "traffic_bytes": 22.5e9, "seconds": 10.0}
STEP = Compiled(**COSTS, versions={"jax": "1", "libtpu": "2"})  # type: ignore[arg-type]


def flown(step: Compiled | str = STEP, **changes: object) -> Preflight:
    wanted = tpu_slices.parse("v3-8")
    made = Preflight(shares={}, slice=wanted, config=CONFIG, row_length=16, batch=32, step=step, bounds=(128, 136))
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "chips", "replicas", "grid"),
    [
        ("v2-8", 4, 8, "v2:2x2"), ("v3-8", 4, 8, "v3:2x2"), ("v3-32", 16, 32, "v3:4x4"), ("v4-8", 4, 4, "v4:2x2x1"),
        ("v5e-8", 8, 8, "v5e:2x4"), ("v5litepod-8", 8, 8, "v5e:2x4"), ("V5P-64", 32, 32, "v5p:2x4x4"),
        ("v6e-1", 1, 1, "v6e:1x1"), ("tpu7x-8", 4, 8, "tpu7x:2x2x1"),
    ],
)  # fmt: skip
def test_a_name_says_how_many_replicas_there_are_in_which_grid(name: str, chips: int, replicas: int, grid: str) -> None:
    parsed = tpu_slices.parse(name)
    assert (parsed.chips, parsed.replicas, parsed.topology) == (chips, replicas, grid)


@pytest.mark.parametrize("name", ["", "v3", "v3-9", "v1-8", "v7x-8", "tpu-v3-8", "v3-8x"])
def test_another_name_is_refused_with_all_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError, match="expected the name of a TPU") as caught:
        tpu_slices.parse(name)
    assert all(known in caught.value.cause for known in ("v2-N", "v3-N", "v4-N", "v5e-N", "v5p-N", "v6e-N", "tpu7x-N"))


def test_the_slower_of_arithmetic_and_memory_bounds_a_step() -> None:
    # A core of v3: 6.15e12 / 61.5e12 = 0.1 s of arithmetic, 22.5e9 / 450e9 = 0.05 s of memory.
    result = flown()
    assert result.seconds == pytest.approx({"arithmetic": 0.1, "memory": 0.05})
    assert result.steps_per_s == pytest.approx(10.0)
    assert result.examples_per_s == pytest.approx(10.0 * 32 * 8)
    numbers = json.loads(json.dumps(preflight.as_json(result)))
    assert (numbers["hbm_bytes"], numbers["hbm_bytes_there"]) == (4 * GIB, 16 * GIB)
    assert (numbers["fits"], numbers["bound"], numbers["largest_batch_per_replica"]) == (True, "arithmetic", 128)
    assert numbers["least_step_seconds"] == pytest.approx(0.1)
    assert preflight.as_json(flown(dataclasses.replace(STEP, traffic_bytes=90e9)))["bound"] == "memory"


@pytest.mark.parametrize("fits", [0, 1, 3, 4, 7, 8, 100, 1000, 50_000])
@pytest.mark.parametrize("first", [1, 8, 32, 4096])
def test_the_largest_batch_is_looked_for_in_few_compilations(fits: int, first: int) -> None:
    batches: list[int] = []

    def memory_of(batch: int) -> int | None:
        batches.append(batch)
        return 1000 + 10 * batch if batch <= fits else None

    known = {first: memory_of(first)}
    low, high = largest(memory_of, known=known, fixed_bytes=1000, limit_bytes=1000 + 10 * fits)
    assert low <= fits < (high or fits + 1)
    assert len(batches) == len(set(batches)) <= 5
    if first <= fits:
        assert low >= 0.9 * fits - 8 - 1000 * 0.07 / 10
        assert high is not None or len(batches) <= 3, "a second point, and one that confirms"


def test_a_line_that_points_too_far_is_corrected() -> None:
    bounds = largest(lambda batch: batch**2 if batch <= 100 else None, known={8: 64}, fixed_bytes=0, limit_bytes=10_000)
    assert bounds == (96, 128)


def test_a_search_without_time_or_answer_keeps_what_it_knows() -> None:
    gives_up = seams.raising(CompilerError("no time"))
    assert largest(gives_up, known={8: 5}, fixed_bytes=0, limit_bytes=1000) == (8, None)


def test_a_preflight_counts_the_labels_as_a_training_does(tmp_path: Path) -> None:
    rows = [{"text": f"good {number}", "stars": number % 5} for number in range(20)]
    data = building.built(building.source(tmp_path / "in", train=rows), label_column="stars", max_length=8)
    config = TrainConfig(data=str(data), task="classify", model="bert-tiny", preflight="v3-8")
    job = preflight.checked(config, tpu_slices.parse("v3-8"))
    assert (job.config.num_labels, job.task.num_outputs, job.config.precision) == (5, 5, "bfloat16")


def test_the_table_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    preflight.report(flown(), as_programs=False)
    out, table = capsys.readouterr()
    assert out == ""
    for words in (
        "bert-tiny, classify, float32, rows of 16, on v3-8",
        "4 chips, 8 replicas",
        "256 in total, 32 per replica",
        "4.00 of 16 GiB (25%): fits",
        "6,150.0 GFLOP, 22.50 GB",
        "100.00 ms, bound by arithmetic",
        "10.0 steps/s, 2,560 examples/s",
        "128 per replica fits, 1,024 in total; 136 does not fit",
        "1,000 steps in 100.0 s",
        "not counted",
    ):
        assert words in table


def test_what_does_not_fit_is_an_error_that_knows_the_batch_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    full = flown("Used 20G of 15G hbm.")
    preflight.report(full, as_programs=False)
    assert "more than 16 GiB: does not fit" in capsys.readouterr().err
    assert preflight.as_json(full)["hbm_bytes"] is None
    with pytest.raises(UnfitError, match="Used 20G of 15G hbm") as caught:
        preflight.require_fit(full)
    assert caught.value.remedy == "--global-batch-size 1024 fits"
    preflight.require_fit(flown())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its newest JAX hides the place in a filtered traceback")
def test_what_jax_cannot_trace_is_named_with_its_place() -> None:
    import jax

    from pipelines.train.preflight import compile_step

    with pytest.raises(TypeError) as caught:
        jax.eval_shape(rule_breakers.spells, jax.ShapeDtypeStruct((2, 16), "int32"))
    error = compile_step.explained(caught.value)
    place = Path(rule_breakers.__file__).with_name(rule_breakers.line_of("spells"))
    assert error.cause.startswith(f"{place}: JAX cannot trace the step")
    assert "keras.ops" in error.remedy


def test_the_compiler_sees_no_accelerator_of_this_machine() -> None:
    hidden = {"TPU_NAME": "mine", "XLA_FLAGS": "x", "LIBTPU_INIT_ARGS": "x"}
    environment = compiler.environment({**hidden, "JAX_PLATFORMS": "tpu", "HOME": "/home/me"})
    assert not hidden.keys() & environment.keys()
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["TPU_SKIP_MDS_QUERY"] == "1"
    assert environment["HOME"] == "/home/me"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"jax and libtpu.*; .*\[preflight\]"):
        compiler.require()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo noise; echo 'F0000 check failed' >&2; kill -SEGV $$", "signal 11: F0000 check failed"),
        ("echo one >&2; echo two >&2; exit 3", r"exit status 3: one \| two"),
        ("exit 0", "exit status 0: no message"),
        ("exec sleep 60", "did not finish within 1.0 s"),
    ],
)
def test_a_compiler_that_fails_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str, words: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    os.chmod(program, 0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(CompilerError, match=words):
        compiler.compile_for(tpu_slices.parse("v3-8"), CONFIG, seconds=1.0)
    assert capfd.readouterr() == ("", ""), "its noise is kept out of the terminal"
