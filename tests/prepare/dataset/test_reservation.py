"""The output folder: existing content is used, refused or cleared, and never mixed."""

import dataclasses
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare import storage
from pipelines.prepare.dataset import fingerprint, reservation, source_record
from pipelines.prepare.dataset.job import tokenizer_files
from pipelines.prepare.dataset.source_record import location_of
from pipelines.prepare.launch import launcher
from pipelines.prepare.launch.open_job import OpenJob
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.shards import shard_files, shard_writer
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.tokenize.saved_copy import bytes_digest
from tests import building
from tests.building import REVIEWS, Outcome, read_manifest, reviews
from tests.support import seams
from tests.support.commits import request
from tfrecord_io.errors import FingerprintMismatchError, FormatError, LedgerError, OutputError

ZLIB = zlib.ZLIB_RUNTIME_VERSION


def build(output: Path, **changes: object) -> Outcome:
    options = building.options(output, **{"label_column": "label", **changes})
    return building.command("build", REVIEWS, "--json", *options)


def result(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.err
    summary: dict[str, Any] = json.loads(outcome.out)
    return summary


def receipts(root: Path) -> list[Path]:
    return sorted(root.glob(".prep/*/*/receipt-*.json"))


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "shard gone": lambda shard, _: shard.unlink(),
    "shard cut off": lambda shard, _: os.truncate(shard, 100),
    "receipt gone": lambda _, receipt: receipt.unlink(),
    "receipt damaged": lambda _, receipt: receipt.write_bytes(receipt.read_bytes()[:-20]),
    "wrong receipt": lambda _, receipt: receipt.write_text(receipt.read_text().replace('print": "', 'print": "0')),
    "another shard's receipt": lambda _, receipt: shutil.copy(sorted(receipt.parent.glob("receipt-*"))[0], receipt),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_only_what_is_missing_is_made_again_with_the_same_bytes(finished: Path, damage: str) -> None:
    if "receipt" in damage:  # a finished dataset needs none
        (finished / "manifest.json").unlink()
    DAMAGE[damage](sorted(finished.glob("*-train-*.tfrecord"))[1], receipts(finished)[1])
    summary = result(build(finished))
    assert (summary["shards_made"], summary["shards_kept"]) == (1, len(building.shard_bytes(reviews())) - 1)
    assert building.files(finished) == building.files(reviews())


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_a_killed_process_left_half_written_is_swept_away(finished: Path, is_whole: bool) -> None:
    for name in (".partial-1-reviews-train", "rejected/.partial-2", "tokenizer/.partial-3"):
        (finished / name).parent.mkdir(exist_ok=True)
        (finished / name).write_bytes(b"x")
    storage.write_bytes(str(finished / ".prep" / f"rows-{'0' * 16}" / "train-00000-00000.arrow"), b"x")
    if not is_whole:
        (finished / "manifest.json").unlink()
    result(build(finished))
    assert building.files(finished) == building.files(reviews())


@pytest.mark.slow
def test_another_split_is_added_and_each_is_known_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = result(build(tmp_path / "out", split="train"))
    before = building.files(tmp_path / "out")
    second = result(build(tmp_path / "out", split="validation"))
    assert first["splits"].keys() == {"train"}
    assert second["splits"].keys() == {"train", "validation"}
    after = building.files(tmp_path / "out")
    assert {name for name in before if ".tfrecord" in name and after[name] != before[name]} == set()
    assert after["manifest.json"] == building.files(reviews())["manifest.json"]
    monkeypatch.delattr(launcher, "open_job")  # rows are not looked for
    for split in ("train", "validation", ("train", "validation")):
        result(build(tmp_path / "out", split=split))


@pytest.mark.parametrize(
    ("state", "changes", "listed"),
    [
        ("finished", {"seed": 5}, "seed: was 0, now 5"),
        ("unfinished", {"seed": 5}, "seed: was 0, now 5"),
        ("finished", {"shard_size": "30kB"}, "shard_bytes: was 20000, now 30000"),
        ("unfinished", {"no_shuffle": True}, "shuffle: was true, now false"),
        ("without work folder", {"compression": "gzip"}, f'now "gzip"; versions.zlib: was null, now "{ZLIB}"'),
    ],
)
def test_another_request_names_what_differs(finished: Path, state: str, changes: dict[str, Any], listed: str) -> None:
    if state == "unfinished":
        (finished / "manifest.json").unlink()
    elif state == "without work folder":
        shutil.rmtree(finished / ".prep")
    before = building.files(finished)
    cause, remedy = build(finished, **changes).error
    assert listed in cause
    assert cause.count(": was ") == 1 + listed.count(";")
    assert remedy == "choose another --output, or start over with --overwrite"
    assert building.files(finished) == before


def test_a_dataset_of_another_algorithm_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_manifest(finished).options["versions"]["algorithm"] == fingerprint.ALGORITHM
    monkeypatch.setattr(fingerprint, "ALGORITHM", 1_000)
    cause, remedy = build(finished).error
    assert f"(versions.algorithm: was {read_manifest(finished).options['versions']['algorithm']}, now 1000)" in cause
    assert "start over with --overwrite" in remedy
    versions = dict(read_manifest(finished).options["versions"])
    before = {name: value for name, value in versions.items() if name != "algorithm"}
    listed = fingerprint.differences({"versions": before}, {"versions": versions})
    assert listed == f"versions.algorithm: was null, now {versions['algorithm']}", "one made before there was a number"


def test_the_order_of_keys_changes_no_fingerprint_and_differences_are_named_and_counted() -> None:
    one, other, third = ({"a": [1, 2], "b": {"c": 2}}, {"b": {"c": 2}, "a": [1, 2]}, {"b": {"c": 2}, "a": [2, 1]})
    assert fingerprint.fingerprint_of(one) == fingerprint.fingerprint_of(other) != fingerprint.fingerprint_of(third)
    before = {"files": [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 2}], "x": [1, {"y": 2}], "same": [1]}
    now = {"files": [{"name": "b", "bytes": 3}, {"name": "c", "bytes": 4}], "x": [1, {"y": 3}], "same": [1]}
    assert fingerprint.differences(before, now) == (
        'files[a]: was {"bytes": 1, "name": "a"}, now null; files[b].bytes: was 2, now 3; '
        'files[c]: was null, now {"bytes": 4, "name": "c"}; x: was [1, {"y": 2}], now [1, {"y": 3}]'
    )
    listed = fingerprint.differences({str(index): 0 for index in range(50)}, {})
    assert (listed.count(": was 0, now null"), listed.endswith("; and 30 more")) == (20, True)


