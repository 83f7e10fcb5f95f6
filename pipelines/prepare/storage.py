"""The one module that speaks to storage: local folders and every fsspec scheme, behind paths that are plain strings.

Writes are atomic: a file appears whole or not at all. On a local file system that is a temporary name in the same
folder, fsync, rename, and fsync of the folder; object stores make an object visible only when its upload is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tfrecord_io.errors import OutputError

__all__ = ["delete", "exists", "join", "list_names", "read_bytes", "read_stream", "size", "write_atomic", "write_bytes"]

PARTIAL = ".partial-"


def join(root: str, *parts: str) -> str:
    """`root/part/part`, for local paths and URLs alike."""
    return posixpath.join(root.rstrip("/") or "/", *parts)


def exists(path: str) -> bool:
    """Whether a file or folder is at `path`."""
    fs, inner = _open_fs(path)
    return bool(fs.exists(inner))


def size(path: str) -> int | None:
    """Bytes of the file at `path`, or None if there is none."""
    fs, inner = _open_fs(path)
    try:
        return int(fs.info(inner)["size"])
    except FileNotFoundError:
        return None


def list_names(folder: str) -> list[str]:
    """Names in `folder`, sorted; empty if there is no such folder. Half-written files never count."""
    fs, inner = _open_fs(folder)
    try:
        entries = fs.ls(inner, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = (posixpath.basename(str(entry).rstrip("/")) for entry in entries)
    return sorted(name for name in names if PARTIAL not in name)


def read_bytes(path: str) -> bytes:
    """The whole file. Raises: FileNotFoundError."""
    fs, inner = _open_fs(path)
    content: bytes = fs.cat_file(inner)
    return content


@contextlib.contextmanager
def read_stream(path: str) -> Iterator[BinaryIO]:
    """The file, to be read from the start. Raises: FileNotFoundError."""
    fs, inner = _open_fs(path)
    with fs.open(inner, "rb") as stream:
        yield stream


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file atomically, with its folders. Raises: OutputError."""
    write_atomic(path, [content])


def write_atomic(path: str, chunks: Iterable[Any]) -> None:
    """Writes buffers to a file that appears whole or not at all. Raises: OutputError; whatever `chunks` raises
    passes.
    """
    fs, inner = _open_fs(path)
    if isinstance(fs, LocalFileSystem):
        _write_local(inner, chunks)
        return
    # An object store shows an object when its upload is committed; closing after an error would commit half of it.
    stream = fs.open(inner, "wb")
    try:
        for chunk in chunks:
            stream.write(chunk)
    except BaseException:
        with contextlib.suppress(Exception):
            stream.discard()
        raise
    stream.close()


def delete(path: str) -> None:
    """Deletes a file or folder with all that is in it, if it is there."""
    fs, inner = _open_fs(path)
    if fs.exists(inner):
        fs.rm(inner, recursive=True)


def _open_fs(path: str) -> tuple[Any, str]:
    fs, inner = fsspec.core.url_to_fs(path)
    return fs, inner


def _write_local(path: str, chunks: Iterable[Any]) -> None:
    folder = os.path.dirname(path)
    partial = os.path.join(folder, f"{PARTIAL}{uuid.uuid4().hex}-{os.path.basename(path)}")
    with _explained(path):
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as stream:
            for chunk in chunks:
                with _explained(path):
                    _write_all(stream, chunk)
            with _explained(path):
                os.fsync(stream.fileno())
        with _explained(path):
            os.replace(partial, path)
            _sync_folder(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _write_all(stream: Any, chunk: Any) -> None:
    # An unbuffered write may take less than it was given: on a full disk, or above 2 GiB.
    view = memoryview(chunk).cast("B")
    while view:
        view = view[stream.write(view) :]


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REMEDIES = {
    errno.ENOSPC: "free some space, or choose an --output on another disk, and run the same command again to go on",
    errno.EDQUOT: "free some of your quota, and run the same command again to go on",
    errno.EACCES: "choose an --output that you may write to",
    errno.EPERM: "choose an --output that you may write to",
    errno.EROFS: "choose an --output on a file system that is not read-only",
    errno.ENOTDIR: "choose an --output that is a folder",
    errno.EEXIST: "choose an --output that is a folder",
}


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "run the same command again to go on")
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}", remedy=remedy) from error
