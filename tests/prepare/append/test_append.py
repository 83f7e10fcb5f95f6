"""`build --append`: new rows of a source become further shards, and existing files stay unchanged."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest import IngestSource, IngestTask
from tests import building
from tests.building import read_manifest
from tests.prepare.append.appended import NEW, OLD, OPTIONS, build, done, grown, json_lines, numbers, parquet
from tests.support import seams
from tfrecord_io import manifest, random_access, reader

Write = Callable[[Path, Iterable[int]], Path]


@pytest.mark.parametrize("changes", [{"compression": "gzip"}, {"label_column": "label"}])
def test_old_files_keep_their_bytes_and_new_shards_come_behind_them(tmp_path: Path, changes: dict[str, object]) -> None:
    data, out = grown(tmp_path, **changes)
    before = building.files(out)
    summary = done(build(data, out, "--append", **changes))
    after = building.files(out)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed <= {"manifest.json", "dataset_info.json", "features.json", "label.labels.txt"}
    assert after["manifest-0.json"] == before["manifest.json"]
    names = [shard.name for shard in read_manifest(out).splits["train"].shards]
    old = [shard.name for shard in manifest.parse(before["manifest.json"]).splits["train"].shards]
    assert names[: len(old)] == old
    assert [int(name.split("-")[2]) for name in names] == list(range(len(names)))
    assert {name.partition("-of-")[2][:5] for name in names[len(old) :]} == {f"{len(names):05d}"}
    assert summary["shards_made"] == len(names) - len(old) > 0
    assert sorted(numbers(out)) == [*OLD, *NEW]
    assert building.command("verify", out).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("write", [parquet, json_lines])
def test_in_the_order_of_the_source_the_rows_are_those_of_one_build(tmp_path: Path, write: Write) -> None:
    data, kind = tmp_path / "data", "jsonl" if write is json_lines else "parquet"
    options: dict[str, object] = {"no_shuffle": True, "label_column": "label", "hold_out": "validation=20%"}
    write(data / f"train-a.{kind}", OLD)
    done(build(data, tmp_path / "out", **options))
    write(data / f"train-b.{kind}", NEW)
    done(build(data, tmp_path / "out", "--append", **options))
    done(build(data, tmp_path / "whole", **options))
    for split in ("train", "validation"):
        appended, whole = (building.read_rows(tmp_path / name, split) for name in ("out", "whole"))
        assert all(np.array_equal(appended[name], whole[name]) for name in whole)
        ledgers = [read_manifest(tmp_path / name).splits[split].ledger for name in ("out", "whole")]
        assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("layout", ["concat", "pack"])
def test_rows_are_joined_with_those_of_their_generation_alone(tmp_path: Path, layout: str) -> None:
    options: dict[str, object] = {"layout": layout, "keep_column": None, "no_shuffle": True, "shard_size": "1MB"}
    data, out = grown(tmp_path, **options)
    old = building.read_rows(out, "train")
    done(build(data, out, "--append", **options))
    done(build(json_lines(tmp_path / "new" / "train.jsonl", NEW), tmp_path / "alone", **options))
    alone, both = building.read_rows(tmp_path / "alone", "train"), building.read_rows(out, "train")
    for name in old:
        assert np.array_equal(both[name], np.concatenate([old[name], alone[name]]))


def test_appends_follow_one_another_and_may_bring_new_splits_but_no_new_lengths(tmp_path: Path) -> None:
    data, out = grown(tmp_path, bucket_lengths="auto:2")
    lengths = read_manifest(out).bucket_lengths
    done(build(data, out, "--append", bucket_lengths="auto:2"))
    json_lines(data / "train-c.jsonl", range(100, 110))
    json_lines(data / "test.jsonl", range(200, 230))
    moved = shutil.copytree(building.tokenizer(), tmp_path / "tokenizer")
    done(build(data, out, "--append", tokenizer=moved, bucket_lengths="auto:2"))
    assert sorted(numbers(out)) == list(range(110))
    assert sorted(numbers(out, "test")) == list(range(200, 230))
    facts = read_manifest(out)
    assert facts.bucket_lengths == lengths
    order = [(shard.length, shard.task) for shard in facts.splits["train"].shards]
    assert order == sorted(order)
    assert [dict(step.rows) for step in facts.generations] == [
        {"train": ((0, 60),)},
        {"train": ((60, 100),)},
        {"train": ((100, 110),), "test": ((0, 30),)},
    ]
    kept = [manifest.parse((out / f"manifest-{number}.json").read_bytes()) for number in range(2)]
    assert [past.fingerprint for past in (*kept, facts)] == [step.fingerprint for step in facts.generations]
    assert building.command("verify", out).status == 0


@pytest.mark.slow
def test_a_higher_limit_appends_the_rows_behind_it(tmp_path: Path) -> None:
    data, out = json_lines(tmp_path / "data" / "train.jsonl", OLD), tmp_path / "out"
    done(build(data, out, limit=20))
    done(build(data, out, "--append", limit=45))
    assert sorted(numbers(out)) == list(range(45))
    done(build(data, out, "--append"))
    assert sorted(numbers(out)) == [*OLD]
    assert read_manifest(out).source["splits"] == {"train": [[0, 60]]}


def test_old_files_are_not_ingested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = grown(tmp_path, label_column="label")
    read: list[str] = []
    run = ingest.run

    def note(source: IngestSource, task: IngestTask, *progress: Any) -> Any:
        stream = source.streams[task.split]
        read.extend(stream.files[shard].name for shard in stream.shards_of(task))
        return run(source, task, *progress)

    seams.put(monkeypatch, ingest_task=note)
    seams.put(monkeypatch, ingest_children=lambda *_, **__: 0)  # in this process
    seams.put(monkeypatch, ingest_part_bytes=100)
    done(build(data, out, "--append", label_column="label"))
    assert read == ["train-b.jsonl"]


def test_more_files_than_the_manifest_names_are_compared_by_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seams.put(monkeypatch, most_named=2)
    data, out = tmp_path / "data", tmp_path / "out"
    for number in range(3):
        json_lines(data / f"train-{number}.jsonl", range(10 * number, 10 * number + 10))
    done(build(data, out))
    json_lines(data / "train-3.jsonl", range(30, 40))
    done(build(data, out, "--append"))
    assert sorted(numbers(out)) == list(range(40))
    json_lines(data / "train-0.jsonl", range(500, 510))
    json_lines(data / "train-4.jsonl", range(40, 50))
    cause, _ = build(data, out, "--append").error
    assert "its first 4 files are not the files" in cause


@pytest.mark.slow
def test_plan_shows_the_new_rows_alone_and_none_change_nothing(tmp_path: Path) -> None:
    data, out = grown(tmp_path)
    before = building.files(out)
    outcome = building.command("plan", data, "--append", "--json", *building.options(out, **OPTIONS))
    assert outcome.status == 0, outcome.err
    assert [split["rows"] for split in json.loads(outcome.out)] == [len(NEW)]
    assert building.files(out) == before
    done(build(data, out, "--append"))
    before = building.files(out)
    outcome = build(data, out, "--append")
    assert done(outcome)["shards_made"] == 0
    assert "no rows that are not in this dataset; nothing was changed" in outcome.err
    assert building.files(out) == before
    cause, _ = build(data, out, max_length=8).error
    assert cause.endswith("holds a dataset made from something else (max_length: was 32, now 8)")
    json_lines(min(data.iterdir()), range(900, 905))
    _, remedy = build(data, out).error  # an append would be refused
    assert remedy.startswith("put the file back and new rows into another file, and add --append")


@pytest.mark.slow
def test_readers_of_the_former_manifest_go_on_and_may_open_it_again(tmp_path: Path) -> None:
    data, out = grown(tmp_path)
    opened, graph = random_access.open(out)["train"], reader.open(out)
    batches = iter(graph.dataset("train", global_batch_size=8, training=True, seed=1))
    first = next(batches)["number"].numpy().tolist()
    done(build(data, out, "--append"))
    former = out / "manifest-0.json"
    assert sorted(int(row["number"]) for row in opened) == [*OLD]
    assert {number for _ in range(20) for number in next(batches)["number"].numpy().tolist()} == {*OLD}
    again = iter(reader.open(former).dataset("train", global_batch_size=8, training=True, seed=1))
    assert next(again)["number"].numpy().tolist() == first
    assert sorted(int(row["number"]) for row in random_access.open(former)["train"]) == [*OLD]
    assert sorted(int(row["number"]) for row in random_access.open(out)["train"]) == [*OLD, *NEW]


def test_hub_datasets_are_compared_file_by_file_at_both_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.prepare.sources.resolve import hub

    current = "1" * 40

    def repository(name: str, *, revision: str | None) -> hub.Repository:
        name, _, in_address = name.removeprefix("hf://datasets/").partition("@")
        commit = in_address or revision or current
        return hub.Repository(name=name, commit=commit, folder=str(tmp_path / commit))

    monkeypatch.setattr(hub, "repository", repository)
    out = tmp_path / "out"
    parquet(tmp_path / current / "data" / "train-00000-of-00001.parquet", OLD)
    done(build("user/rows", out))
    # As `push_to_hub` numbers them: the old file has another name, and the same content.
    shutil.copytree(tmp_path / current, tmp_path / ("2" * 40))
    folder = tmp_path / ("2" * 40) / "data"
    (folder / "train-00000-of-00001.parquet").rename(folder / "train-00000-of-00002.parquet")
    parquet(folder / "train-00001-of-00002.parquet", NEW)
    current = "2" * 40
    done(build("user/rows", out, "--append"))
    assert sorted(numbers(out)) == [*OLD, *NEW]
    assert read_manifest(out).source["revision"] == current
    # A file that has grown cannot be compared.
    current = "3" * 40
    parquet(tmp_path / current / "data" / "train-00000-of-00001.parquet", range(120))
    for dataset in ("user/rows", f"hf://datasets/user/rows@{current}"):
        cause, remedy = build(dataset, out, "--append").error
        assert "is gone" in cause
        assert "new files" in remedy


def test_new_files_alone_are_said_to_need_the_old_ones(tmp_path: Path) -> None:
    data, out = grown(tmp_path, name=None)
    cause, remedy = build(data / "train-b.jsonl", out, "--append", name=None).error
    assert "file train-a.jsonl of split 'train' is gone" in cause
    assert "give the folder with all files, old and new" in remedy
