"""Files on a local disk, written so that a kill or a loss of power leaves them whole or not there at all.

    OUT/.partial-1f0c…-NAME    written, synced ──► renamed to OUT/NAME ──► the folder synced

A process that is killed leaves its temporary file behind: no listing shows it, and the next run sweeps it away.

No link is followed at the end of a path, nor on the way to it from `inside`, the folder that is ours: whoever sent us a
dataset, or may write to its folder too, could send us elsewhere with one. What leads to that folder may be links.
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
    "find_link",
    "link_refused",
    "make_folders",
    "open_file",
    "open_folder",
    "sizes",
    "sweep",
    "write",
]

PARTIAL = ".partial-"

_OF_LINKS = (errno.ELOOP, errno.EMLINK)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_folders(folder: str) -> None:
    """Makes a folder and those above it, so that they outlast a loss of power as the files in them do.

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
    """A descriptor of a folder, for as long as the context lasts. What is not there of it is made if that is asked for,
    but for `inside`: a folder that was deleted in the middle of a job does not come back with half of its content.

    Raises: OutputError if there is a link between the two; FileNotFoundError; other OSErrors.
    """
    if inside is None and make:
        make_folders(folder)
    descriptor = os.open(folder if inside is None else inside, _FOLDER)
    try:
        for path in [] if inside is None else _path_down(inside, folder):
            above, descriptor = descriptor, _open_below(descriptor, path, make=make)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: str, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """A descriptor of a plain file; `folder` is that of its folder, if it is open.

    Raises: OutputError if it is a link, a pipe or a device, which would keep us waiting or never end; OSError.
    """
    name = path if folder is None else os.path.basename(path)
    try:
        # Without waiting for the other end of a pipe.
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
    """The error of a link where a file or folder of our own is to be."""
    return OutputError(
        f"{path}: a link, expected a file or folder of the dataset's own; links are not followed there",
        remedy="put what it leads to in its place, or delete it; `cp -rL DATASET COPY` makes a copy without links",
    )


def find_link(folder: str, *, is_own: Callable[[str], bool], folders: Collection[str]) -> str | None:
    """The first link among what `is_own` in a folder, and among all that is below its `folders`."""
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
    """Writes buffers to a file; its folders below `inside`, which must be there if it is given, are made unless `make`
    says no.

    Raises: OutputError; whatever `chunks` raises passes.
    """
    explained, name = storage_errors.explained, os.path.basename(path)
    partial = f"{PARTIAL}{uuid.uuid4().hex}-{name}"
    with _folder_of(path, inside=inside, make=make) as folder:
        with explained(path):
            descriptor = open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as stream:
                for chunk in chunks:
                    with explained(path):
                        _write_all(stream, chunk)
                with explained(path):
                    os.fsync(stream.fileno())
            with explained(path):
                os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise


def delete(path: str, *, inside: str | None = None) -> None:
    """Deletes a file, a link, or a folder with all that is in it. Raises: OutputError; OSError."""
    name, parent = os.path.basename(path), os.path.dirname(path)
    with contextlib.suppress(FileNotFoundError), open_folder(parent, inside=inside) as folder:
        if stat.S_ISDIR(_mode(name, folder)):
            for _, folders, names, place in os.fwalk(name, topdown=False, dir_fd=folder):
                for inner in (*names, *folders):
                    _remove(inner, place)
        _remove(name, folder)


def sizes(folder: str) -> dict[str, int]:
    """Bytes of each file in `folder`."""
    with os.scandir(folder) as entries:
        found = (entry for entry in entries if entry.is_file(follow_symlinks=False))
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in found}


def sweep(folder: str, *, inside: str | None = None, below: bool = False) -> None:
    """Deletes the temporary files in `folder`, and `below` it too. Raises: OutputError; OSError."""
    with contextlib.suppress(FileNotFoundError), open_folder(folder, inside=inside) as descriptor:
        for _, folders, names, place in os.fwalk(".", dir_fd=descriptor):
            if not below:
                folders.clear()
            for name in names:
                if name.startswith(PARTIAL):
                    _remove(name, place)


@contextlib.contextmanager
def _folder_of(path: str, *, inside: str | None, make: bool) -> Iterator[int]:
    """The folder that a file is to be in. Raises: OutputError."""
    folder = os.path.dirname(path)
    with contextlib.ExitStack() as stack:
        with storage_errors.explained(path):
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


def _path_down(inside: str, folder: str) -> Iterator[str]:
    """The folders on the way from `inside` to `folder`."""
    path = inside
    for name in os.path.relpath(folder, inside).split(os.sep):
        if name != os.curdir:
            path = os.path.join(path, name)
            yield path


def _open_below(above: int, path: str, *, make: bool) -> int:
    """A descriptor of the folder `path`, which is in the one of the descriptor `above`."""
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
    """Of what has that name, be it a link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _remove(name: str, folder: int) -> None:
    """Removes a file, a link or an empty folder, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        (os.rmdir if stat.S_ISDIR(_mode(name, folder)) else os.unlink)(name, dir_fd=folder)


def _write_all(stream: Any, chunk: Any) -> None:
    # An unbuffered write may take less than it was given: on a full disk, or above 2 GiB.
    view = memoryview(chunk).cast("B")
    while view:
        view = view[stream.write(view) :]


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
