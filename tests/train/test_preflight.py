"""Whole preflights through the command line, with the real TPU compiler."""

import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.train.config import TrainConfig
from pipelines.train.preflight import compiler, tpu_slices
from pipelines.train.preflight.compiler import Compiled
from pipelines.train.preflight.tpu_slices import Slice
from tests import building
from tests.support import processes
from tests.train import rule_breakers, training

pytestmark = pytest.mark.slow

# The program of the compiler's process for one request after another, with one layer in bert-tiny.
REQUESTS = """
import sys
from pipelines.train.models import backbones
from pipelines.train.preflight import compile_step
backbones._SIZES["tiny"] = (1, 2, 128)
for line in sys.stdin:
    sys.argv[1:] = line.split()
    compile_step.main()
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def imported() -> Iterator[Any]:
    """`subprocess` for the compiler, in a process that has already imported JAX, TensorFlow and Keras: 7 s of CPU."""
    environment = compiler.environment(building.environment())
    command, pipe = [sys.executable, "-c", REQUESTS], subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
            print(*words[-2:], file=stdin, flush=True)
            assert "done\n" in iter(stdout.readline, "")
            return subprocess.CompletedProcess(words, 0)

        yield types.SimpleNamespace(**{**vars(subprocess), "run": run})


@pytest.fixture
def one_process(imported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "subprocess", imported)


@pytest.mark.usefixtures("one_process")
def test_the_bundled_model_compiles_for_v3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"preflight": "v3-8", "global_batch_size": 64}
    outcome = training.done(None, model="bert-tiny", dropout=0.0, **options)
    figures = json.loads(outcome.out)
    # 2.2e5 weights of one layer at 6 operations for each of 8 * 16 tokens; the rest is attention, norms, and AdamW.
    assert 6 * 2e5 * 8 * 16 < figures["flops_per_step"] < 4 * 6 * 2e5 * 8 * 16
    # Weights and AdamW's two means, 4 bytes each, and the step's other needs.
    assert 3 * 4 * 4.6e5 < figures["hbm_bytes"] < 100e6
    assert figures["bytes_per_step"] > 3 * 4 * 4.6e5
    assert figures["fits"] is True
    assert "4 chips, 8 replicas" in outcome.err
    assert not list(tmp_path.iterdir()), "nothing is trained, nothing is written"


def test_what_xla_cannot_compile_is_named_with_its_place(tmp_path: Path) -> None:
    outcome = training.command(tmp_path, model="tests.train.rule_breakers:decides", preflight="v3-8")
    assert outcome.status == 1
    cause, remedy = outcome.error
    assert "depends on the data" in cause
    assert rule_breakers.line_of("decides") in cause
    assert remedy


@pytest.mark.usefixtures("one_process")
def test_too_large_a_batch_fails_and_the_largest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, batches = compiler.compile_for, []

    def compile_for(wanted: Slice, config: TrainConfig, *, seconds: float) -> Compiled | str:
        batches.append(config.global_batch_size // wanted.replicas)
        if len(batches) == 1:
            return real(wanted, config, seconds=seconds)
        return Compiled(argument_bytes=1, memory_bytes=1, flops=1.0, traffic_bytes=1.0, seconds=1.0, versions={})

    monkeypatch.setattr(compiler, "compile_for", compile_for)
    outcome = training.command(
        tmp_path, model="tests.train.rule_breakers:grows", preflight="v3-8", global_batch_size=8 * 8, largest_batch=True
    )
    assert outcome.status == 1
    figures = json.loads(outcome.out)
    assert figures["fits"] is False
    assert (*batches, figures["largest_batch_per_replica"], figures["smallest_batch_too_large"]) == (8, 2, 2, 8)
    cause, remedy = outcome.error
    assert "Ran out of memory" in cause
    assert remedy == "--global-batch-size 16 fits"


@pytest.mark.usefixtures("one_process")
def test_a_model_beyond_one_chip_is_divided() -> None:
    config = TrainConfig(data=str(training.data()), task="classify", model="tests.train.small:bag", shard_model=True)
    compiled = compiler.compile_for(tpu_slices.parse("v5e-8"), config, seconds=300)
    assert isinstance(compiled, Compiled)
    # The embedding and AdamW's two means: 2,000 entries of 16 numbers of 4 bytes, an eighth on each chip.
    assert 3 * 4 * 2000 * 16 / 8 < compiled.argument_bytes < 3 * 4 * 2000 * 16 / 4


@pytest.mark.usefixtures("one_process")
def test_a_reference_takes_the_memory_of_the_weights_again() -> None:
    config = TrainConfig(data=str(training.pairs()), task="dpo", model="gpt2-tiny")
    compiled = compiler.compile_for(tpu_slices.parse("v5e-1"), config, seconds=300)
    assert isinstance(compiled, Compiled)
    # Weights, AdamW's two means, and the reference, 4 bytes each.
    weights = (600 + 32) * 128 + 12 * 128**2 + 15 * 128
    assert 4 * 4 * weights < compiled.argument_bytes < 5 * 4 * weights


# Requests more memory than any generation has, from each of them; prints the compiler's message.
ASKS = """
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pipelines.train.preflight import tpu_slices
for generation in tpu_slices.GENERATIONS.values():
    wanted = tpu_slices.parse(f"{generation.name}-{generation.sizes.split()[0]}")
    devices = topologies.get_topology_desc(wanted.topology, platform="tpu", **wanted.layout).devices
    assert len(devices) == wanted.replicas, wanted
    everywhere = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
    large = jax.ShapeDtypeStruct((64, 8192, 8192, 16), "float32", sharding=everywhere)
    try:
        jax.jit(lambda values: values + 1).lower(large).compile()
    except jax.errors.JaxRuntimeError as error:
        print(generation.name, tpu_slices.peak_flops_per_s(devices[0].device_kind), str(error).replace(chr(10), " "))
"""


def test_the_compiler_knows_every_generation_with_the_memory_of_our_table() -> None:
    ended = processes.run([sys.executable, "-c", ASKS], env=compiler.environment(processes.environment()))
    lines = [line.split(maxsplit=2) for line in ended.stdout.splitlines()]
    assert [name for name, *_ in lines] == list(tpu_slices.GENERATIONS), ended.stderr
    for name, flops, message in lines:
        generation = tpu_slices.GENERATIONS[name]
        there = re.search(r"available HBM \(([\d.]+)G\)", message)
        assert there is not None, message
        # A little is kept back by the system; v5p has 95.74 GiB.
        assert 0.93 <= float(there[1]) / (generation.replica_bytes / 2**30) <= 1.01
        assert float(flops) == generation.replica_flops_per_s, "the name of JAX is known"
