"""Random access to source files, local or remote, that refuses a file other than the one of the plan.

    local        size, inode and times are compared with the plan's, before and after reading
    gs://        every range is requested of the plan's generation
    hf://        the address holds the commit
    other        size and etag are compared with the plan's once in a process

Nothing is mapped into memory, so that a file that shrinks is an error, and not a signal that ends the process.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping

import fsspec
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.sources.parquet.groups import StoredFile
from pipelines.prepare.sources.resolve import hub
from pipelines.prepare.sources.resolve.data_files import DataFile, stamp_of, version_of
from pipelines.prepare.storage import object_storage, storage_errors
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["FileVersion", "is_remote", "opened", "require_unchanged"]

# A file at one version: `path`, `size`, `version` and `stamp`.
FileVersion = DataFile | StoredFile

AGAIN = "run the same command again"
_MOST_COMPARED = 65_536


def is_remote(path: str) -> bool:
    """Return whether each read is a request to a service."""
    return "://" in path and storage.local_path(path) is None


@contextlib.contextmanager
def opened(file: FileVersion, addresses: Mapping[str, str]) -> Iterator[pa.NativeFile]:
    """Open a file, to be read with `read_at` or by pyarrow. `addresses`: see `RowReader`.

    Raises: SourceError if it is gone, cannot be opened, or has changed since the plan, also during reads of a remote
    file. Errors of the local disk and of decoders are passed on.
    """
    address = addresses.get(file.path, file.path)
    if is_remote(address):
        with contextlib.closing(pa.PythonFile(_RemoteFile(file, address), mode="r")) as handle:
            yield handle
        return
    local = (storage.local_path(address) or address) if "://" in address else address
    _require_unchanged(local, file)
    try:
        with _as_source_error(local):
            opened_file = pa.OSFile(local)
        with opened_file as handle:
            yield handle
    finally:
        # After an error too: a change is what caused it then.
        _require_unchanged(local, file)


def require_unchanged(file: FileVersion) -> None:
    """Raise SourceError if a file is gone, or is another one than when the job was planned, as far as its metadata
    say.
    """
    if not is_remote(file.path):
        _require_unchanged(storage.local_path(file.path) or file.path, file)
    elif not _is_pinned(file.path):
        _require_same_version.__wrapped__(file.path, file.size, file.version)


def _require_unchanged(path: str, file: FileVersion) -> None:
    with _as_source_error(path):
        status = os.stat(path)
    if status.st_size != file.size or (file.stamp is not None and stamp_of(status) != file.stamp):
        raise _changed_error(path)


def _changed_error(path: str) -> SourceError:
    return SourceError(f"{path}: was changed since the job was planned", remedy=AGAIN)


@contextlib.contextmanager
def _as_source_error(path: str) -> Iterator[None]:
    try:
        with storage_errors.reading(path, SourceError):
            yield
    except FileNotFoundError as error:
        raise _gone_error(path) from error


def _gone_error(path: str) -> SourceError:
    return SourceError(
        f"{path}: is gone, but existed when the job was planned", remedy=f"put it back as it was, and {AGAIN}"
    )


class _RemoteFile(fsspec.spec.AbstractBufferedFile):
    """A remote file; every read is one request."""

    def __init__(self, file: FileVersion, address: str) -> None:
        self._shown = without_access(address)
        self._address = address
        with storage.as_source_error(self._shown):
            fs, inner = storage.file_system(address)
            self._get = _range_reader(file, address)
        super().__init__(fs, inner, cache_type="none", size=file.size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Request bytes [start, end). Raises: SourceError."""
        try:
            with storage.as_source_error(self._shown):
                return object_storage.fetch(self._get, start, end, path=self._shown)
        except FileNotFoundError as error:
            # A request to gs:// names a generation, which no longer exists once the object is replaced.
            if storage_errors.bucket_of(self._address) and storage.exists(self._address):
                raise _changed_error(self._shown) from error
            raise _gone_error(self._shown) from error


def _range_reader(file: FileVersion, address: str) -> Callable[[int, int], bytes]:
    """Return a function that requests bytes [start, stop), of the plan's version if the service can select one."""
    if _is_pinned(address):
        return functools.partial(hub.read_range, address)
    fs, inner = storage.file_system(address)
    if storage_errors.bucket_of(address) is not None and file.version.isdecimal():
        return lambda start, stop: bytes(fs.cat_file(inner, start=start, end=stop, generation=file.version))
    _require_same_version(address, file.size, file.version)
    return lambda start, stop: bytes(fs.cat_file(inner, start=start, end=stop))


def _is_pinned(address: str) -> bool:
    return address.startswith("hf://") and "@" in address


@functools.lru_cache(maxsize=_MOST_COMPARED)
def _require_same_version(address: str, size: int, version: str) -> None:
    """Compare a file with the service's metadata, once in a process. Raises: SourceError if it has changed."""
    shown = without_access(address)
    try:
        with storage.as_source_error(shown):
            info = storage.describe(address)
    except FileNotFoundError as error:
        raise _gone_error(shown) from error
    current = version_of(info)
    if info.get("size") not in (None, size) or (version and current and current != version):
        raise _changed_error(shown)
