"""Write to services other than Google's through fsspec; read ranges of any remote file.

    write    chunks ──► a file object of the service's library; closing it makes the object
    read     info (size, version) ──► ranges of 8 MiB, each requested while the one before is used

A range that arrives incomplete is requested again. On gs:// all ranges are of the version that was opened.
"""

from __future__ import annotations

import contextlib
import errno
import io
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import fsspec

from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.persistence import retry_transient
from tfrecord_io.errors import ConfigError, OutputError

__all__ = ["BLOCK_BYTES", "Ranges", "delete", "entries", "fetch", "info", "open_fs", "stream", "write"]

BLOCK_BYTES = 8 << 20
_DELETERS = 32
_GLOB = frozenset("*?[")


def open_fs(path: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it. Raises: ConfigError."""
    try:
        fs, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"{path}: no way to open such an address: {error}", remedy="give a local folder or a gs:// address"
        ) from error
    return fs, inner


def info(path: str, *, passes: Callable[[BaseException], bool] = storage_errors.is_transient) -> dict[str, Any]:
    """Return the service's metadata of a file or folder.

    Raises: FileNotFoundError; errors of the service's library, as do all functions here.
    """
    fs, inner = open_fs(path)

    def ask() -> dict[str, Any]:
        try:
            found: dict[str, Any] = fs.info(inner)
        except FileNotFoundError as error:
            # fsspec raises it for any error of its HTTP client.
            cause = error.__cause__
            if isinstance(cause, Exception) and storage_errors.status_of(cause) != 404:
                raise cause from None
            raise
        return found

    return retry_transient(ask, path=path, passes=passes)


def entries(path: str) -> dict[str, int | None]:
    """Return the bytes of each file in a folder by name; None for a folder, named `folder/`.

    Raises: FileNotFoundError.
    """
    fs, inner = open_fs(path)
    found: dict[str, int | None] = {}
    for entry in retry_transient(lambda: fs.ls(inner, detail=True), path=path):
        name = str(entry["name"]).rstrip("/")
        # The listing of a file, or of a folder with a marker object, names the file or folder itself.
        if name != inner.rstrip("/"):
            name = posixpath.basename(name) + "/" * (entry["type"] == "directory")
            found[name] = int(entry["size"]) if entry["type"] == "file" else None
    return found


def write(path: str, chunks: Iterable[Any], *, replacing: int | None = None) -> None:
    """Write buffers to an object, which appears when all of them have arrived and replaces whatever is there.

    Raises: OutputError if the service has stored another number of bytes; errors of `chunks`.
    """
    fs, inner = open_fs(path)
    stream, num_bytes = fs.open(inner, "wb"), 0
    try:
        for chunk in chunks:
            num_bytes += len(view := memoryview(chunk).cast("B"))
            stream.write(bytes(view))
        stream.close()
    except BaseException:
        _abandon(stream)
        raise
    fs.invalidate_cache()
    if (stored := info(path).get("size")) != num_bytes:
        delete(path)
        raise OutputError(
            f"{path}: {num_bytes} bytes were sent, but the service has {stored}; it was deleted there",
            remedy="run the same command again",
        )


def delete(path: str) -> None:
    """Delete a file, or a folder with its content, if it exists."""
    fs, inner = open_fs(path)

    def delete_one(file: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            retry_transient(lambda: fs.rm_file(file), path=path)

    with contextlib.suppress(FileNotFoundError):
        if not _GLOB & set(inner):
            retry_transient(lambda: fs.rm(inner, recursive=True), path=path)
            return
        # `rm` would expand the name as a pattern.
        with ThreadPoolExecutor(_DELETERS) as deleters:
            list(deleters.map(delete_one, retry_transient(lambda: fs.find(inner), path=path)))


def fetch(get: Callable[[int, int], bytes], start: int, stop: int, *, path: str) -> bytes:
    """Return bytes [start, stop) of a file, which `get` requests; an incomplete answer is requested again.

    Raises: errors of `get`; ValueError if the server ignores ranges.
    """

    def ask() -> bytes:
        content = get(start, stop)
        if len(content) > stop - start:
            raise ValueError("the server sends whole files only, expected the range that was asked for")
        if len(content) != stop - start:
            raise ConnectionError(f"{len(content)} bytes from {start} on, expected {stop - start}")
        return content

    return retry_transient(ask, path=path)


@contextlib.contextmanager
def stream(fs: Any, inner: str, *, found: Mapping[str, Any], path: str) -> Iterator[io.BufferedReader]:
    """Open a file for reading from its start; `found` is its metadata.

    Raises: FileNotFoundError for a folder; OutputError, also while it is read.
    """
    if found.get("type") == "directory":
        raise FileNotFoundError(errno.ENOENT, "a folder, expected a file", path)
    version = {"generation": found["generation"]} if storage_errors.bucket_of(path) else {}

    def get(start: int, stop: int) -> bytes:
        content: bytes = fs.cat_file(inner, start=start, end=stop, **version)
        return content

    def block(start: int, stop: int) -> bytes:
        try:
            with storage_errors.reading(path):
                return fetch(get, start, stop, path=path)
        except FileNotFoundError as error:
            raise OutputError(
                f"{path}: deleted or replaced while it was read", remedy="run the same command again"
            ) from error

    with contextlib.closing(Ranges(block, num_bytes=int(found["size"]), block_bytes=BLOCK_BYTES)) as ranges:
        yield io.BufferedReader(ranges, buffer_size=1 << 16)


class Ranges(io.RawIOBase):
    """A file fetched block by block; from the third block on, each is fetched while the one before is used."""

    def __init__(self, fetch: Callable[[int, int], bytes], *, num_bytes: int, block_bytes: int) -> None:
        self._fetch = fetch
        self._num_bytes = num_bytes
        self._block_bytes = block_bytes
        self._position = 0
        self._rest = memoryview(b"")
        self._ahead: Future[bytes] | None = None
        self._executor: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, or part of it. Raises: errors of `fetch`."""
        if not self._rest and self._position < self._num_bytes:
            self._rest = memoryview(self._next_block())
        target = memoryview(buffer).cast("B")
        taken = min(len(target), len(self._rest))
        target[:taken] = self._rest[:taken]
        self._rest = self._rest[taken:]
        return taken

    def close(self) -> None:
        """Close the file without waiting for a block that is still requested."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        super().close()

    def _next_block(self) -> bytes:
        start, stop = self._position, min(self._position + self._block_bytes, self._num_bytes)
        block = self._ahead.result() if self._ahead is not None else self._fetch(start, stop)
        self._position, self._ahead = stop, None
        # A reader of a second block usually reads on; one of a shard's first rows needs the first block only.
        if start and stop < self._num_bytes:
            self._executor = self._executor or ThreadPoolExecutor(1)
            self._ahead = self._executor.submit(self._fetch, stop, min(stop + self._block_bytes, self._num_bytes))
        return block


def _abandon(stream: Any) -> None:
    """End an upload without making an object."""
    with contextlib.suppress(Exception):
        stream.discard()
    with contextlib.suppress(Exception):
        # The garbage collector would close it, which makes an object of the bytes so far.
        stream.closed = True
