"""Read, write, list and delete files by path: local folders, gs:// and every other fsspec scheme.

    storage ──┬── local_storage       local folders and their lock
              ├── gcs                 gs://
              └── object_storage      other services, through fsspec

Writes are atomic, transient errors are retried, and listings leave out temporary files. Every function may raise
OutputError. Functions that read may also raise FileNotFoundError; `storage_errors` turns other errors into a PrepError.
"""

import contextlib
import io
import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, BinaryIO

from pipelines.prepare.options.addresses import bucket_of
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.storage import local_storage, storage_errors
from pipelines.prepare.storage.local_storage import PARTIAL as PARTIAL
from pipelines.prepare.storage.local_storage import make_folder as make_folder
from pipelines.prepare.storage.local_storage import refuse_links as refuse_links
from pipelines.prepare.storage.local_storage import sweep as sweep
from pipelines.prepare.storage.storage_errors import as_output_error, reading, retry_transient, store_of
from tfrecord_io.errors import FormatError, OutputError, SourceError
from tfrecord_io.local_paths import local_path as local_path

# Limit for whole files. The largest tokenizer files have 40 MB.
_MOST_BYTES = 256 << 20
# Threads for remote files: each small file takes a round trip.
_READERS = 32


def join(root: str, *parts: str) -> str:
    return posixpath.join(root.rstrip("/") or "/", *parts)


