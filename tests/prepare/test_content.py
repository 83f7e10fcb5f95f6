"""What a file's content is known by, wherever it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.prepare import content
from tfrecord_io.errors import SourceError

PATHS = [f"memory://digests/{index}" for index in range(40)]


@pytest.fixture
def remote() -> Iterator[MemoryFileSystem]:
    """Forty small objects, of which the file system gives no version."""
    fs = fsspec.filesystem("memory")
    for index, path in enumerate(PATHS):
        fs.pipe(path, b"x" * index)
    yield fs
    fs.store.clear()


def test_a_remote_file_is_known_by_its_bytes_where_its_service_has_no_mark(
    remote: MemoryFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "7").write_bytes(b"x" * 7)
    assert content.files_digest([PATHS[7]]) == content.files_digest([str(tmp_path / "7")])


def test_services_are_asked_many_at_a_time(remote: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(8, timeout=30)

    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        together.wait()  # nobody gets an answer before eight have asked
        return {"name": path, "size": 1, "etag": path}

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    found = content.files_digest(PATHS)
    assert [entry["name"] for entry in found] == [str(index) for index in range(40)]
    assert found[3]["mark"].endswith("/3")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PermissionError("denied"), "cannot be read: denied"),
        (FileNotFoundError("gone"), "no such file, though it was listed"),
    ],
)
def test_what_a_service_says_is_an_error_with_a_remedy(
    remote: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str
) -> None:
    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    with pytest.raises(SourceError, match=f"memory://digests/0: .*{cause}") as caught:
        content.files_digest(PATHS)
    assert caught.value.remedy


def test_a_service_that_does_not_answer_is_an_error(remote: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        over.wait(30)
        return {"name": path, "size": 1, "etag": "x"}

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    monkeypatch.setattr(content, "_ANSWER_SECONDS", 0.1)
    began = time.monotonic()
    with pytest.raises(SourceError, match="memory://digests/0: no answer within 0 s"):
        content.files_digest(PATHS)
    over.set()
    assert time.monotonic() - began < 10


def test_a_local_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="folder"):
        content.files_digest([str(tmp_path / "folder")])
