"""A fast engine is compared with the reference while it works, and one wrong token ends the build."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.dataset import plan_files
from pipelines.prepare.layouts import crosscheck
from tests import building
from tests.support import lying_engine, seams

ROWS = 1200
TEXTS = [f"row {number} of some words" for number in range(ROWS)]
CHECKED = crosscheck.chosen(np.arange(ROWS), seed=0)
LAYOUTS: list[dict[str, Any]] = [
    {"layout": "pad", "max_length": 16, "shard_size": "20kB"},
    {"layout": "concat", "shard_size": "6kB"},
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.source(tmp_path_factory.mktemp("dataset") / "rows", train=[{"text": text} for text in TEXTS])


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The texts with wrong tokens from the only fast engine."""
    seams.put(monkeypatch, fast_engines={"wordpiece": ("tests.support.lying_engine", "open_lying")})
    yield lying_engine.LIES
    lying_engine.LIES.clear()


@pytest.fixture
def lies_when_planned(lies: set[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The texts with wrong tokens as soon as the sample is taken."""
    later: set[str] = set()
    write_plan = plan_files.write

    def arm(*arguments: Any) -> None:
        lies.update(later)
        write_plan(*arguments)

    seams.put(monkeypatch, write_plan=arm)
    return later


def _build(dataset: Path, output: Path, **changes: Any) -> dict[str, Any]:
    options = building.options(output, **{"shard_size": "40kB", **changes})
    outcome = building.command("build", dataset, "--json", *options)
    assert outcome.status == 0, outcome.err
    summary: dict[str, Any] = {**json.loads(outcome.out), "err": outcome.err}
    return summary


@pytest.mark.parametrize("seed", [0, -(2**63)])
def test_one_row_in_2_000_is_chosen_and_others_by_another_seed(seed: int) -> None:
    chosen = crosscheck.chosen(np.arange(4 * 10**6), seed=seed)
    for start in range(0, 4 * 10**6, 10**6):
        assert abs(np.count_nonzero((chosen >= start) & (chosen < start + 10**6)) - 500) < 90
    assert len(np.intersect1d(chosen, crosscheck.chosen(np.arange(4 * 10**6), seed=5))) < 10


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (19_000, 21_000), (123_456, 234_567)])
def test_a_row_is_chosen_by_its_number_alone(start: int, stop: int) -> None:
    numbers = np.arange(10**6)
    chosen = crosscheck.chosen(numbers, seed=0)
    part = np.random.default_rng(0).permutation(numbers[start:stop])
    checked = np.sort(part[crosscheck.chosen(part, seed=0)])
    assert checked.tolist() == chosen[(chosen >= start) & (chosen < stop)].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("changes", LAYOUTS)
def test_one_wrong_token_ends_the_build_and_the_reference_makes_every_shard(
    dataset: Path, tmp_path: Path, lies_when_planned: set[str], changes: dict[str, Any]
) -> None:
    row = int(CHECKED[-1])
    lies_when_planned.add(TEXTS[row])
    _build(dataset, tmp_path / "hf", engine="hf", **changes)
    outcome = building.command("build", dataset, *building.options(tmp_path / "lied", workers=1, **changes))
    cause, remedy = outcome.error
    assert cause.startswith(f"row {row:,} of train: the engine wordpiece ")
    assert "--engine hf" in remedy
    assert not (tmp_path / "lied" / "manifest.json").exists()
    summary = _build(dataset, tmp_path / "lied", engine="hf", **changes)
    assert summary["shards_made"] == len(building.shard_bytes(tmp_path / "hf")) > 2
    ((engine, counts),) = summary["engines"]["splits"]["train"].items()
    assert engine.startswith("hf ")
    assert counts == {"rows": ROWS, "rows_checked": 0}
    assert building.shard_bytes(tmp_path / "lied") == building.shard_bytes(tmp_path / "hf")


def test_a_wrong_token_in_the_sample_ends_the_build_before_anything_is_written(
    dataset: Path, tmp_path: Path, lies: set[str]
) -> None:
    lies.update(TEXTS)
    outcome = building.command("build", dataset, *building.options(tmp_path / "out"))
    assert "produces different tokens from the reference tokenizer" in outcome.error[0]
    assert not building.shard_bytes(tmp_path / "out")


@pytest.mark.slow
def test_the_manifest_says_how_many_rows_the_reference_confirmed_and_engine_hf_makes_it_again(
    dataset: Path, tmp_path: Path, lies: set[str]
) -> None:
    before = _build(dataset, tmp_path)
    ((engine, counts),) = before["engines"]["splits"]["train"].items()
    assert engine.startswith("wordpiece ")
    assert counts == {"rows": ROWS, "rows_checked": len(CHECKED)}
    assert _build(dataset, tmp_path)["shards_made"] == 0
    after = _build(dataset, tmp_path, engine="hf")
    assert after["shards_made"] == before["shards_made"]
    assert [engine.partition(" ")[0] for engine in after["engines"]["splits"]["train"]] == ["hf"]
    assert _build(dataset, tmp_path, engine="hf")["shards_made"] == 0
