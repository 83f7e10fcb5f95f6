"""Local files, written so that a kill or a loss of power leaves them whole or absent.

    OUT/.partial-1f0c…-NAME    written, synced ──► renamed to OUT/NAME ──► the folder synced

A killed process leaves its temporary file behind; listings leave it out, and the next run deletes it.

Links are not followed at the end of a path, nor between it and `inside`, the dataset's folder: the sender of a dataset,
or another user who may write to its folder, could redirect reads and writes with one. The path to `inside` may have
links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import OutputError

__all__ = [
    "PARTIAL",
    "delete",
    "entries",
    "find_link",
    "link_refused",
    "make_folders",
    "open_file",
    "open_folder",
    "sweep",
    "write",
]

PARTIAL = ".partial-"

_OF_LINKS = (errno.ELOOP, errno.EMLINK)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_folders(folder: str) -> None:
    """Make a folder and those above it, and sync each, so that they survive a loss of power.

    Raises: OSError.
    """
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folders(above)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if os.path.islink(folder) and not os.path.exists(folder):  # to nowhere
            raise
    _sync_folder(above)


@contextlib.contextmanager
def open_folder(folder: str, *, inside: str | None = None, make: bool = False) -> Iterator[int]:
    """Give a descriptor of a folder. With `make`, missing folders are made, but never `inside`: a folder that was
    deleted in the middle of a job does not come back with half of its content.

    Raises: OutputError for a link between `inside` and the folder; FileNotFoundError; other OSErrors.
    """
    if inside is None and make:
        make_folders(folder)
    descriptor = os.open(folder if inside is None else inside, _FOLDER)
    try:
        path = inside or folder
        for name in os.path.relpath(folder, path).split(os.sep):
            if name != os.curdir:
                path = os.path.join(path, name)
                above, descriptor = descriptor, _open_below(descriptor, path, make=make)
                os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: str, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """Return a descriptor of a regular file; `folder` is the descriptor of its folder, if that is open.

    Raises: OutputError for a link, a pipe or a device, which may block or never end; OSError.
    """
    name = path if folder is None else os.path.basename(path)
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except OSError as error:
        if error.errno in _OF_LINKS:
            raise link_refused(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OutputError(f"{path}: a pipe or a device, expected a file", remedy="delete it")


def link_refused(path: str) -> OutputError:
    """Return the error for a link in place of a file or folder of the dataset."""
    return OutputError(
        f"{path}: a link, expected a file or folder of the dataset's own; links are not followed there",
        remedy="put what it leads to in its place, or delete it; `cp -rL DATASET COPY` makes a copy without links",
    )


def find_link(folder: str, *, is_own: Callable[[str], bool], folders: Collection[str]) -> str | None:
    """Return the first link among the entries of a folder that `is_own`, and among all below its `folders`."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.is_symlink() and is_own(entry.name):
                return path
            if entry.name in folders and entry.is_dir(follow_symlinks=False):
                for place, below, names in os.walk(path):
                    for inner in (os.path.join(place, name) for name in (*below, *names)):
                        if os.path.islink(inner):
                            return inner
    return None


def write(path: str, chunks: Iterable[Any], *, inside: str | None = None, make: bool = True) -> None:
    """Write buffers to a file. With `make`, missing folders are made, below `inside` if that is given.

    Raises: OutputError; errors of `chunks` pass unchanged.
    """
    name = os.path.basename(path)
    partial = f"{PARTIAL}{uuid.uuid4().hex}-{name}"
    with _folder_of(path, inside=inside, make=make) as folder:
        with storage_errors.as_output_error(path):
            descriptor = open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as stream:
                for chunk in chunks:
                    with storage_errors.as_output_error(path):
                        _write_all(stream, chunk)
                with storage_errors.as_output_error(path):
                    os.fsync(descriptor)
                    os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
                    os.fsync(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise


def delete(path: str, *, inside: str | None = None) -> None:
    """Delete a file, a link, or a folder with its content, if it exists. Raises: OutputError; OSError."""
    name, parent = os.path.basename(path), os.path.dirname(path)
    with contextlib.suppress(FileNotFoundError), open_folder(parent, inside=inside) as folder:
        if stat.S_ISDIR(_mode(name, folder)):
            for _, folders, names, place in os.fwalk(name, topdown=False, dir_fd=folder):
                for inner in (*names, *folders):
                    _remove(inner, place)
        _remove(name, folder)


def entries(folder: str) -> dict[str, int | None]:
    """Return the bytes of each file in `folder` by name; None for links, and for folders, named `folder/`.

    Raises: OSError.
    """
    found: dict[str, int | None] = {}
    with os.scandir(folder) as scanned:
        for entry in scanned:
            name = entry.name + "/" * entry.is_dir(follow_symlinks=False)
            is_file = entry.is_file(follow_symlinks=False)
            found[name] = entry.stat(follow_symlinks=False).st_size if is_file else None
    return found


def sweep(folder: str, *, inside: str | None = None, below: bool = False) -> None:
    """Delete the temporary files in `folder`, and `below` it. Raises: OutputError; OSError."""
    with contextlib.suppress(FileNotFoundError), open_folder(folder, inside=inside) as descriptor:
        for _, folders, names, place in os.fwalk(".", dir_fd=descriptor):
            if not below:
                folders.clear()
            for name in names:
                if name.startswith(PARTIAL):
                    _remove(name, place)


@contextlib.contextmanager
def _folder_of(path: str, *, inside: str | None, make: bool) -> Iterator[int]:
    """Give a descriptor of a file's folder. Raises: OutputError."""
    folder = os.path.dirname(path)
    with contextlib.ExitStack() as stack:
        with storage_errors.as_output_error(path):
            try:
                descriptor = stack.enter_context(open_folder(folder, inside=inside, make=make))
            except FileNotFoundError as error:
                if inside is None:
                    raise
                raise OutputError(
                    f"{folder}: the folder is not there any more: it was deleted or moved while the job was at work",
                    remedy="run the same command again; what is not there is made again",
                ) from error
        yield descriptor


def _open_below(above: int, path: str, *, make: bool) -> int:
    """Return a descriptor of the folder `path`; `above` is the descriptor of its parent."""
    name = os.path.basename(path)
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
            os.fsync(above)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, *_OF_LINKS) and stat.S_ISLNK(_mode(name, above)):
            raise link_refused(path) from error
        raise


def _mode(name: str, folder: int) -> int:
    """Return the mode of a file, folder or link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _remove(name: str, folder: int) -> None:
    """Remove a file, a link or an empty folder, if it still exists."""
    with contextlib.suppress(FileNotFoundError):
        (os.rmdir if stat.S_ISDIR(_mode(name, folder)) else os.unlink)(name, dir_fd=folder)


def _write_all(stream: Any, chunk: Any) -> None:
    # An unbuffered write may write only a part: on a full disk, or above 2 GiB.
    view = memoryview(chunk).cast("B")
    while view:
        view = view[stream.write(view) :]


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
