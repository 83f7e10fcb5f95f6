"""A source file open for reading at any place: a local one, or ranges of one far away.

    local        size and time of the last change are those of the plan, before and after
    gs://        every range is asked for of the generation of the plan
    hf://        the address holds the commit
    other        size and etag are compared once in a process

Nothing is mapped into memory: a file that shrinks is an error, and no signal that ends the process.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.sources.files.data_files import version_of
from pipelines.prepare.storage import object_storage, storage_errors
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["Located", "is_remote", "opened"]

AGAIN = "run the same command again"
_KNOWN_FILES = 65_536


class Located(Protocol):
    """What tells which file it is: `DataFile` and `StoredFile`."""

    @property
    def path(self) -> str:
        """An absolute path or an address."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def version(self) -> str:
        """The service's generation or etag, empty if unknown."""

    @property
    def stamp(self) -> int | None:
        """Time of the last change of a local file, in nanoseconds."""


def is_remote(path: str) -> bool:
    """Whether each read is a request."""
    return "://" in path and storage.local_path(path) is None


@contextlib.contextmanager
def opened(file: Located, addresses: Mapping[str, str]) -> Iterator[pa.NativeFile]:
    """The file, to be read with `read_at` or handed to pyarrow.

    Raises: SourceError if it is gone, cannot be opened, or is not, or not any more, the file of the plan; while it is
    read remotely too. What a local disk or a decoder raises passes.
    """
    address = addresses.get(file.path, file.path)
    if is_remote(address):
        with contextlib.closing(pa.PythonFile(_Remote(file, address), mode="r")) as handle:
            yield handle
        return
    local = (storage.local_path(address) or address) if "://" in address else address
    _require_unchanged(local, file)
    try:
        with _local(local) as handle:
            yield handle
    finally:
        # After an error too: the change is then what caused it.
        _require_unchanged(local, file)


def _local(path: str) -> pa.NativeFile:
    with _explained(path):
        return pa.OSFile(path)


def _require_unchanged(path: str, file: Located) -> None:
    with _explained(path):
        found = os.stat(path)
    if found.st_size != file.size or (file.stamp is not None and found.st_mtime_ns != file.stamp):
        raise _changed(path)


def _changed(path: str) -> SourceError:
    return SourceError(f"{path}: was changed since the job was planned", remedy=AGAIN)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        with storage_errors.reading(path, SourceError):
            yield
    except FileNotFoundError as error:
        raise _gone(path) from error


def _gone(path: str) -> SourceError:
    return SourceError(
        f"{path}: is gone, expected a file that was there when the job was planned",
        remedy=f"put it back as it was, and {AGAIN}",
    )


class _Remote(io.RawIOBase):
    """A file whose every read is one request."""

    def __init__(self, file: Located, address: str) -> None:
        self._file = file
        self._shown = without_access(address)
        self._address = address
        self._position = 0
        with object_storage.reading(self._shown, SourceError):
            self._get = _getter(file, address)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As io.IOBase has it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """As io.RawIOBase has it, but never less than there is. Raises: SourceError."""
        rest = max(0, self._file.size - self._position)
        taken = rest if size is None or size < 0 else min(size, rest)
        content = self._fetch(self._position, self._position + taken) if taken else b""
        self._position += taken
        return content

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            with object_storage.reading(self._shown, SourceError):
                return object_storage.fetch(self._get, start, stop, path=self._shown)
        except FileNotFoundError as error:
            # Of gs:// a generation is asked for, which is gone when another one comes.
            if storage_errors.bucket_of(self._address) and storage.exists(self._address):
                raise _changed(self._shown) from error
            raise _gone(self._shown) from error


def _getter(file: Located, address: str) -> Callable[[int, int], bytes]:
    """What asks for bytes [start, stop) in one request, and gets no other version's where that can be said."""
    if address.startswith("hf://datasets/") and "@" in address:
        from pipelines.prepare.sources.files import hub

        return functools.partial(hub.read_range, address)
    fs, inner = storage.file_system(address)
    if storage_errors.bucket_of(address) is not None and file.version.isdecimal():
        return lambda start, stop: bytes(fs.cat_file(inner, start=start, end=stop, generation=file.version))
    _require_same(address, file.size, file.version)
    return lambda start, stop: bytes(fs.cat_file(inner, start=start, end=stop))


@functools.lru_cache(maxsize=_KNOWN_FILES)
def _require_same(address: str, size: int, version: str) -> None:
    """Raises: SourceError if the service says that the file is another one. Asks once in a process."""
    shown = without_access(address)
    fs, inner = storage.file_system(address)
    try:
        with object_storage.reading(shown, SourceError):
            found = persist(lambda: object_storage.ask(fs, inner, path=address), path=shown)
    except FileNotFoundError as error:
        raise _gone(shown) from error
    other = version_of(found)
    if found.get("size") not in (None, size) or (version and other and other != version):
        raise _changed(shown)
