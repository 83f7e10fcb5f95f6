"""Verify, trace and repair know the generations of a dataset that was appended to."""

import json
import shutil
from pathlib import Path

import pytest

from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.audit.trace import Tracer
from tests import building
from tests.building import command, read_manifest
from tests.prepare.append import appended
from tests.prepare.append.appended import NEW, OLD, OPTIONS, build, done, grown, json_lines, numbers


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, out = grown(tmp_path_factory.mktemp("appended"))
    done(build(data, out, "--append"))
    return out


@pytest.fixture
def root(shared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared, tmp_path / "out"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"bucket_lengths": "12,32"}, {"hold_out": "validation=20%"}, {"max_error_rate": 0.5}]
)
def test_every_record_leads_to_its_row(tmp_path: Path, changes: dict[str, object]) -> None:
    data, out = grown(tmp_path, **changes)
    if "max_error_rate" in changes:  # a row of the new file that cannot be used
        with (data / "train-b.jsonl").open("a") as stream:
            stream.write(json.dumps({"text": None, "number": 100, "label": "bad"}) + "\n")
    done(build(data, out, "--append", **changes))
    manifest = read_manifest(out)
    tracer = Tracer(reopened_dataset.reopen(str(out), manifest))
    seen = []
    for split in manifest.splits:
        for index, shard in enumerate(manifest.splits[split].shards):
            for record, number in enumerate(building.read_shard(out, shard)["number"].tolist()):
                (row,) = tracer.trace(split=split, shard=index, record=record).rows
                assert (row.row, row.texts["text"]) == (number, appended.row(number)["text"])
                assert (row.file or "").endswith("train-a.jsonl" if number in OLD else "train-b.jsonl")
                assert row.file_row == (number if number in OLD else number - len(OLD))
                seen.append(number)
    assert sorted(seen) == [*OLD, *NEW]


def test_damaged_shards_of_each_generation_are_made_again(root: Path) -> None:
    before = building.files(root)
    names = [shard.name for shard in read_manifest(root).splits["train"].shards]
    for name in (names[0], names[-1]):
        building.flip(root / name, 40)
    (root / names[-2]).unlink()
    (root / "index" / f"{names[1]}.offsets").unlink()
    shutil.rmtree(root / "tokenizer")
    assert command("verify", root).status == 1
    outcome = command("verify", root, "--repair")
    assert outcome.status == 0, outcome.err
    assert building.files(root) == before


def test_a_manifest_from_before_an_append_is_checked_and_cannot_be_made_again(root: Path) -> None:
    former = root / "manifest-0.json"
    for damage in (b"{", (root / "manifest.json").read_bytes(), None):
        former.unlink() if damage is None else former.write_bytes(damage)
        outcome = command("verify", root)
        assert "manifest-0.json" in outcome.out
        assert outcome.status == 1
        assert outcome.error[1].startswith("copy it from an intact copy")
    assert "manifest-0.json, the manifest from before" in command("verify", root, "--repair").error[0]


@pytest.mark.slow
def test_new_files_may_sort_before_old_ones(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    options: dict[str, object] = {"no_shuffle": True}
    json_lines(data / "train-c.jsonl", OLD)
    done(build(data, out, **options))
    json_lines(data / "train-b.jsonl", NEW)
    done(build(data, out, "--append", **options))
    json_lines(data / "train-a.jsonl", range(100, 110))
    assert done(build(data, out, "--append", **options))["shards_made"] > 0
    assert numbers(out) == list(range(110))
    shards = building.read_manifest(out).splits["train"].shards
    for shard in (shards[0], shards[-1]):
        before = (out / shard.name).read_bytes()
        (out / shard.name).write_bytes(b"")
        assert building.command("verify", out, "--repair").status == 0
        assert (out / shard.name).read_bytes() == before
    traced = building.command("trace", out, "--split", "train", "--shard", len(shards) - 1, "--record", 0)
    assert f"row 1 of {data / 'train-a.jsonl'}" in traced.out
    words = building.command("build", data, "--append", "--json", *building.options(out, **{**OPTIONS, **options})).err
    assert "no rows that are not in this dataset" in words