def test_a_build_that_fails_leaves_what_is_to_be_overwritten_as_it_is(finished: Path, tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": None, "label": "x"}, {"text": "a", "label": "x"}])
    options = building.options(finished, label_column="label", overwrite=True)
    cause, _ = building.command("build", data, *options).error
    assert cause.startswith("1 of 2 rows cannot be used")
    assert without_rows(finished) == building.files(reviews())


def without_rows(root: Path) -> dict[str, bytes]:
    return {name: content for name, content in building.files(root).items() if not name.startswith(".prep/rows-")}


def test_a_build_that_fails_before_it_has_made_anything_leaves_no_folder(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [None, "a"]}), tmp_path / "a.parquet")
    outcome = building.command("build", tmp_path / "a.parquet", *building.options(tmp_path / "out" / "deep"))
    assert outcome.error[0].startswith("1 of 2 rows cannot be used")
    assert not (tmp_path / "out" / "deep").exists()


@pytest.mark.parametrize("fails_again", [True, False])
def test_the_run_after_a_killed_ingest_removes_its_partial_files(tmp_path: Path, fails_again: bool) -> None:
    rows, out = building.source(tmp_path / "source", train=[{"text": "a good film"}] * 20), tmp_path / "out"
    (rows / "train_z.jsonl").write_text("{\n")
    assert building.command("build", rows, *building.options(out)).status == 1
    (copy,) = out.glob(".prep/rows-*")
    (copy / ".partial-1f0c-train-00000-of-00001.parquet").touch()
    if not fails_again:
        (rows / "train_z.jsonl").unlink()
    assert building.command("build", rows, *building.options(out)).status == int(fails_again)
    assert not list(out.rglob(".partial-*"))


