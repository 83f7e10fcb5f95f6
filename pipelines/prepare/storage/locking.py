"""One job at a time in a folder.

On a local disk the kernel keeps the lock: `.prep/lock` is held (flock) while a job runs, and let go when its process
ends, however it ends. What an interrupted job left can therefore be taken up at once, and never while it is at work.

Object stores have no such thing. There, two jobs that make the same dataset make the same bytes, so that either may
write any object; a job that makes another one finds the first one's work folder and is refused (`reservation`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator

from pipelines.prepare import storage
from pipelines.prepare.storage import local_storage
from tfrecord_io.errors import OutputError, PrepError

__all__ = ["FILE_NAME", "held"]

FILE_NAME = "lock"

# File systems that know no locks, such as some network mounts.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def held(root: str, *, work_folder: str) -> Iterator[None]:
    """Holds the lock of the dataset in `root`. Folders that were made for the lock alone are removed again.

    Raises: OutputError if another job holds it, or nothing can be written there.
    """
    folder = storage.local_path(storage.join(root, work_folder))
    if folder is None:
        yield
        return
    new = [path for path in (folder, os.path.dirname(folder)) if not os.path.isdir(path)]
    path = os.path.join(folder, FILE_NAME)
    with storage.explained(path):
        descriptor = _acquire(path, root=root)
    try:
        _say_who(descriptor)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError, PrepError):
            local_storage.delete(path, inside=os.path.dirname(folder))
        os.close(descriptor)
        for made in new:
            with contextlib.suppress(OSError):
                os.rmdir(made)


def _acquire(path: str, *, root: str) -> int:
    folder = os.path.dirname(path)
    while True:
        local_storage.make_folders(os.path.dirname(folder))
        try:
            with local_storage.open_folder(folder, inside=os.path.dirname(folder), make=True) as inside:
                descriptor = local_storage.open_file(path, os.O_RDWR | os.O_CREAT, folder=inside)
        except FileNotFoundError:
            continue  # its last holder has just removed the folder, which was made for it
        if os.fstat(descriptor).st_nlink > 1:  # under another name too, where it may be somebody's data
            os.close(descriptor)
            raise local_storage.link_refused(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                _log.warning("%s: the file system knows no locks; run one job at a time in this folder", root)
                return descriptor
            who = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            if error.errno in _TAKEN:
                raise _refusal(root, who) from error
            raise
        # Between opening and locking, its holder has let go of it and deleted it.
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _say_who(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _refusal(root: str, who: str) -> OutputError:
    return OutputError(
        f"{root}: another job is at work in this folder ({who or 'it has just begun'})",
        remedy="wait until it has ended, or stop it; then run the same command again to go on where it stopped",
    )
