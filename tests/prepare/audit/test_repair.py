"""Repair remakes damaged files byte for byte and touches nothing else, or touches nothing at all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.prepare.shards import shard_writer
from tests import building
from tests.building import REVIEWS, Outcome, flip, reviews, train_shards
from tests.support.tokenizers_zoo import Zoo


def repair(root: Path, *arguments: object) -> Outcome:
    return building.command("verify", root, "--repair", *arguments)


def swap(root: Path) -> None:
    first, second = train_shards(root)[:2]
    first.rename(root / "x")
    second.rename(first)
    (root / "x").rename(second)


def remove(root: Path, pattern: str) -> None:
    for path in sorted(root.glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


DAMAGE: dict[str, list[Callable[[Path], object]]] = {
    "flip": [lambda root: flip(train_shards(root)[1], 500)],
    "gone": [lambda root: remove(root, "*-train-00000-*")],
    "swapped": [swap],
    "all": [lambda root: [path.write_bytes(path.read_bytes()[:100]) for path in root.glob("*.tfrecord")]],
    "index gone": [lambda root: remove(root, "index")],
    "index changed": [lambda root: flip(next((root / "index").iterdir()), -1)],
    "index and shard": [lambda root: remove(root, "index"), lambda root: flip(train_shards(root)[0], 3)],
    "tokenizer gone": [lambda root: remove(root, "tokenizer")],
    "tokenizer changed": [lambda root: flip(root / "tokenizer" / "tokenizer.json", 20)],
    "a file too many": [lambda root: (root / "tokenizer" / "more.json").write_bytes(b"{}")],
    "tfds": [lambda root: flip(root / "dataset_info.json", 5)],
    "tfds gone": [lambda root: remove(root, "features.json"), lambda root: remove(root, "label.labels.txt")],
    "receipts gone": [lambda root: remove(root, ".prep/*/train/receipt-*"), lambda root: remove(root, "*-train-*")],
    "the workers' tokenizer": [
        lambda root: remove(root, ".prep/*/tokenizer"),
        lambda root: flip(train_shards(root)[0], 3),
    ],
}


@pytest.mark.parametrize("engine", ["wordpiece", "hf"])
@pytest.mark.engines
def test_the_engine_of_the_manifest_makes_it_again(tmp_path: Path, engine: str) -> None:
    root = Path(shutil.copytree(reviews(engine=engine), tmp_path / "out"))
    before = building.files(root)
    remove(root, (gone := train_shards(root)[1]).name)
    (finding,) = json.loads(repair(root, "--json").out)
    assert finding.items() >= {"part": "shard", "file": gone.name, "split": "train", "repaired": True}.items()
    assert "no such file" in finding["problem"]
    assert building.files(root) == before, "its receipt names the engine, too"


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_what_is_damaged_is_made_again_and_nothing_else(finished: Path, damage: str) -> None:
    before = building.files(finished)
    for change in DAMAGE[damage]:
        change(finished)
    damaged = building.files(finished)
    sound = {name for name, content in damaged.items() if before.get(name) == content and not name.startswith(".prep")}
    times = {name: (finished / name).stat().st_mtime_ns for name in sound}
    assert building.command("verify", finished).status == 1
    outcome = repair(finished)
    assert outcome.status == 0, outcome.err
    assert building.files(finished) == before
    kept = {name for name in sound if (finished / name).stat().st_mtime_ns == times[name]}
    # A shard brings its index along.
    assert {name for name in sound - kept if not name.startswith("index/")} == set()


@pytest.mark.slow
def test_rejected_rows_come_back(tmp_path: Path) -> None:
    rows = [{"text": None if row % 5 == 0 else f"row {row}"} for row in range(100)]
    data = building.source(tmp_path / "data", train=rows)
    root = tmp_path / "out"
    assert building.command("build", data, *building.options(root, max_error_rate=0.5)).status == 0
    before = building.files(root)
    (rejected,) = (root / "rejected").iterdir()
    assert len(rejected.read_bytes().splitlines()) == 20
    trace = ("trace", root, "--split", "train", "--shard", 0, "--record", 0)
    other_reasons = rejected.read_bytes().replace(b"text_null", b"label_null")
    for content in (None, b"", b"{", b"[]\n", b'{"row": "x"}\n', b'{"row": 5000}\n', other_reasons):
        rejected.unlink() if content is None else rejected.write_bytes(content)
        cause, _ = building.command("verify", root).error
        assert cause.endswith("1 file damaged or missing, the first is rejected/train-00000.jsonl")
        if content is not other_reasons:
            cause, remedy = building.command(*trace).error
            assert cause == f"{rejected}: 0 rejected rows of this shard, expected 20"
            assert "verify --repair" in remedy
        assert repair(root).status == 0
        assert building.files(root) == before
    assert building.command(*trace).status == 0


def test_a_sound_dataset_is_left_as_it_is(finished: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    outcome = repair(finished, "--json")
    assert (outcome.status, json.loads(outcome.out)) == (0, [])
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == times


def test_with_a_changed_source_nothing_is_changed(tmp_path: Path) -> None:
    data, root = Path(shutil.copytree(REVIEWS, tmp_path / "reviews")), tmp_path / "out"
    assert building.command("build", data, *building.options(root, label_column="label")).status == 0
    train_shards(root)[0].unlink()
    flip(train_shards(root)[0], 200)
    (root / "features.json").unlink()
    lines = (data / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (data / "train.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    before = building.files(root)
    cause, remedy = repair(root).error
    assert "the source has changed since the dataset was made (files[train.jsonl].bytes: was " in cause
    assert cause.endswith("the dataset was not changed")
    assert "--source" in remedy
    assert building.files(root) == before


def test_a_shard_that_comes_out_otherwise_is_not_written(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates another version of the tokenizers library, with other tokens."""
    monkeypatch.setattr(shard_writer, "shuffle_rng", lambda job, task, *, length: None)
    train_shards(finished)[1].unlink()
    before = building.files(finished)
    cause, remedy = repair(finished).error
    assert "when this shard was made again, it had " in cause
    assert "sha256 " in cause
    assert cause.endswith("the file was not changed")
    assert "versions of the libraries" in remedy
    assert building.files(finished) == before


@pytest.mark.parametrize(
    ("gone", "advice"),
    [
        ([".prep"], "copy .prep/ again"),
        ([".prep/*/source.json"], "copy .prep/ again"),
        ([".prep/*/train/plan.json"], "copy .prep/ again"),
        ([".prep/*/tokenizer", "tokenizer"], "copy one of these folders from an intact copy"),
    ],
)
def test_without_what_it_is_made_from_there_is_no_repair(finished: Path, gone: list[str], advice: str) -> None:
    for pattern in gone:
        remove(finished, pattern)
    train_shards(finished)[0].unlink()
    before = building.files(finished)
    cause, remedy = repair(finished).error
    assert ".prep/" in cause
    assert advice in remedy
    assert building.files(finished) == before


@pytest.mark.slow
def test_a_dataset_of_several_splits_and_slices_is_repaired_from_its_plans(tmp_path: Path, zoo: Zoo) -> None:
    """Splits added one after the other, by different commands."""
    root = tmp_path / "out"
    for split in ("train[:50]+train[100:150]", "validation[5:40]"):
        assert building.command("build", REVIEWS, *building.options(root, split=split)).status == 0
    before = building.files(root)
    for path in root.glob("*.tfrecord"):
        path.unlink()
    assert repair(root).status == 0
    assert building.files(root) == before