def test_a_build_that_fails_leaves_nothing_but_the_rows_that_it_has_ingested(tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": None}, {"text": "a"}])
    assert building.command("build", data, *building.options(tmp_path / "out")).status == 1
    assert building.files(tmp_path / "out")
    assert not without_rows(tmp_path / "out")
    result(building.command("build", data, "--json", *building.options(tmp_path / "out", max_error_rate=0.5)))
    assert not list(tmp_path.glob("out/.prep/rows-*"))


@pytest.mark.parametrize(
    ("options", "identity", "place"),
    [
        ({"dataset": "s3://key:hush@host/*?token=hush#x", "config": "c"}, {}, ("s3://host/*", "c", None)),
        ({"dataset": "a/*.jsonl"}, {}, (os.path.abspath("a/*.jsonl"), None, None)),
        ({"dataset": "user/name", "revision": "main"}, {"kind": "hub", "revision": "abc"}, ("user/name", None, "abc")),
    ],
)
def test_where_the_source_was_is_an_absolute_path_an_address_without_credentials_or_a_pinned_hub_id(
    tmp_path: Path, options: dict[str, Any], identity: dict[str, Any], place: tuple[str | None, ...]
) -> None:
    config = SourceConfig(**options)
    listing = SourceListing(kind="json", splits={}, described=identity, builders={})
    source = OpenedSource(listing=listing, columns={}, footers={}, addresses={})
    assert location_of(config, source) == dict(zip(("dataset", "config", "revision"), place, strict=True))
    # A finished dataset is recognized by reading these again.
    written = location_of(dataclasses.replace(config, data_files=("train=*.jsonl",)), source)
    storage.write_bytes(source_record.source_path(str(tmp_path), "f"), json.dumps(written).encode())
    assert source_record.read(str(tmp_path), "f") == {"more": [], **written}


def resolved_in(output: Path, *, seed: int = 0) -> OpenJob:
    return building.resolved(dataclasses.replace(request(str(output)), seed=seed))


def reserved(output: Path, *, num_rows: int = 10) -> tuple[OpenJob, ShardTask]:
    """A job that may write to the output, and a task of its first ten rows, planned as `num_rows`."""
    resolved = resolved_in(output)
    resolved.reserve()
    pieces = resolved.job.splits["train"].groups.pieces([(0, 10)])
    return resolved, ShardTask(split="train", index=0, count=1, num_rows=num_rows, pieces=pieces)


def test_a_worker_whose_job_is_cleared_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clear_behind(*args: Any, **kwargs: Any) -> Any:
        shard = written(*args, **kwargs)
        Path(resolved.job.work_path(reservation.JOB_FILE)).unlink()
        return shard

    written = shard_files.write
    resolved, task = reserved(tmp_path / "out")
    seams.put(monkeypatch, write_shard_files=clear_behind)
    for num_shards in (1, 0):  # while it writes the shard, before it begins
        with pytest.raises(OutputError, match="files of this job are gone: another job has started over") as caught:
            shard_writer.write(task, resolved.job, resolved.encoder)
        assert "let one job at a time write" in caught.value.remedy
        assert receipts(tmp_path / "out") == []
        assert len(building.shard_bytes(tmp_path / "out")) == num_shards
        for name in building.shard_bytes(tmp_path / "out"):
            (tmp_path / "out" / name).unlink()


@pytest.mark.parametrize("planned", [9, 11])
def test_a_shard_of_more_or_fewer_rows_than_were_planned_is_not_written(tmp_path: Path, planned: int) -> None:
    resolved, task = reserved(tmp_path / "out", num_rows=planned)
    with pytest.raises(LedgerError, match=f"the plan has {planned} rows, but 10 were read"):
        shard_writer.write(task, resolved.job, resolved.encoder)
    assert building.shard_bytes(tmp_path / "out") == {}


MEDDLED: dict[str, Callable[[Path], object]] = {
    "a byte": lambda folder: building.flip(folder / "tokenizer.json", 100),
    "a file gone": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "a file more": lambda folder: (folder / "special_tokens_map.json").write_text("{}"),
}


@pytest.mark.parametrize("meddled", sorted(MEDDLED))
def test_a_tokenizer_that_was_changed_in_the_work_folder_is_not_loaded(tmp_path: Path, meddled: str) -> None:
    resolved = resolved_in(tmp_path / "out")
    resolved.reserve()
    job, folder = resolved.job, tmp_path / "out" / ".prep" / resolved.job.fingerprint / "tokenizer"
    MEDDLED[meddled](folder)
    digest = bytes_digest(building.files(folder))
    for use in (job.open_encoder, lambda: tokenizer_files(job)):
        with pytest.raises(FormatError) as caught:
            use()
        assert caught.value.cause == (
            f"{folder}: the tokenizer's files have changed since they were saved: digest {digest}, "
            f"expected {job.spec.facts.content_sha256}"
        )
        assert "delete this folder and run the same build again" in caught.value.remedy
    shutil.rmtree(folder)
    resolved.reserve()
    assert tokenizer_files(job) == resolved.request.tokenizer_files


def test_of_two_jobs_without_a_lock_one_sees_the_other(tmp_path: Path) -> None:
    """On an object store, both may find the folder free before either writes."""
    first, second = (resolved_in(tmp_path / "out", seed=seed) for seed in (0, 1))
    for job in (first, second):
        reservation.check(job.job.root, items=job.items, overwrite=False)
    first.reserve()
    with pytest.raises(FingerprintMismatchError, match="seed: was 0, now 1"):
        second.reserve()
    reservation.check(first.job.root, items=first.items, overwrite=False)


@pytest.mark.parametrize("name", ["", "a/b", ".x", 3])
def test_the_name_in_a_job_of_others_deletes_no_file_of_theirs(tmp_path: Path, name: object) -> None:
    shard = f"{name}-x-00000-of-00001.tfrecord"
    for path, content in ((".prep/0123/job.json", json.dumps({"name": name})), (shard, "")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    reservation.clear(str(tmp_path))
    assert [*building.files(tmp_path)] == [shard]


@pytest.mark.parametrize("job", [b"", b"[1]", b"{", None])
def test_an_unknown_job_in_the_work_folder_is_refused(tmp_path: Path, job: bytes | None) -> None:
    folder = tmp_path / "out" / ".prep" / "0123"
    folder.mkdir(parents=True)
    if job is not None:
        (folder / "job.json").write_bytes(job)
    cause, _ = build(tmp_path / "out").error
    assert "holds a dataset made from something else" in cause


@pytest.mark.parametrize(("change", "difference"), [("grown", "has changed"), ("renamed", "has disappeared")])
def test_a_source_with_other_files_is_told_without_digests(tmp_path: Path, change: str, difference: str) -> None:
    tickets, out = tmp_path / "data" / "tickets.csv", tmp_path / "out"
    tickets.parent.mkdir()
    tickets.write_text("text\n" + "a good film\n" * 20)
    arguments = ("build", tickets.parent, "--name", "tickets", *building.options(out))
    assert building.command(*arguments).status == 0
    if change == "grown":
        tickets.write_text(tickets.read_text() + "another one\n")
    else:
        tickets.unlink()
        tickets.with_name("others.csv").write_text("text\na bad film\n")
    cause, remedy = building.command(*arguments).error
    assert cause == f"{out}: tickets.csv {difference} since the dataset was made"
    assert "add --append" in remedy


def test_a_damaged_manifest_is_named(finished: Path) -> None:
    (finished / "manifest.json").write_bytes(b'{"format": "prep-tfrecords"')
    cause, _ = build(finished).error
    assert cause.startswith(f"{finished}/manifest.json: not JSON")


@pytest.mark.parametrize("names", [["notes.txt"], ["manifest.json", "index.html"], ["tokenizer"], [".hidden"]])
@pytest.mark.parametrize("overwrite", [None, True])
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, names: list[str], overwrite: bool | None) -> None:
    output = tmp_path / "out"
    output.mkdir()
    for name in names:
        (output / name).write_text('{"name": "a web page, not a dataset"}')
    before = building.files(output)
    cause, remedy = build(output, overwrite=overwrite).error
    assert cause == f"{output}: holds {', '.join(sorted(names))}, expected an empty or new folder"
    assert remedy == "choose another --output"
    assert building.files(output) == before


OTHERS = {
    "notes.txt": b"mine",
    "other-train-00000-of-00001.tfrecord": b"another dataset's",
    "reviews.tfrecord": b"no shard's name",
    "reviews-train.tfrecord": b"no shard's name",
    "checkpoints/1/manifest.json": b"{}",
}


@pytest.mark.slow
@pytest.mark.parametrize("state", ["finished", "unfinished", "without work folder", "damaged manifest"])
def test_overwrite_starts_over_and_deletes_nothing_of_others(finished: Path, state: str) -> None:
    if state == "unfinished":
        (finished / "manifest.json").unlink()
        receipts(finished)[0].unlink()
    elif state == "without work folder":
        shutil.rmtree(finished / ".prep")
    elif state == "damaged manifest":
        (finished / "manifest.json").write_bytes(b"{")
    for name, content in OTHERS.items():
        (finished / name).parent.mkdir(parents=True, exist_ok=True)
        (finished / name).write_bytes(content)
    result(build(finished, overwrite=True, seed=1, shard_size="60kB"))
    assert building.files(finished) == {**building.files(reviews(seed=1, shard_size="60kB")), **OTHERS}
