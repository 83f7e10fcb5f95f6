"""Whole preflights through the command line, with the real TPU compiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines.train.preflight import compiler, tpu_slices
from pipelines.train.preflight.compiler import Compiled, OutOfMemory
from pipelines.train.preflight.errors import CompilerError
from tests import building
from tests.train import training

pytestmark = pytest.mark.slow

BREAKERS = Path(__file__).with_name("rule_breakers.py")
V3 = tpu_slices.GENERATIONS["v3"]
DOUBLING = """
func.func @main(%arg0: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %0 = mhlo.copy %arg0 : tensor<8x128xf32>
  %1 = stablehlo.add %0, %0 : tensor<8x128xf32>
  return %1 : tensor<8x128xf32>
}
"""


def line_of(comment: str) -> str:
    """FILE:LINE of the line that ends with a comment."""
    lines = BREAKERS.read_text().splitlines()
    [number] = [index for index, line in enumerate(lines, start=1) if line.endswith(f"# {comment}")]
    return f"rule_breakers.py:{number}"


def test_the_bundled_model_compiles_for_v3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = training.command(None, model="bert-tiny", preflight="v3-8", global_batch_size=64, no_largest_batch=True)
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    # 4.4e5 weights of two layers at 6 operations for each of 8 * 16 tokens; the rest is attention, norms and AdamW.
    assert 6 * 4e5 * 8 * 16 < found["flops_per_step"] < 2 * 6 * 4e5 * 8 * 16
    # Weights and AdamW's two means, 4 bytes each, and what the step needs besides.
    assert 3 * 4 * 6.6e5 < found["hbm_bytes"] < 100e6
    assert found["bytes_per_step"] > 3 * 4 * 6.6e5
    assert found["fits"] is True
    assert found["reader_examples_per_s"] > 0
    assert "4 chips, 8 replicas" in outcome.err
    assert not list(tmp_path.iterdir()), "nothing is trained, nothing is written"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("decides", "Python decides on a tensor's value"),
        ("drops", "operation Where"),
        ("collects", "operation Unique"),
        ("spells", "operation AsString"),
    ],
)
def test_what_xla_cannot_compile_is_named_with_its_place(tmp_path: Path, model: str, words: str) -> None:
    outcome = training.command(tmp_path, model=f"tests.train.rule_breakers:{model}", preflight="v3-8")
    assert outcome.status == 1
    cause, remedy = outcome.error
    assert words in cause
    assert line_of(model) in cause
    assert remedy


def test_a_batch_too_large_is_an_error_and_the_largest_is_found(tmp_path: Path) -> None:
    outcome = training.command(
        tmp_path, model="tests.train.rule_breakers:grows", preflight="v3-8", global_batch_size=8 * 1024
    )
    assert outcome.status == 1
    found = json.loads(outcome.out)
    fits = found["largest_batch_per_replica"]
    assert found["fits"] is False
    assert 1 <= fits < found["smallest_batch_too_large"] <= fits + 8
    cause, remedy = outcome.error
    assert "Ran out of memory" in cause
    assert remedy == f"--global-batch-size {fits * 8} fits"


@pytest.mark.parametrize("generation", tpu_slices.GENERATIONS.values(), ids=tpu_slices.GENERATIONS)
def test_the_compiler_knows_every_generation_with_the_memory_of_our_table(generation: tpu_slices.Generation) -> None:
    found = compiler.compile_for(generation, stablehlo=DOUBLING.replace("8x128", "64x8192x8192x16"), seconds=100)
    assert isinstance(found, OutOfMemory)
    there = re.search(r"available HBM \(([\d.]+)G\)", found.words)
    assert there is not None, found.words
    # A little is kept back by the system; v5p has 95.74 GiB.
    assert 0.93 <= float(there[1]) / (generation.replica_bytes / 2**30) <= 1.01


def test_two_compilers_do_not_disturb_each_other_and_leave_no_file() -> None:
    lock = Path("/tmp/libtpu_lockfile")
    there = lock.exists()
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: compiler.compile_for(V3, stablehlo=DOUBLING, seconds=100), range(2)))
    assert all(isinstance(each, Compiled) and each.flops == 8 * 128 for each in found)
    assert lock.exists() == there


def test_a_program_that_cannot_be_read_is_the_compilers_error() -> None:
    with pytest.raises(CompilerError, match="exit status 1"):
        compiler.compile_for(V3, stablehlo="no program", seconds=100)


def test_the_compilers_process_never_imports_tensorflow(tmp_path: Path) -> None:
    step = tmp_path / "step.mlir"
    step.write_text(DOUBLING)
    program = (
        "import sys; from pipelines.train.preflight import compile_for_tpu; compile_for_tpu.main()\n"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    words = [sys.executable, "-c", program, str(step), str(tmp_path / "result"), "--topology", "v3:2x2"]
    environment = compiler.environment(building.environment())
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr
    assert json.loads((tmp_path / "result").read_text())["outcome"] == "compiled"
