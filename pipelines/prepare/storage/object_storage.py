"""Write through fsspec to other services; read byte ranges of any remote file.

Functions raise FileNotFoundError and errors of the service's library.
"""

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import fsspec

from pipelines.prepare.options.addresses import ADDRESS
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.storage_errors import retry_transient
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some

BLOCK_BYTES = 8 << 20
_REQUESTS_AT_ONCE = 32
_GLOB = frozenset("*?[")


def open_fs(path: str) -> tuple[Any, str]:
    try:
        fs, inner = fsspec.core.url_to_fs(path)
        return fs, inner
    except (ValueError, ImportError) as error:
        cause = f"{path}: this address cannot be opened: {error}"
        raise ConfigError(cause, remedy=f"give a local folder or a {ADDRESS} address") from error


def info(path: str, *, retry_if: storage_errors.RetryIf = storage_errors.is_transient) -> dict[str, Any]:
    fs, inner = open_fs(path)

    def ask() -> dict[str, Any]:
        try:
            return dict(fs.info(inner))
        except FileNotFoundError as error:
            # fsspec raises FileNotFoundError for any HTTP error.
            cause = error.__cause__
            if isinstance(cause, Exception) and storage_errors.status_of(cause) != 404:
                raise cause from None
            raise

    return retry_transient(ask, path=path, retry_if=retry_if)


def entries(path: str) -> dict[str, int | None]:
    """Return the size in bytes of each file in a folder, by name; None for subfolders, with names that end in /."""
    fs, inner = open_fs(path)
    sizes: dict[str, int | None] = {}
    for entry in retry_transient(lambda: fs.ls(inner, detail=True), path=path):
        name = str(entry["name"]).rstrip("/")
        # A listing contains the file itself, or the folder's marker object.
        if name != inner.rstrip("/"):
            name = posixpath.basename(name) + "/" * (entry["type"] == "directory")
            sizes[name] = int(entry["size"]) if entry["type"] == "file" else None
    return sizes


def write(path: str, chunks: Iterable[Any], *, inside: str | None = None, replacing: int | None = None) -> None:
    """Write buffers to an object that appears when all have arrived."""
    fs, inner = open_fs(path)
    stream = fs.open(inner, "wb")
    try:
        for chunk in chunks:
            stream.write(bytes(memoryview(chunk).cast("B")))
        stream.close()
    except BaseException:
        with contextlib.suppress(Exception):
            stream.discard()
        with contextlib.suppress(Exception):
            # Otherwise the garbage collector would publish a partial object.
            stream.closed = True
        raise
    fs.invalidate_cache()


def delete(path: str, *, inside: str | None = None) -> None:
    fs, inner = open_fs(path)
    with contextlib.suppress(FileNotFoundError):
        if not _GLOB & set(inner):
            fs.rm(inner, recursive=True)
            return
        for file in fs.find(inner):  # `rm` would expand the name as a pattern
            fs.rm_file(file)


def delete_files(paths: Sequence[str], *, inside: str | None = None) -> None:
    list(ordered_map(delete, paths, threads=_REQUESTS_AT_ONCE))


def fetch(get: Callable[[int, int], bytes], start: int, stop: int, *, path: str) -> bytes:
    """Return the bytes `get(start, stop)`; retry transient errors and partial answers."""

    def ask() -> bytes:
        content = get(start, stop)
        if len(content) > stop - start:
            raise ValueError("the server sends only whole files, expected the requested range")
        if len(content) != stop - start:
            raise ConnectionError(f"received {some(len(content), 'byte')} from {start:,} on, expected {stop - start:,}")
        return content

    return retry_transient(ask, path=path)


class RemoteFile(fsspec.spec.AbstractBufferedFile):
    """Read-only remote file. `get(start, stop)` requests the bytes in this range."""

    def __init__(self, fs: Any, inner: str, *, get: Callable[[int, int], bytes], size: int, cache_type: str) -> None:
        self._get = get
        super().__init__(fs, inner, block_size=BLOCK_BYTES, cache_type=cache_type, size=size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._get(start, end)
