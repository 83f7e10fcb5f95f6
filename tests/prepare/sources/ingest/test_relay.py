"""Files that workers cannot read are sent as they are, once, and ingested like those that they stand for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats import type_inference
from pipelines.prepare.sources.ingest import ingest, ingest_receipts
from pipelines.prepare.sources.ingest.ingest_tasks import tasks_of
from pipelines.prepare.sources.ingest.relay import readable_by_workers, relay
from tests.prepare.sources.ingest.ingesting import json_lines, rows_of, written
from tfrecord_io.errors import SourceError


def remote(path: str) -> DataFile:
    return DataFile(path=path, name="a.jsonl", kind="json", size=1, version="")


@pytest.mark.parametrize(
    ("path", "needs_token", "expected"),
    [
        ("gs://bucket/a.jsonl", False, True),
        ("gs://bucket/a.jsonl", True, True),
        ("hf://datasets/me/it@abc/a.jsonl", False, True),
        ("hf://datasets/me/it@abc/a.jsonl", True, False),
        ("https://host/a.jsonl", False, True),
        ("https://host/a.jsonl?X-Goog-Signature=abc", False, False),
        ("https://me:secret@host/a.jsonl", False, False),
        ("s3://bucket/a.jsonl", False, False),
        ("/data/a.jsonl", False, False),
    ],
)
def test_workers_read_what_needs_no_credentials(path: str, needs_token: bool, expected: bool) -> None:
    assert readable_by_workers(remote(path), needs_token=needs_token) is expected


def test_copies_have_the_bytes_and_the_rows_of_the_files(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a b.jsonl.gz", json_lines({"text": "x"})),
        written(tmp_path / "c.jsonl.gz", json_lines({"text": "y"})),
    ]
    copies = relay(files, folder=str(tmp_path / "rows"), addresses={})
    for file in files:
        copied = copies[file.path]
        assert Path(copied.path).read_bytes() == Path(file.path).read_bytes()
        assert Path(copied.path).parent == tmp_path / "rows" / "source"
        assert (copied.name, copied.kind, copied.size) == (file.name, file.kind, file.size)
    types = type_inference.text_types({"train": files}, "json", addresses={})
    made = tasks_of({"train": files}, types, folder=str(tmp_path / "rows"), copies=copies)
    receipts = ingest.ingest_all(made, threads=1)
    assert rows_of(receipts)["text"].to_pylist() == ["x", "y"]
    # Whoever reads the files themselves takes what was made of the copies.
    own = tasks_of({"train": files}, types, folder=str(tmp_path / "rows"))
    assert all(ingest_receipts.find_receipts(own))


def test_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", json_lines({"text": "x"}))
    (copied,) = relay([file], folder=str(tmp_path / "rows"), addresses={}).values()
    stamp = Path(copied.path).stat().st_mtime_ns
    relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert Path(copied.path).stat().st_mtime_ns == stamp
    Path(copied.path).write_bytes(b"{")
    relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert Path(copied.path).read_bytes() == Path(file.path).read_bytes()


def test_another_version_is_another_copy(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", json_lines({"text": "x"}))
    newer = dataclasses.replace(file, version="xxh3:2")
    folder = str(tmp_path / "rows")
    first, second = relay([file], folder=folder, addresses={}), relay([newer], folder=folder, addresses={})
    assert first[file.path].path != second[file.path].path


def test_a_file_that_has_changed_is_not_sent(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", json_lines({"text": "x"}))
    Path(file.path).write_bytes(json_lines({"text": "longer"}))
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert not list((tmp_path / "rows").rglob("*a.jsonl"))