def file_system(path: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it. Raises: ConfigError."""
    fs, inner = store_of(path).open_fs(path)
    return fs, inner


def describe(path: str, *, retry_if: storage_errors.RetryIf = storage_errors.is_transient) -> dict[str, Any]:
    """Return a remote file's or folder's metadata, as fsspec's `info`. `retry_if(error)`: whether to try again."""
    return dict(store_of(path).info(path, retry_if=retry_if))


def exists(path: str) -> bool:
    return size(path) is not None


def size(path: str) -> int | None:
    """Return a file's size in bytes, or None if it is missing."""
    local = local_path(path)
    try:
        with reading(path):
            return int(describe(path)["size"] or 0) if local is None else os.stat(local).st_size
    except FileNotFoundError:
        return None


def sizes(folder: str) -> dict[str, int]:
    """Return the size in bytes of each file in `folder`, by name in sorted order; {} if the folder is missing."""
    return {name: num_bytes for name, num_bytes in _entries(folder).items() if num_bytes is not None}


def free_bytes(folder: str) -> int | None:
    """Return the free bytes on a folder's disk, or None for a remote folder. The folder need not exist."""
    if (existing := local_path(folder)) is None:
        return None
    existing = os.path.abspath(existing)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    return shutil.disk_usage(existing).free


def list_names(folder: str) -> list[str]:
    """Return the sorted names of files and folders in `folder`; [] if the folder is missing."""
    return sorted(name.rstrip("/") for name in _entries(folder))


def read_bytes(path: str, *, most_bytes: int = _MOST_BYTES) -> bytes:
    """Read a whole file. Raises: FormatError if it exceeds `most_bytes`."""
    if local_path(path) is None:
        fs, inner = file_system(path)
        with reading(path):
            content: bytes = retry_transient(lambda: fs.cat_file(inner), path=path)
        num_bytes = len(content)
    else:
        with read_stream(path) as stream, reading(path):
            num_bytes = os.fstat(stream.fileno()).st_size
            content = stream.read(num_bytes) if num_bytes <= most_bytes else b""
    if num_bytes > most_bytes:
        cause = f"{path}: more than {most_bytes:,} bytes, the limit for this file"
        raise FormatError(cause, remedy="copy the file again from the original dataset")
    return content


def read_folder(folder: str) -> dict[str, bytes]:
    """Return the content of all files below a folder, by relative path. Raises: FormatError if it exceeds 256 MiB."""
    contents: dict[str, bytes] = {}
    folders = [""]
    for inner in folders:  # the loop appends to the list
        for name in (inner + entry for entry in _entries(join(folder, inner))):
            if name.endswith("/"):
                folders.append(name)
            else:
                left = _MOST_BYTES - sum(map(len, contents.values()))
                contents[name] = read_bytes(join(folder, name), most_bytes=left)
    return contents


def read_many(paths: Sequence[str]) -> list[bytes | None]:
    """Return the content of each file, None if it is missing. Remote files are read concurrently."""

    def read(path: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return read_bytes(path)
        return None

    is_remote = paths and local_path(paths[0]) is None
    return list(ordered_map(read, paths, threads=min(_READERS, len(paths)) if is_remote else 1))


@contextlib.contextmanager
def read_stream(path: str) -> Iterator[BinaryIO]:
    """Yield a file that is open for reading."""
    local = local_path(path)
    with reading(path):
        opened = _open_remote(path) if local is None else os.fdopen(local_storage.open_file(local), "rb")
    with opened as stream:
        yield stream


def _open_remote(path: str) -> BinaryIO:
    from pipelines.prepare.storage import object_storage

    fs, inner = file_system(path)
    metadata = describe(path)
    if metadata["type"] == "directory":
        raise FileNotFoundError(f"{path}: a folder, expected a file")
    version = pinned(path, str(metadata.get("generation", "")))

    def get(start: int, stop: int) -> bytes:
        with reading(path):
            try:
                return object_storage.fetch(
                    lambda first, last: fs.cat_file(inner, start=first, end=last, **version), start, stop, path=path
                )
            except FileNotFoundError as error:
                cause = f"{path}: deleted or replaced while it was read"
                raise OutputError(cause, remedy="run the same command again") from error

    remote = object_storage.RemoteFile(fs, inner, get=get, size=int(metadata["size"]), cache_type="readahead")
    return io.BufferedReader(remote, buffer_size=1 << 16)


def versions(paths: Sequence[str]) -> dict[str, int]:
    """Return each file's version number, by path; 0 if it is missing. {} if the storage has no versions."""
    if not paths or bucket_of(paths[0]) is None:
        return {}
    with reading(paths[0]):
        return dict(store_of(paths[0]).versions(paths))


def pinned(path: str, version: str) -> dict[str, str]:
    """Return the arguments of fsspec's `cat_file` that select a version; {} if the storage has no versions."""
    return dict(store_of(path).pinned(version)) if bucket_of(path) else {}


def write_bytes(path: str, content: bytes, *, inside: str | None = None, replacing: int | None = None) -> None:
    write_atomic(path, [content], inside=inside, replacing=replacing)


def write_atomic(path: str, chunks: Iterable[Any], *, inside: str | None = None, replacing: int | None = None) -> None:
    """Write buffers to a file that appears whole or not at all.

    inside: an existing local folder. Missing folders are made only below this one, so that a folder deleted during a
        job does not come back half full. Links below it are not followed.
    replacing: the version that may be replaced (see `versions`); 0 if there must be no file.
    Raises: OutputError if a file of another version has different content; errors of `chunks`.
    """
    store, place = _at(path)
    failures: list[Exception] = []

    def watched() -> Iterator[Any]:
        try:
            yield from chunks
        except Exception as error:
            failures.append(error)
            raise

    try:
        with as_output_error(path):
            store.write(place, watched(), inside=inside, replacing=replacing)
    except Exception:
        if failures:
            raise failures[0] from failures[0].__cause__
        raise


def delete(path: str, *, inside: str | None = None) -> None:
    """Delete a file, a link, or a whole folder, if it exists. `inside`: see `write_atomic`."""
    store, place = _at(path)
    with as_output_error(path), contextlib.suppress(FileNotFoundError):
        store.delete(place, inside=inside)


def delete_files(folder: str, names: Sequence[str], *, inside: str | None = None) -> None:
    """Delete files in a folder if they exist, remote ones concurrently. `inside`: see `write_atomic`."""
    store, place = _at(folder)
    with as_output_error(folder):
        store.delete_files([join(place, name) for name in names], inside=inside)


def as_source_error(path: str) -> contextlib.AbstractContextManager[None]:
    """Within the context, turn errors of reading the user's data from `path` into SourceError (see `reading`)."""
    return reading(path, SourceError)


def _at(path: str) -> tuple[ModuleType, str]:
    local = local_path(path)
    return (store_of(path), path) if local is None else (local_storage, local)


def _entries(folder: str) -> dict[str, int | None]:
    store, place = _at(folder)
    try:
        with reading(folder):
            sizes = store.entries(place)
    except FileNotFoundError:
        return {}
    return {name: sizes[name] for name in sorted(sizes) if not name.startswith(PARTIAL)}
