"""What is kept of files: read once, by whichever thread comes first, and no more of it than there is room for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.prepare.sources.parquet.groups import StoredFile
from pipelines.prepare.sources.parquet.row_groups import FileCache


def file(name: str, *, version: str = "") -> StoredFile:
    return StoredFile(path=name, size=1, version=version)


class _Reads:
    """Counts what is read."""

    def __init__(self, num_bytes: int = 10) -> None:
        self.count = 0
        self._num_bytes = num_bytes

    def __call__(self) -> tuple[int, int]:
        self.count += 1
        return self.count, self._num_bytes


def test_a_file_is_read_once() -> None:
    kept, reads = FileCache[int](100), _Reads()
    assert [kept.get(file("a"), reads) for _ in range(3)] == [1, 1, 1]


def test_another_version_is_another_file() -> None:
    kept, reads = FileCache[int](100), _Reads()
    assert [kept.get(file("a", version=version), reads) for version in "121"] == [1, 2, 1]


def test_what_was_not_used_for_longest_goes() -> None:
    kept, reads = FileCache[int](20), _Reads()
    for name in "abac":
        kept.get(file(name), reads)
    assert kept.get(file("a"), reads) == 1
    assert kept.get(file("b"), reads) == 4


def test_one_that_is_larger_than_the_room_is_kept_by_itself() -> None:
    kept, reads = FileCache[int](5), _Reads()
    assert [kept.get(file(name), reads) for name in "aab"] == [1, 1, 2]


def test_threads_wait_for_the_one_that_reads() -> None:
    kept, begun, go = FileCache[str](100), threading.Event(), threading.Event()

    def slowly() -> tuple[str, int]:
        begun.set()
        assert go.wait(30)
        return "first", 1

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(kept.get, file("a"), slowly)
        assert begun.wait(30)
        others = [threads.submit(kept.get, file("a"), lambda: ("another", 1)) for _ in range(3)]
        go.set()
        assert {each.result() for each in (first, *others)} == {"first"}


def test_an_error_is_not_kept() -> None:
    kept = FileCache[int](100)

    def failing() -> tuple[int, int]:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        kept.get(file("a"), failing)
    assert kept.get(file("a"), _Reads()) == 1
