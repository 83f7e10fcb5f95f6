"""Let one job at a time work in a local folder.

A job holds `.prep/lock` with flock; the kernel releases it when the process ends, in whatever way. So an interrupted
job can be continued at once, and never while it still runs. The file names its holder, is not followed as a link, and
is deleted at the end; the library `filelock` leaves it, names nobody, and accepts a hard link to another file.

Object stores have no locks. There, two jobs for the same dataset write the same bytes, and a job for another dataset
finds the first one's work folder and is refused (`reservation`).
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
from pipelines.prepare.storage import local_storage, storage_errors
from tfrecord_io.errors import OutputError, PrepError

__all__ = ["FILE_NAME", "held"]

FILE_NAME = "lock"

# Of file systems without locks, such as some network mounts.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def held(root: str, *, work_folder: str) -> Iterator[None]:
    """Hold the lock of the dataset in `root`; folders made for the lock alone are removed at the end.

    Raises: OutputError if another job holds it, or nothing can be written there.
    """
    folder = storage.local_path(storage.join(root, work_folder))
    if folder is None:
        yield
        return
    new = [path for path in (folder, os.path.dirname(folder)) if not os.path.isdir(path)]
    path = os.path.join(folder, FILE_NAME)
    with storage_errors.as_output_error(path):
        descriptor = _acquire(path, root=root)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
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
            continue  # the last holder has just removed the folder that it had made
        if os.fstat(descriptor).st_nlink > 1:  # a hard link, perhaps to somebody's data
            os.close(descriptor)
            raise local_storage.link_refused(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                    return descriptor
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                _log.warning("%s: the file system knows no locks; run one job at a time in this folder", root)
                return descriptor
            who = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            if error.errno not in _TAKEN:
                raise
            raise OutputError(
                f"{root}: another job is at work in this folder ({who or 'it has just begun'})",
                remedy="wait until it has ended, or stop it; then run the same command again to go on where it stopped",
            ) from error
        # Its holder deleted and released it between our opening and locking it.
        os.close(descriptor)
