"""The one module that speaks to storage: local folders and every fsspec scheme, behind paths that are plain strings.

Writes are atomic: a file appears whole or not at all. On a local file system that is a temporary name in the same
folder, fsync, rename, and fsync of the folder; object stores make an object visible only when its upload is complete.
A process that is killed leaves its temporary file behind: no listing shows it, and the next run sweeps it away.

Every file system has errors of its own. What passes here is FileNotFoundError, from reading; the rest is explained.
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

from tfrecord_io.errors import ConfigError, OutputError, PrepError

__all__ = [
    "delete",
    "exists",
    "explained",
    "join",
    "list_names",
    "local_path",
    "make_folders",
    "read_bytes",
    "read_stream",
    "size",
    "sweep",
    "write_atomic",
    "write_bytes",
]

PARTIAL = ".partial-"


def join(root: str, *parts: str) -> str:
    """`root/part/part`, for local paths and URLs alike."""
    return posixpath.join(root.rstrip("/") or "/", *parts)


def local_path(path: str) -> str | None:
    """The path for the operating system, or None if `path` is not on a local file system."""
    fs, inner = _open_fs(path)
    return str(inner) if isinstance(fs, LocalFileSystem) else None


def make_folders(folder: str) -> None:
    """Makes a local folder and those above it, so that they outlast a loss of power as the files in them do."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folders(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    _sync_folder(above)


def exists(path: str) -> bool:
    """Whether a file or folder is at `path`."""
    fs, inner = _open_fs(path)
    return bool(fs.exists(inner))


def size(path: str) -> int | None:
    """Bytes of the file at `path`, or None if there is none. Raises: OutputError."""
    fs, inner = _open_fs(path)
    try:
        with _readable(path):
            return int(fs.info(inner)["size"])
    except FileNotFoundError:
        return None


def list_names(folder: str) -> list[str]:
    """Names in `folder`, sorted; empty if there is no such folder. Half-written files never count.

    Raises: OutputError.
    """
    fs, inner = _open_fs(folder)
    try:
        with _readable(folder):
            entries = [str(entry).rstrip("/") for entry in fs.ls(inner, detail=False)]
    except FileNotFoundError:
        return []
    # Asked for a file, or for a folder with a marker object, `ls` names what it was asked for.
    names = (posixpath.basename(entry) for entry in entries if entry != inner.rstrip("/"))
    return sorted(name for name in names if not name.startswith(PARTIAL))


def read_bytes(path: str) -> bytes:
    """The whole file. Raises: FileNotFoundError; OutputError."""
    fs, inner = _open_fs(path)
    with _readable(path):
        content: bytes = fs.cat_file(inner)
    return content


@contextlib.contextmanager
def read_stream(path: str) -> Iterator[BinaryIO]:
    """The file, to be read from the start. Raises: FileNotFoundError; OutputError."""
    fs, inner = _open_fs(path)
    with _readable(path):
        stream = fs.open(inner, "rb")
    with stream:
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
    with explained(path):
        stream = fs.open(inner, "wb")
    try:
        for chunk in chunks:
            with explained(path):
                stream.write(chunk)
    except BaseException:
        with contextlib.suppress(Exception):
            stream.discard()
        raise
    with explained(path):
        stream.close()


def delete(path: str) -> None:
    """Deletes a file or folder with all that is in it, if it is there. Raises: OutputError."""
    fs, inner = _open_fs(path)
    if fs.exists(inner):
        with explained(path):
            fs.rm(inner, recursive=True)


def sweep(folder: str, *, below: bool = False) -> None:
    """Deletes the temporary files that killed processes left in `folder`, and `below` it too. Raises: OutputError."""
    local = local_path(folder)
    if local is None:
        return
    with explained(folder):
        for place, folders, names in os.walk(local):
            if not below:
                folders.clear()
            for name in names:
                if name.startswith(PARTIAL):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(place, name))


def _open_fs(path: str) -> tuple[Any, str]:
    try:
        fs, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"{path}: no way to open such an address: {error}", remedy="give a local folder or a gs:// address"
        ) from error
    return fs, inner


def _write_local(path: str, chunks: Iterable[Any]) -> None:
    folder = os.path.dirname(path)
    partial = os.path.join(folder, f"{PARTIAL}{uuid.uuid4().hex}-{os.path.basename(path)}")
    with explained(path):
        make_folders(folder)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as stream:
            for chunk in chunks:
                with explained(path):
                    _write_all(stream, chunk)
            with explained(path):
                os.fsync(stream.fileno())
        with explained(path):
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
    errno.EFBIG: "choose a smaller --shard-size, or an --output on another file system",
    errno.EACCES: "choose an --output that you may write to",
    errno.EPERM: "choose an --output that you may write to",
    errno.EROFS: "choose an --output on a file system that is not read-only",
    errno.ENOENT: "choose an --output in a place where folders can be made",
    errno.ENOTDIR: "choose an --output that is a folder",
    errno.EEXIST: "choose an --output that is a folder",
    errno.ENAMETOOLONG: "choose a shorter --output or --name",
}


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PrepError):
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from error
    except Exception as error:
        raise _explanation(path, "read", error) from error


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Around writing to `path`. Raises: OutputError for whatever the file system raises."""
    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        raise _explanation(path, "written", error) from error


def _explanation(path: str, done: str, error: Exception) -> OutputError:
    number, text = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
    remedy = _REMEDIES.get(number or 0, "run the same command again to go on")
    return OutputError(f"{path}: cannot be {done}: {text or error or type(error).__name__}", remedy=remedy)
