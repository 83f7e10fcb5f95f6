"""Write local files so that a killed process or a power loss leaves each one complete or absent.

    OUT/.partial-1f0c…-NAME    written, synced ──► renamed to OUT/NAME ──► the folder synced

Links are not followed below the dataset folder `inside`, nor at the end of a path, because a dataset's sender could use
them to redirect reads and writes.

A job locks `.prep/lock` with flock; the kernel releases the lock when the process ends.

Functions raise OutputError and OSError.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import OutputError, PrepError
from tfrecord_io.local_paths import local_path

PARTIAL = ".partial-"
WORK_FOLDER, LOCK_FILE = ".prep", "lock"

# Errors of `flock` on a file system without locks.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_OF_LINKS = (errno.ELOOP, errno.EMLINK)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_log = logging.getLogger(__name__)


def make_folder(folder: str) -> None:
    """Make a local folder and its missing parents, and sync them to disk. Do nothing for a remote folder."""
    if (local := local_path(folder)) is None or os.path.isdir(local):
        return
    above = os.path.dirname(local)
    make_folder(above)
    with storage_errors.as_output_error(folder), _open_folder(above) as descriptor:
        try:
            os.mkdir(local)
        except FileExistsError:
            if os.path.islink(local) and not os.path.exists(local):  # a dangling link
                raise
        os.fsync(descriptor)


@contextlib.contextmanager
def _open_folder(folder: str, *, inside: str | None = None, make: bool = False) -> Iterator[int]:
    path = (inside and local_path(inside)) or folder
    if inside is None and make:
        make_folder(folder)
    descriptor = os.open(path, _FOLDER)
    try:
        for name in os.path.relpath(folder, path).split(os.sep):
            if name != os.curdir:
                path = os.path.join(path, name)
                above, descriptor = descriptor, _open_below(descriptor, path, make=make)
                os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: str, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """Open a regular file, and return its descriptor. `folder`: descriptor of its folder, if that is open.

    Raises: OutputError for a link, which may lead elsewhere, or a pipe or device, which may block.
    """
    name = path if folder is None else os.path.basename(path)
    try:
        # O_NONBLOCK: do not wait for the other end of a pipe.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except OSError as error:
        if error.errno in _OF_LINKS:
            raise _link_refused(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OutputError(f"{path}: a pipe or a device, expected a file", remedy="delete it, and run the command again")


def _link_refused(path: str) -> OutputError:
    return OutputError(
        f"{path}: a link, expected a file or folder of the dataset itself, since links may lead out of it",
        remedy="replace it with its target, or delete it; `cp -rL DATASET COPY` makes a copy without links",
    )


def refuse_links(root: str, *, is_own: Callable[[str], object], folders: Collection[str]) -> None:
    """Raise OutputError if `root` contains links, among names that `is_own` accepts or in its subfolders `folders`."""
    local = local_path(root)
    for place, below, names in os.walk(local) if local else ():
        entries = sorted([*below, *names])
        if place == local:
            entries = list(filter(is_own, entries))
            below[:] = [name for name in below if name in folders]
        for path in (os.path.join(place, entry) for entry in entries):
            if os.path.islink(path):
                raise _link_refused(path)


def write(path: str, chunks: Iterable[Any], *, inside: str | None = None, replacing: int | None = None) -> None:
    """Write buffers to a file; make missing folders below `inside`."""
    name = os.path.basename(path)
    partial = f"{PARTIAL}{uuid.uuid4().hex}-{name}"
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(_open_folder(os.path.dirname(path), inside=inside, make=True))
        except FileNotFoundError as error:
            if inside is None:
                raise
            cause = f"{os.path.dirname(path)}: the folder was deleted or moved while the job ran"
            raise OutputError(cause, remedy="run the same command again; missing files are made again") from error
        descriptor = open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.writelines(chunks)
                stream.flush()
                os.fsync(descriptor)
                os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise


def delete(path: str, *, inside: str | None = None) -> None:
    name, parent = os.path.basename(path), os.path.dirname(path)
    with contextlib.suppress(FileNotFoundError), _open_folder(parent, inside=inside) as folder:
        if stat.S_ISDIR(_mode(name, folder)):
            for _, folders, names, place in os.fwalk(name, topdown=False, dir_fd=folder):
                for inner in (*names, *folders):
                    _remove(inner, place)
        _remove(name, folder)


def delete_files(paths: Sequence[str], *, inside: str | None = None) -> None:
    for path in paths:
        delete(path, inside=inside)


def entries(folder: str) -> dict[str, int | None]:
    """Return the size in bytes of each file in `folder`, by name; None for links and folders. Folder names end in /."""
    sizes: dict[str, int | None] = {}
    with os.scandir(folder) as scanned:
        for entry in scanned:
            name = entry.name + "/" * entry.is_dir(follow_symlinks=False)
            is_file = entry.is_file(follow_symlinks=False)
            sizes[name] = entry.stat(follow_symlinks=False).st_size if is_file else None
    return sizes


def sweep(folder: str, *, inside: str | None = None, below: bool = False) -> None:
    """Delete temporary files of killed processes in a folder (`below`: and subfolders). Refuse links below `inside`."""
    if (local := local_path(folder)) is None:
        return
    with (
        storage_errors.as_output_error(folder),
        contextlib.suppress(FileNotFoundError),
        _open_folder(local, inside=inside) as descriptor,
    ):
        for _, folders, names, place in os.fwalk(".", dir_fd=descriptor):
            if not below:
                folders.clear()
            for name in names:
                if name.startswith(PARTIAL):
                    _remove(name, place)


def _open_below(above: int, path: str, *, make: bool) -> int:
    name = os.path.basename(path)
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
            os.fsync(above)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, *_OF_LINKS) and stat.S_ISLNK(_mode(name, above)):
            raise _link_refused(path) from error
        raise


def _mode(name: str, folder: int) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        (os.rmdir if stat.S_ISDIR(_mode(name, folder)) else os.unlink)(name, dir_fd=folder)


@contextlib.contextmanager
def locked(root: str) -> Iterator[None]:
    """Lock the dataset folder `root` during the context, unless it is remote; then remove new folders that are empty.

    Raises: OutputError if another job holds the lock, or the folder is not writable.
    """
    if (local := local_path(root)) is None:
        yield
        return
    folder = os.path.join(local, WORK_FOLDER)
    new = [folder, *([] if os.path.isdir(local) else [local])]
    path = os.path.join(folder, LOCK_FILE)
    with storage_errors.as_output_error(path):
        descriptor = _acquire(path, root=root)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError, PrepError):
            delete(path, inside=local)
        os.close(descriptor)
        for made in new:
            with contextlib.suppress(OSError):
                os.rmdir(made)


def _acquire(path: str, *, root: str) -> int:
    folder = os.path.dirname(path)
    while True:
        make_folder(os.path.dirname(folder))
        try:
            with _open_folder(folder, inside=os.path.dirname(folder), make=True) as inside:
                descriptor = open_file(path, os.O_RDWR | os.O_CREAT, folder=inside)
        except FileNotFoundError:
            continue  # the last holder removed the folder
        if os.fstat(descriptor).st_nlink > 1:  # the other name may belong to other data
            os.close(descriptor)
            raise _link_refused(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                    return descriptor
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                _log.warning("%s: the file system has no locks; run one job at a time in this folder", root)
                return descriptor
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            if error.errno not in _TAKEN:
                raise
            raise OutputError(
                f"{root}: another job is running in this folder ({holder or 'it has just begun'})",
                remedy="wait until it has ended, or stop it; then run the same command again to continue",
            ) from error
        os.close(descriptor)
