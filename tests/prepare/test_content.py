"""Digests say what content is, wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.prepare.content import bytes_digest, files_digest


def test_a_file_is_its_name_size_and_xxh3(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # more than one chunk
    (tmp_path / "a.bin").write_bytes(content)
    expected = {"name": "a.bin", "bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
    assert files_digest([str(tmp_path / "a.bin")]) == [expected]


def test_names_are_relative_to_the_root(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_bytes(b"x")
    assert files_digest([str(tmp_path / "sub/a")], root=str(tmp_path))[0]["name"] == "sub/a"


def test_copies_are_equal_whatever_their_folder_and_age(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "other").mkdir()
    shutil.copyfile(tmp_path / "a", tmp_path / "other/a")
    assert files_digest([str(tmp_path / "a")]) == files_digest([str(tmp_path / "other/a")])


@pytest.mark.parametrize("mark", ["etag", "ETag", "md5Hash", "crc32c", "generation"])
def test_the_version_mark_of_a_storage_service_is_taken_without_reading(
    monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    info = {"size": 7, mark: "v1"}
    monkeypatch.setattr(MemoryFileSystem, "info", lambda self, path, **options: info)
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, *args, **options: pytest.fail("was read"))
    assert fsspec.core.url_to_fs("memory://a")[0].info("a") is info
    assert files_digest(["memory://folder/a"]) == [{"name": "a", "bytes": 7, "mark": "v1"}]


def test_the_digest_of_many_files_depends_on_names_and_contents_alone() -> None:
    digest = bytes_digest({"a": b"1", "b": b"2"})
    assert bytes_digest({"b": b"2", "a": b"1"}) == digest
    assert len(digest) == 64
    others = [
        {"a": b"2", "b": b"1"},
        {"a": b"1", "c": b"2"},
        {"a": b"12", "b": b""},
        {"a": b"1"},
        {"a": b"1b\0001\0002"},
    ]
    assert len({digest, *map(bytes_digest, others)}) == len(others) + 1
