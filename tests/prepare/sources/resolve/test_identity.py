"""What a file's content is known by, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.prepare.sources.resolve import data_files
from pipelines.prepare.sources.resolve.data_files import DataFile, stamp_of
from tfrecord_io.errors import SourceError

FILES = [DataFile(path=f"memory://digests/{index}", name=str(index), size=index) for index in range(40)]


@pytest.fixture
def remote() -> Iterator[MemoryFileSystem]:
    """Forty small objects, of which the file system gives no version."""
    fs = fsspec.filesystem("memory")
    for index, found in enumerate(FILES):
        fs.pipe(found.path, b"x" * index)
    yield fs
    fs.store.clear()


def known(files: Sequence[DataFile]) -> list[dict[str, Any]]:
    return [file.entry for file in data_files.identify(files)]


def test_a_local_file_is_known_by_all_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 5_000_000)
    (data,) = data_files.identify([data_files.describe(str(path), name="a.txt")])
    digest = xxhash.xxh3_128(path.read_bytes()).hexdigest()
    assert data.entry == {"name": "a.txt", "bytes": 5_000_000, "xxh3": digest}
    assert (data.version, data.size) == (f"xxh3:{digest}", 5_000_000)
    assert data.stamp == stamp_of(path.stat())


def test_a_local_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    found = data_files.describe(str(path), name="a.txt")
    path.write_bytes(b"longer than before")
    with pytest.raises(SourceError, match=r"a\.txt: was changed while it was read"):
        known([found])


def test_a_remote_file_is_known_by_its_bytes_where_its_service_has_no_mark(
    remote: MemoryFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "7").write_bytes(b"x" * 7)
    assert known([FILES[7]]) == known([data_files.describe(str(tmp_path / "7"), name="7")])


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PermissionError("denied"), "cannot be read: denied"),
        (FileNotFoundError("gone"), "was listed, but is gone"),
    ],
)
def test_what_a_service_says_is_an_error_with_a_remedy(
    remote: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str
) -> None:
    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    with pytest.raises(SourceError, match=f"memory://digests/0: .*{cause}") as caught:
        known(FILES)
    assert caught.value.remedy
