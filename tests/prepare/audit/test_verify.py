"""Every kind of damage is found, and named by shard and record."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pipelines.prepare.audit import verify
from tests import building
from tests.building import flip, read_manifest, reviews, train_shards
from tests.support import frames, seams
from tfrecord_io import examples, manifest, records
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.examples import Payloads
from tfrecord_io.manifest import Shard

Columns = dict[str, np.ndarray]


def problems(root: Path) -> dict[str, str]:
    """What `verify --json` finds in shards, by name, after checking that the command says the same in words."""
    outcome = building.command("verify", root, "--json")
    every = json.loads(outcome.out)
    by_file = {finding["file"]: finding["problem"] for finding in every if finding["part"] == "shard"}
    total = sum(len(split.shards) for split in read_manifest(root).splits.values())
    assert outcome.err.count("BAD ") == len(every)
    assert outcome.err.count("ok ") == total - len(by_file)
    if every:
        cause, remedy = outcome.error
        count = "1 file" if len(every) == 1 else f"{len(every)} files"
        assert cause == f"{root}: {count} damaged or missing, the first is {every[0]['file']}"
        assert remedy == f"run `prep-tfrecords verify {root} --repair` to remake damaged and missing files"
    else:
        assert outcome.status == 0
    return by_file


def rewrite(root: Path, path: Path, change: Callable[[Columns], None]) -> None:
    """Changes a shard's rows and leaves everything else sound: crcs, digest, and the manifest's counts."""
    facts = read_manifest(root)
    columns = examples.decode(frames.messages_of(path.read_bytes()), facts.schema, place="")
    columns = {name: values.copy() for name, values in columns.items()}
    change(columns)
    content = records.encode_framed(columns, facts.schema).data.tobytes()
    path.write_bytes(content)
    tokens = int(columns.get("attention_mask", columns.get("num_tokens"))[...].sum())  # type: ignore[index]
    replace(root, path.name, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), num_tokens=tokens)


def replace(root: Path, name: str, **changes: object) -> None:
    def entry(shard: Shard) -> Shard:
        return dataclasses.replace(shard, **changes) if shard.name == name else shard  # type: ignore[arg-type]

    facts = read_manifest(root)
    pairs = ((split, tuple(map(entry, content.shards))) for split, content in facts.splits.items())
    splits = {split: dataclasses.replace(facts.splits[split], shards=shards) for split, shards in pairs}
    (root / "manifest.json").write_bytes(manifest.dump(dataclasses.replace(facts, splits=splits)))


@pytest.mark.parametrize("place", [0, 8, 12, 5000, -1])
def test_a_flipped_bit_is_found_anywhere(finished: Path, place: int) -> None:
    shard = train_shards(finished)[1]
    flip(shard, place)
    ((name, problem),) = problems(finished).items()
    assert name == shard.name
    assert f"{shard}, record " in problem
    assert "crc" in problem or "cut off" in problem


def test_a_shard_that_was_cut_off_is_found(finished: Path) -> None:
    shard = train_shards(finished)[0]
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:1000])
    assert problems(finished) == {shard.name: f"{shard}: 1,000 bytes, expected {size:,}"}


def test_exchanged_records_are_found(finished: Path) -> None:
    def exchange(columns: Columns) -> None:
        for values in columns.values():
            values[:2] = values[1::-1].copy()

    shard = train_shards(finished)[0]
    digest = hashlib.sha256(shard.read_bytes()).hexdigest()
    rewrite(finished, shard, exchange)
    replace(finished, shard.name, sha256=digest)
    ((_, problem),) = problems(finished).items()
    assert "whole records were replaced" in problem


def test_a_shard_of_more_records_than_the_manifest_says_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small gzip file may unpack to any number of records."""
    read: list[int] = []

    def endless(*args: object, **kwargs: object) -> Iterator[Payloads]:
        (payloads,) = once(*args, **kwargs)  # type: ignore[arg-type]
        while True:
            read.append(len(payloads))
            yield payloads

    once = records.read_payloads
    seams.put(monkeypatch, read_payloads=endless)
    facts = read_manifest(reviews())
    with pytest.raises(CorruptRecordError, match=r"more than the expected [0-9]+ examples"):
        verify.verify_shard(str(reviews()), facts.splits["train"].shards[0], facts)
    assert len(read) == 2


@pytest.mark.parametrize(
    "changes", [{"num_tokens": 5}, {"num_examples": 5, "ledger": manifest.Ledger(rows_in=5, rows_used=5)}]
)
def test_a_wrong_count_in_the_manifest_is_found(finished: Path, changes: dict[str, object]) -> None:
    shard = train_shards(finished)[0]
    replace(finished, shard.name, **changes)
    ((name, problem),) = problems(finished).items()
    assert name == shard.name
    assert "examples" in problem
    assert problem.replace(",", " ").split().count("5") == 1


def test_a_shard_of_another_schema_is_found(finished: Path) -> None:
    facts = read_manifest(finished)
    shard = train_shards(finished)[0]
    other = dataclasses.replace(facts.schema, features=facts.schema.features[:3])
    columns = examples.decode(frames.messages_of(shard.read_bytes()), facts.schema, place="")
    content = records.encode_framed({name: columns[name] for name in other.names}, other).data.tobytes()
    shard.write_bytes(content)
    replace(finished, shard.name, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    ((_, problem),) = problems(finished).items()
    assert f"{shard}, record 0" in problem


def test_contents_that_make_no_sense_are_found_by_record(finished: Path) -> None:
    """test_invariants covers each kind."""
    shard = train_shards(finished)[1]
    rewrite(finished, shard, lambda columns: columns["label"].put(3, 2))
    assert problems(finished) == {shard.name: f"{shard}, record 3: a label outside 0 to 1"}


def test_token_types_are_checked_where_they_are_constant(finished: Path) -> None:
    facts = read_manifest(finished)
    features = [
        dataclasses.replace(feature, constant=0 if feature.name == "token_type_ids" else feature.constant)
        for feature in facts.schema.features
    ]
    facts = dataclasses.replace(facts, schema=dataclasses.replace(facts.schema, features=tuple(features)))
    (finished / "manifest.json").write_bytes(manifest.dump(facts))
    assert problems(finished) == {}
    rewrite(finished, train_shards(finished)[0], lambda columns: columns["token_type_ids"].put(32 + 2, 1))
    ((_, problem),) = problems(finished).items()
    assert problem.endswith("record 1: a token_type_ids other than 0")


def test_a_record_is_numbered_through_the_batches_of_a_large_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read_manifest(reviews())
    shard = facts.splits["train"].shards[0]
    seen: list[int] = []
    small = records.read_payloads
    seams.put(monkeypatch, read_payloads=lambda *args, **kw: small(*args, **{**kw, "batch_bytes": 1000}))
    monkeypatch.setattr(verify, "check_columns", lambda columns, facts, *, path, first: seen.append(first))
    verify.verify_shard(str(reviews()), shard, facts)
    assert seen[0] == 0
    assert len(seen) > 10
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    causes = {
        tmp_path: "no manifest.json, so there is no finished dataset here",
        tmp_path / "missing": "no such folder",
        tmp_path / "file": "a file, expected the folder of a dataset",
        tmp_path / "file" / "below": "no such folder",
    }
    for path, cause in causes.items():
        assert building.command(command, path).error[0] == f"{path}: {cause}"
