"""Open local and remote source files for random access, and fail if a file has changed since planning.

local        size, inode and times are compared before and after reading
gs://        every request names the version at the time of planning
hf://        the address holds the commit
other        size and etag are compared once per process
"""

import contextlib
import functools
import hashlib
import os
import posixpath
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.options.addresses import READ_BY_WORKERS, bucket_of
from pipelines.prepare.sources.resolve import hub
from pipelines.prepare.sources.resolve.data_files import DataFile, is_pinned, stamp_of, version_of
from pipelines.prepare.storage import object_storage
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import is_web, without_access

AGAIN = "run the same command again"
_MOST_COMPARED = 65_536
_THREADS = 4
_CHUNK_BYTES = 8 << 20


def is_remote(path: str) -> bool:
    return "://" in path and storage.local_path(path) is None


@contextlib.contextmanager
def opened(
    file: DataFile, addresses: Mapping[str, str], *, ahead: Sequence[tuple[int, int]] = ()
) -> Iterator[pa.NativeFile]:
    """Open a file for pyarrow. `addresses`: addresses with credentials, by the address without them.

    `ahead`: byte ranges [start, stop) to fetch in advance. Raises: SourceError.
    """
    address = addresses.get(file.path, file.path)
    if is_remote(address):
        with contextlib.closing(pa.PythonFile(_open_remote(file, address, ahead), mode="r")) as handle:
            yield handle
        return
    local = storage.local_path(address) or address
    _require_unchanged(local, file)
    try:
        with _reading(local):
            opened_file = pa.OSFile(local)
        with opened_file as handle:
            yield handle
    finally:
        # If there was an error, a change of the file may be the cause.
        _require_unchanged(local, file)


def require_unchanged(file: DataFile) -> None:
    """Raise SourceError if a file's metadata has changed since planning."""
    if not is_remote(file.path):
        _require_unchanged(storage.local_path(file.path) or file.path, file)
    elif not is_pinned(file.path):
        _require_same_version.__wrapped__(file.path, file.size, file.version)


def _require_unchanged(path: str, file: DataFile) -> None:
    with _reading(path):
        status = os.stat(path)
    if status.st_size != file.size or (file.stamp is not None and stamp_of(status) != file.stamp):
        raise _changed_error(path)


def _changed_error(path: str) -> SourceError:
    return SourceError(f"{path}: has changed since the job was planned", remedy=AGAIN)


@contextlib.contextmanager
def _reading(address: str) -> Iterator[None]:
    shown = without_access(address)
    try:
        with storage.as_source_error(shown):
            yield
    except FileNotFoundError as error:
        # The request names a version that disappears when the object is replaced.
        if bucket_of(address) and storage.exists(address):
            raise _changed_error(shown) from error
        cause = f"{shown}: no longer exists, but existed when the job was planned"
        raise SourceError(cause, remedy=f"put it back as it was, and {AGAIN}") from error


def _open_remote(file: DataFile, address: str, ahead: Sequence[tuple[int, int]]) -> object_storage.RemoteFile:
    with _reading(address):
        fs, inner = storage.file_system(address)
    options = {} if is_pinned(address) else storage.pinned(address, file.version)
    if not options and not is_pinned(address):
        _require_same_version(address, file.size, file.version)

    def request(start: int, stop: int) -> bytes:
        if is_pinned(address):
            return hub.read_range(address, start, stop)
        return bytes(fs.cat_file(inner, start=start, end=stop, **options))

    def get(start: int, stop: int) -> bytes:
        with _reading(address):
            return object_storage.fetch(request, start, stop, path=without_access(address))

    fetched = [(start, stop, get(start, stop)) for start, stop in ahead]

    def read(start: int, stop: int) -> bytes:
        for first, last, content in fetched:
            if first <= start < stop <= last:
                return content[start - first : stop - first]
        return get(start, stop)

    return object_storage.RemoteFile(fs, inner, get=read, size=file.size, cache_type="none")


@functools.lru_cache(maxsize=_MOST_COMPARED)
def _require_same_version(address: str, size: int, version: str) -> None:
    with _reading(address):
        info = storage.describe(address)
    current = version_of(info)
    if info.get("size") not in (None, size) or (version and current and current != version):
        raise _changed_error(without_access(address))


def is_readable_by_workers(file: DataFile, *, needs_token: bool) -> bool:
    """Return whether remote workers can read the file: it is in a bucket, or public on the Hub or the web."""
    if file.path.startswith("hf://"):
        return not needs_token
    is_public = is_web(file.path) and without_access(file.path) == file.path
    return is_public or file.path.partition("://")[0] in READ_BY_WORKERS


def relay(
    files: Sequence[DataFile], *, folder: str, addresses: Mapping[str, str], inside: str | None = None
) -> dict[str, DataFile]:
    """Copy files to `FOLDER/source` unless they are there; return the copies by original path.

    `addresses`: see `opened`. `inside`: see `storage.write_atomic`. Raises: SourceError, OutputError.
    """
    target = storage.join(folder, "source")
    copies = {file.path: _copy_of(file, number, target) for number, file in enumerate(files)}
    sizes = storage.sizes(target)
    missing = [file for file in files if sizes.get(posixpath.basename(copies[file.path].path)) != file.size]
    stop = threading.Event()

    def chunks(file: DataFile) -> Iterator[bytes]:
        with opened(file, addresses) as handle:
            while chunk := handle.read(_CHUNK_BYTES):
                if stop.is_set():
                    raise RuntimeError("another file could not be sent, or the launcher was interrupted")
                yield chunk

    def send(file: DataFile) -> None:
        storage.write_atomic(copies[file.path].path, chunks(file), inside=inside)

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            list(pool.map(send, missing))
        finally:
            stop.set()  # after an error or an interrupt, the other files stop at their next chunk
    return copies


def _copy_of(file: DataFile, number: int, folder: str) -> DataFile:
    shown = without_access(file.path)
    identity = (number, shown, file.name, file.size, file.tag or (file.version, file.stamp))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.\-]", "_", posixpath.basename(shown))[-100:]
    return DataFile(path=storage.join(folder, f"{digest}-{name}"), name=file.name, size=file.size)
