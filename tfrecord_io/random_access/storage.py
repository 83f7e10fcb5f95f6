"""Read byte ranges of files: `os.pread` on a local disk, ranged requests elsewhere.

A storage can be pickled, and shared by forked processes and threads. Its methods raise OSError.
"""

import abc
import contextlib
import errno
import functools
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.local_paths import local_path
from tfrecord_io.shown import without_access

# File descriptors per dataset; many systems allow 1,024 in total.
_OPEN_FILES = 200
# An object store sends this much in about one round trip.
_REMOTE_GAP_BYTES = 256 << 10


class Storage(abc.ABC):
    # Ranges with at most this many bytes between them are read together.
    gap = 0

    def __init__(self, root: str) -> None:
        self.root = root

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.root,))

    @property
    def shown(self) -> str:
        return without_access(self.root)

    def path(self, name: str) -> str:
        return f"{self.shown.rstrip('/')}/{name}"

    @abc.abstractmethod
    def sizes(self, names: Collection[str]) -> dict[str, int]:
        """Return the sizes in bytes of the files that exist, by name."""

    @abc.abstractmethod
    def read(self, name: str, *, most: int) -> bytes:
        """Return the first `most` bytes of a file, or all of a shorter file."""

    def read_range(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return bytes [start, stop) of a file, uint8, or fewer at its end."""
        return self.read_ranges([name], np.array([start]), np.array([stop]))[0]

    @abc.abstractmethod
    def read_ranges(self, names: Sequence[str], starts_R: np.ndarray, stops_R: np.ndarray) -> tuple[np.ndarray, int]:
        """Return R ranges of bytes, concatenated, uint8; and the number of ranges before the first truncated one.

        Range r has bytes [starts_R[r], stops_R[r]) of file names[r].
        """


def at(root: str | os.PathLike[str]) -> Storage:
    folder = local_path(os.fspath(root))
    return _RemoteStorage(os.fspath(root)) if folder is None else _LocalStorage(folder)


class _OpenFile:
    _close = staticmethod(os.close)  # the module `os` may be gone at interpreter exit

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        # Closes after the last use: a thread may be reading when the cache drops the file.
        if hasattr(self, "descriptor"):
            self._close(self.descriptor)


class _LocalStorage(Storage):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._file = functools.lru_cache(_OPEN_FILES)(lambda name: _OpenFile(os.path.join(root, name)))

    def sizes(self, names: Collection[str]) -> dict[str, int]:
        with os.scandir(self.root) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.name in names and entry.is_file()}

    def read(self, name: str, *, most: int) -> bytes:
        with open(os.path.join(self.root, name), "rb") as file:
            return file.read(min(most, os.fstat(file.fileno()).st_size))  # `read` allocates this size at once

    def read_range(self, name: str, start: int, stop: int) -> np.ndarray:
        file = self._file(name)
        return np.frombuffer(os.pread(file.descriptor, stop - start, start), np.uint8)

    def read_ranges(self, names: Sequence[str], starts_R: np.ndarray, stops_R: np.ndarray) -> tuple[np.ndarray, int]:
        out = np.empty(int((stops_R - starts_R).sum()), np.uint8)
        view, position = out.data, 0
        spans = zip(names, starts_R.tolist(), stops_R.tolist(), strict=True)
        for number, (name, start, stop) in enumerate(spans):
            file, end = self._file(name), position + stop - start
            if os.preadv(file.descriptor, [view[position:end]], start) < stop - start:
                return out, number
            position = end
        return out, len(names)


class _RemoteStorage(Storage):
    gap = _REMOTE_GAP_BYTES

    def sizes(self, names: Collection[str]) -> dict[str, int]:
        fs, folder = self._opened()
        with _as_os_error(self.shown):
            entries = fs.ls(folder, detail=True)
        all_sizes = {entry["name"].rstrip("/").rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}
        return {name: size for name, size in all_sizes.items() if name in names}

    def read(self, name: str, *, most: int) -> bytes:
        fs, folder = self._opened()
        with _as_os_error(name):
            content: bytes = fs.cat_file(f"{folder}/{name}", end=most)
        return content

    def read_ranges(self, names: Sequence[str], starts_R: np.ndarray, stops_R: np.ndarray) -> tuple[np.ndarray, int]:
        fs, folder = self._opened()
        paths = [f"{folder}/{name}" for name in names]
        with _as_os_error(names[0]):
            contents = fs.cat_ranges(paths, starts_R.tolist(), stops_R.tolist(), on_error="return")
        for name, content in zip(names, contents, strict=True):
            if isinstance(content, Exception):
                with _as_os_error(name):
                    raise content
        whole = [len(content) for content in contents] == stops_R - starts_R
        return np.frombuffer(b"".join(contents), np.uint8), len(names) if whole.all() else int(np.argmin(whole))

    def _opened(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as error:
            raise ReaderError(
                f"{self.shown}: reading from an address needs fsspec, which is not installed",
                remedy="run `pip install fsspec`, and `pip install gcsfs` for gs://",
            ) from error
        fs, folder = fsspec.core.url_to_fs(self.root.rstrip("/"))
        return fs, folder.rstrip("/")


@contextlib.contextmanager
def _as_os_error(name: str) -> Iterator[None]:
    # gcsfs has its own exceptions.
    try:
        yield
    except Exception as error:
        number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO
        raise OSError(number, f"{type(error).__name__}: {error}", name) from error
