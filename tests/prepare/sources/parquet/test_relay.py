"""Parquet files that workers cannot read are sent as they are, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.prepare.sources.parquet.access import is_readable_by_workers, relay
from pipelines.prepare.sources.resolve.data_files import DataFile
from tests.prepare.sources.stored import data_file
from tfrecord_io.errors import SourceError


def remote(path: str) -> DataFile:
    return DataFile(path=path, name="a.jsonl", size=1, version="")


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
    assert is_readable_by_workers(remote(path), needs_token=needs_token) is expected


def written(path: Path, content: bytes = b"content") -> DataFile:
    path.write_bytes(content)
    return data_file(path)


def test_copies_have_the_bytes_of_the_files(tmp_path: Path) -> None:
    files = [written(tmp_path / "a b.parquet", b"one"), written(tmp_path / "c.parquet", b"two")]
    copies = relay(files, folder=str(tmp_path / "rows"), addresses={})
    for file in files:
        copied = copies[file.path]
        assert Path(copied.path).read_bytes() == Path(file.path).read_bytes()
        assert Path(copied.path).parent == tmp_path / "rows" / "source"
        assert (copied.name, copied.size) == (file.name, file.size)


def test_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl")
    (copied,) = relay([file], folder=str(tmp_path / "rows"), addresses={}).values()
    stamp = Path(copied.path).stat().st_mtime_ns
    relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert Path(copied.path).stat().st_mtime_ns == stamp
    Path(copied.path).write_bytes(b"{")
    relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert Path(copied.path).read_bytes() == Path(file.path).read_bytes()


def test_a_file_that_has_changed_is_not_sent(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl")
    Path(file.path).write_bytes(b"longer than before")
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert not list((tmp_path / "rows").rglob("*a.jsonl"))
