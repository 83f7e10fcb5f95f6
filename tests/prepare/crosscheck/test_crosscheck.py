"""A fast engine is compared with the reference while it works, and one wrong token ends its use: nothing that it made
stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.crosscheck import comparing
from pipelines.prepare.dataset import plan_files
from pipelines.prepare.dataset.plan_files import PlanHeader
from pipelines.prepare.tokenize.engines import choice
from tests import building
from tests.prepare.crosscheck import lying_engine

ROWS = 1000
TEXTS = [f"row {number} of some words" for number in range(ROWS)]
CHECKED = comparing.chosen(np.arange(ROWS), seed=0)
LAYOUTS: list[dict[str, Any]] = [{"layout": "pad"}, {"layout": "concat", "shard_size": "6kB"}]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.source(tmp_path_factory.mktemp("dataset") / "rows", train=[{"text": text} for text in TEXTS])


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The texts for which the one fast engine lies."""
    monkeypatch.setattr(choice, "_FAST", {"wordpiece": ("tests.prepare.crosscheck.lying_engine", "open_lying")})
    yield lying_engine.LIES
    lying_engine.LIES.clear()


@pytest.fixture
def lies_when_planned(lies: set[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The texts for which it lies as soon as the sample is taken."""
    later: set[str] = set()
    write_plan = plan_files.write

    def arm(*arguments: Any) -> PlanHeader:
        lies.update(later)
        return write_plan(*arguments)

    monkeypatch.setattr(plan_files, "write", arm)
    return later


def _build(dataset: Path, output: Path, **changes: Any) -> dict[str, Any]:
    outcome = building.command("build", dataset, "--json", *building.options(output, **changes))
    assert outcome.status == 0, outcome.err
    summary: dict[str, Any] = {**json.loads(outcome.out), "err": outcome.err}
    return summary


def _shards(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.glob("*.tfrecord"))}


@pytest.mark.parametrize("seed", [0, 1, -(2**63)])
def test_one_row_in_200_is_chosen_of_the_first_20_000_and_one_in_2_000_later(seed: int) -> None:
    chosen = comparing.chosen(np.arange(4 * 10**6), seed=seed)
    assert abs(np.count_nonzero(chosen < 20_000) - 100) < 40
    for start in range(20_000, 4 * 10**6, 995_000):
        assert abs(np.count_nonzero((chosen >= start) & (chosen < start + 995_000)) - 497) < 90


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (19_000, 21_000), (123_456, 234_567)])
def test_a_row_is_chosen_by_its_number_alone(start: int, stop: int) -> None:
    numbers = np.arange(10**6)
    chosen = comparing.chosen(numbers, seed=0)
    part = np.random.default_rng(0).permutation(numbers[start:stop])
    got = np.sort(part[comparing.chosen(part, seed=0)])
    assert got.tolist() == chosen[(chosen >= start) & (chosen < stop)].tolist()


def test_another_seed_chooses_other_rows() -> None:
    numbers = np.arange(10**6)
    first, second = (comparing.chosen(numbers, seed=seed) for seed in (0, 1))
    assert len(np.intersect1d(first, second)) < 10


@pytest.mark.slow
@pytest.mark.parametrize("changes", LAYOUTS)
def test_the_manifest_says_how_many_rows_the_reference_confirmed(
    dataset: Path, tmp_path: Path, lies: set[str], changes: dict[str, Any]
) -> None:
    summary = _build(dataset, tmp_path, **changes)
    ((engine, counts),) = summary["engines"]["splits"]["train"].items()
    assert engine.startswith("wordpiece ")
    assert counts == {"rows": ROWS, "rows_checked": len(CHECKED)}
    assert summary["engines"]["disproved"] is None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("changes", LAYOUTS)
def test_one_wrong_token_and_every_shard_is_made_again_by_the_reference(
    dataset: Path, tmp_path: Path, lies_when_planned: set[str], changes: dict[str, Any], workers: int
) -> None:
    row = int(CHECKED[-1])
    lies_when_planned.add(TEXTS[row])
    honest = _build(dataset, tmp_path / "hf", engine="hf", **changes)
    summary = _build(dataset, tmp_path / "lied", workers=workers, **changes)
    ((engine, counts),) = summary["engines"]["splits"]["train"].items()
    assert engine.startswith("hf ")
    assert counts == {"rows": ROWS, "rows_checked": 0}
    disproved = summary["engines"]["disproved"]
    assert (disproved["split"], disproved["row"]) == ("train", row)
    assert disproved["engine"].startswith("wordpiece ")
    assert _shards(tmp_path / "lied") == _shards(tmp_path / "hf")
    assert len(_shards(tmp_path / "hf")) == honest["shards_made"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["[MASK]", "<0x0A>", "\x0b", "e\u0301"])
def test_an_engine_that_errs_on_one_odd_row_alone_is_caught(
    tmp_path: Path, lies_when_planned: set[str], odd: str
) -> None:
    row = next(number for number in range(500, ROWS) if number not in CHECKED)
    changed = [*TEXTS]
    changed[row] = f"{TEXTS[row]} {odd}"
    lies_when_planned.add(changed[row])
    dataset = building.source(tmp_path / "rows", train=[{"text": text} for text in changed])
    summary = _build(dataset, tmp_path / "out")
    assert summary["engines"]["disproved"]["row"] == row
    assert [engine.partition(" ")[0] for engine in summary["engines"]["splits"]["train"]] == ["hf"]


def test_the_summary_names_the_engine_and_the_row(dataset: Path, tmp_path: Path, lies_when_planned: set[str]) -> None:
    row = int(CHECKED[0])
    lies_when_planned.add(TEXTS[row])
    outcome = building.command("build", dataset, *building.options(tmp_path))
    assert outcome.status == 0, outcome.err
    said = " ".join(outcome.err.split())
    assert f"gave other tokens for row {row:,} of train" in said
    assert f"tokenized by hf {metadata.version('tokenizers')}: {ROWS:,} rows" in said


@pytest.mark.slow
def test_a_wrong_token_in_the_sample_ends_the_use_of_an_engine_before_it_makes_a_shard(
    dataset: Path, tmp_path: Path, lies: set[str]
) -> None:
    lies.update(TEXTS)
    summary = _build(dataset, tmp_path)
    assert [engine.partition(" ")[0] for engine in summary["engines"]["splits"]["train"]] == ["hf"]
    assert summary["engines"]["disproved"]["engine"].startswith("wordpiece ")


@pytest.mark.slow
def test_a_wrong_token_in_the_battery_is_enough_not_to_take_an_engine(
    dataset: Path, tmp_path: Path, lies: set[str]
) -> None:
    lies.add("Hello, world!  It's 3.14 o'clock, isn't it?")
    summary = _build(dataset, tmp_path)
    assert [engine.partition(" ")[0] for engine in summary["engines"]["splits"]["train"]] == ["hf"]
    assert summary["engines"]["disproved"] is None


@pytest.mark.slow
@pytest.mark.parametrize("content", ['{"engine": "wordpiece 1", "split": "train", "row": 5}', "{", "[]"])
def test_a_build_that_goes_on_makes_again_what_a_disproved_engine_had_made(
    dataset: Path, tmp_path: Path, lies: set[str], content: str
) -> None:
    before = _build(dataset, tmp_path)
    (folder,) = (path for path in (tmp_path / ".prep").iterdir() if path.is_dir())
    (folder / "engine_mismatch.json").write_text(content)
    after = _build(dataset, tmp_path)
    assert after["shards_made"] == before["shards_made"]
    assert [engine.partition(" ")[0] for engine in after["engines"]["splits"]["train"]] == ["hf"]
    assert _build(dataset, tmp_path)["shards_made"] == 0


@pytest.mark.slow
def test_a_split_that_a_disproved_engine_made_earlier_is_not_kept_beside_a_new_one(
    tmp_path: Path, lies_when_planned: set[str]
) -> None:
    splits = {name: [{"text": f"{name} {text}"} for text in TEXTS] for name in ("train", "test")}
    dataset = building.source(tmp_path / "rows", **splits)
    _build(dataset, tmp_path / "out", split="train")
    lies_when_planned.add(f"test {TEXTS[int(CHECKED[-1])]}")
    alone = building.command("build", dataset, *building.options(tmp_path / "out", split="test"))
    cause, remedy = alone.error
    assert "split 'train' was made by wordpiece" in cause
    assert "ask for all splits at once" in remedy
    assert set(building.read_manifest(tmp_path / "out").splits) == {"train"}
    summary = _build(dataset, tmp_path / "out", split=("train", "test"))
    for engines in summary["engines"]["splits"].values():
        assert [engine.partition(" ")[0] for engine in engines] == ["hf"]


def test_an_engine_that_does_not_serve_the_tokenizer_is_refused_by_name(dataset: Path, tmp_path: Path) -> None:
    outcome = building.command("build", dataset, *building.options(tmp_path, engine="gigatoken"))
    cause, remedy = outcome.error
    assert "--engine gigatoken does not serve this tokenizer" in cause
    assert "leave --engine out" in remedy
