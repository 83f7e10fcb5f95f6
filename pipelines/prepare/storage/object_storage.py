"""Everything that is not a local disk, through fsspec: objects that are written whole and read in blocks.

    write    chunks ──► blocks of 8 MiB ──► gs://: `gcs_upload`; other schemes: their own library's file object
    read     info (size, version) ──► ranges of 8 MiB, the next one fetched while the last one is used

A range is taken only if all of it came, and of the version that was opened: what breaks off in the middle of a body is
asked for again, and never shows. No listing is taken from a cache.
"""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import fsspec

from pipelines.prepare.storage import gcs, gcs_upload, storage_errors
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import ConfigError, OutputError, PrepError

__all__ = [
    "Ranges",
    "ask",
    "delete",
    "entries",
    "fetch",
    "generations",
    "info",
    "open_fs",
    "read",
    "reading",
    "stream",
    "write",
]

BLOCK_BYTES = 8 << 20
_DELETERS = 32
_ASKERS = 32
_GLOB = frozenset("*?[")


def open_fs(path: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it. Raises: ConfigError."""
    if _is_gcs(path):
        inner = gcs.inner_path(path)
        return gcs.file_system(), inner
    try:
        fs, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"{path}: no way to open such an address: {error}", remedy="give a local folder or a gs:// address"
        ) from error
    return fs, inner


@contextlib.contextmanager
def reading(path: str, kind: type[PrepError] = OutputError) -> Iterator[None]:
    """Around reading from `path`. Raises: FileNotFoundError; `kind` for whatever else goes wrong, and if what is not
    there is the bucket itself.
    """
    try:
        with _renewing(), storage_errors.reading(path, kind):
            yield
    except FileNotFoundError:
        if bucket := storage_errors.bucket_of(path):
            gcs.require_bucket(bucket)
        raise


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    with _renewing(), storage_errors.explained(path):
        yield


@contextlib.contextmanager
def _renewing() -> Iterator[None]:
    """Around a request: what was refused for want of credentials looks for them again the next time."""
    try:
        yield
    except PrepError as error:
        if error.__cause__ is not None and storage_errors.status_of(error.__cause__) == 401:
            gcs.forget()
        raise


def info(fs: Any, inner: str, *, path: str) -> dict[str, Any]:
    """What the service says of a file or folder. Raises: FileNotFoundError; OutputError."""
    with reading(path):
        return persist(lambda: ask(fs, inner, path=path), path=path)


def ask(fs: Any, inner: str, *, path: str) -> dict[str, Any]:
    """The same by one request. Raises: FileNotFoundError; whatever else a library raises."""
    try:
        # What gcsfs says of a folder with an object that stands for it, it says of that object.
        found: dict[str, Any] = (gcs.info if _is_gcs(path) else fs.info)(inner)
    except FileNotFoundError as error:
        # What fsspec makes of whatever its client for the web raises.
        cause = error.__cause__
        if isinstance(cause, Exception) and storage_errors.status_of(cause) != 404:
            raise cause from None
        raise
    return found


def generations(places: Mapping[str, str]) -> dict[str, int]:
    """The number of each object as it is now, 0 for none, by address; `places` are the paths in the file system. Only
    Google Cloud Storage has such numbers. Raises: OutputError.
    """

    def ask(path: str) -> int:
        with reading(path):
            return persist(lambda: gcs.generation(places[path]), path=path)

    asked = [path for path in places if _is_gcs(path)]
    if not asked:
        return {}
    with ThreadPoolExecutor(min(_ASKERS, len(asked))) as askers:
        return dict(zip(asked, askers.map(ask, asked), strict=True))


def entries(fs: Any, inner: str, *, path: str) -> list[dict[str, Any]]:
    """What is in a folder. Raises: FileNotFoundError; OutputError."""
    with reading(path):
        found = persist(lambda: fs.ls(inner, detail=True), path=path)
    # Asked for a file, or for a folder with a marker object, `ls` names what it was asked for.
    return [entry for entry in found if str(entry["name"]).rstrip("/") != inner.rstrip("/")]


def read(fs: Any, inner: str, *, path: str) -> bytes:
    """The whole file. Raises: FileNotFoundError; OutputError."""
    with reading(path):
        content: bytes = persist(lambda: fs.cat_file(inner), path=path)
    return content


def fetch(get: Callable[[int, int], bytes], start: int, stop: int, *, path: str) -> bytes:
    """Bytes [start, stop) of a file, all of them, as `get` asks a service for them.

    Raises: whatever it raises, to be explained by `reading`.
    """
    return persist(lambda: _exactly(get, start, stop), path=path)


def delete(fs: Any, inner: str, *, path: str) -> None:
    """A file or folder with all that is in it, if it is there. Raises: OutputError."""
    with _writing(path), contextlib.suppress(FileNotFoundError):
        if _is_gcs(path):
            # Without a key it is the bucket itself, which is nobody's to delete.
            files = [*([inner] if "/" in inner else []), *persist(lambda: list(gcs.paths_below(inner)), path=path)]
        elif _GLOB & set(inner):  # `rm` would take the name for a pattern
            files = persist(lambda: fs.find(inner), path=path)
        else:
            persist(lambda: fs.rm(inner, recursive=True), path=path)
            return
        with ThreadPoolExecutor(_DELETERS) as deleters:
            list(deleters.map(lambda file: _delete_file(fs, file, path=path), files))


def write(fs: Any, inner: str, chunks: Iterable[Any], *, path: str, replacing: int | None = None) -> None:
    """Writes buffers to an object, which appears when all of them are there. `replacing` is the generation of the one
    that is there now, if nothing else is to be replaced; of other services than Google's the last upload wins.

    Raises: OutputError, also if another object is there by then, of another content; whatever `chunks` raises passes.
    """
    with _writing(path):
        upload: gcs_upload.Upload | _Upload = (
            gcs_upload.Upload(inner, path=path, replacing=replacing) if _is_gcs(path) else _Upload(fs, inner, path=path)
        )
    try:
        for block, last in _blocks(chunks):
            with _writing(path):
                upload.send(block, last=last)
    except BaseException:
        upload.abandon()
        raise


@contextlib.contextmanager
def stream(fs: Any, inner: str, *, path: str) -> Iterator[io.BufferedReader]:
    """The file, to be read from the start. Raises: FileNotFoundError; OutputError, while it is read too."""
    found = info(fs, inner, path=path)
    if found.get("type") == "directory":
        raise FileNotFoundError(errno.ENOENT, "a folder, expected a file", path)
    version = {"generation": found["generation"]} if _is_gcs(path) else {}

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
    """A file that is fetched block by block, from the third one on each while the one before is used."""

    def __init__(self, fetch: Callable[[int, int], bytes], *, num_bytes: int, block_bytes: int) -> None:
        self._fetch = fetch
        self._num_bytes = num_bytes
        self._block_bytes = block_bytes
        self._position = 0
        self._rest = memoryview(b"")
        self._ahead: Future[bytes] | None = None
        self._executor: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As io.RawIOBase has it. Raises: whatever `fetch` raises."""
        if not self._rest and self._position < self._num_bytes:
            self._rest = memoryview(self._next_block())
        target = memoryview(buffer).cast("B")
        taken = min(len(target), len(self._rest))
        target[:taken] = self._rest[:taken]
        self._rest = self._rest[taken:]
        return taken

    def close(self) -> None:
        """Nobody waits for a block that is still on its way."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        super().close()

    def _next_block(self) -> bytes:
        start, stop = self._position, min(self._position + self._block_bytes, self._num_bytes)
        block = self._ahead.result() if self._ahead is not None else self._fetch(start, stop)
        self._position, self._ahead = stop, None
        # Who reads a second block reads on; the first rows of a shard are in its first block.
        if start and stop < self._num_bytes:
            self._executor = self._executor or ThreadPoolExecutor(1)
            self._ahead = self._executor.submit(self._fetch, stop, min(stop + self._block_bytes, self._num_bytes))
        return block


class _Upload:
    """The file object of a library other than gcsfs. Closing is what makes an object of it."""

    def __init__(self, fs: Any, inner: str, *, path: str) -> None:
        self._fs = fs
        self._inner = inner
        self._path = path
        self._num_bytes = 0
        self._stream = fs.open(inner, "wb")

    def send(self, block: bytes, *, last: bool) -> None:
        """Raises: OutputError; whatever the library raises."""
        self._stream.write(block)
        self._num_bytes += len(block)
        if last:
            self._stream.close()
            self._check()

    def abandon(self) -> None:
        """Ends the upload without an object."""
        with contextlib.suppress(Exception):
            self._stream.discard()
        with contextlib.suppress(Exception):
            # Or else the garbage collector would close it, and make an object of what is there.
            self._stream.closed = True

    def _check(self) -> None:
        self._fs.invalidate_cache()
        stored = info(self._fs, self._inner, path=self._path).get("size")
        if stored != self._num_bytes:
            delete(self._fs, self._inner, path=self._path)
            raise OutputError(
                f"{self._path}: {self._num_bytes} bytes were sent, but the service has {stored}; it was deleted there",
                remedy="run the same command again",
            )


class _ShortRangeError(ConnectionError):
    """Not all of what was asked for."""


class _LongRangeError(ValueError):
    """More than was asked for."""


def _is_gcs(path: str) -> bool:
    return storage_errors.bucket_of(path) is not None


def _delete_file(fs: Any, inner: str, *, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        persist(lambda: fs.rm_file(inner), path=path)


def _exactly(get: Callable[[int, int], bytes], start: int, stop: int) -> bytes:
    content = get(start, stop)
    if len(content) > stop - start:
        raise _LongRangeError("the server sends whole files only, expected the range that was asked for")
    if len(content) != stop - start:
        raise _ShortRangeError(f"{len(content)} bytes from {start} on, expected {stop - start}")
    return content


def _blocks(chunks: Iterable[Any]) -> Iterator[tuple[bytes, bool]]:
    """(block, whether it is the last) of BLOCK_BYTES each, the last one of as many or fewer."""
    pending = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            if len(pending) == BLOCK_BYTES:
                yield bytes(pending), False
                pending.clear()
            taken = min(len(view), BLOCK_BYTES - len(pending))
            pending += view[:taken]
            view = view[taken:]
    yield bytes(pending), True
