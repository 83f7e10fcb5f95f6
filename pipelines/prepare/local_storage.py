"""Files on a local disk, written so that a kill or a loss of power leaves them whole or not there at all.

    OUT/.partial-1f0c…-NAME    written, synced ──► renamed to OUT/NAME ──► the folder synced

A process that is killed leaves its temporary file behind: no listing shows it, and the next run sweeps it away.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from typing import Any

from pipelines.prepare import storage_errors
from tfrecord_io.errors import OutputError

__all__ = ["PARTIAL", "make_folders", "sizes", "sweep", "write"]

PARTIAL = ".partial-"


def make_folders(folder: str, *, inside: str | None = None) -> None:
    """Makes a folder and those above it, so that they outlast a loss of power as the files in them do.

    Raises: OutputError if it is `inside` a folder that is not there; OSError.
    """
    if os.path.isdir(folder):
        return
    if folder == inside:
        raise OutputError(
            f"{folder}: the folder is not there any more: it was deleted or moved while the job was at work",
            remedy="run the same command again; what is not there is made again",
        )
    above = os.path.dirname(folder)
    make_folders(above, inside=inside)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    _sync_folder(above)


def write(path: str, chunks: Iterable[Any], *, inside: str | None = None) -> None:
    """Writes buffers to a file, `inside` a folder that must be there, if it is given.

    Raises: OutputError; whatever `chunks` raises passes.
    """
    explained = storage_errors.explained
    folder = os.path.dirname(path)
    partial = os.path.join(folder, f"{PARTIAL}{uuid.uuid4().hex}-{os.path.basename(path)}")
    with explained(path):
        make_folders(folder, inside=inside)
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


def sizes(folder: str) -> dict[str, int]:
    """Bytes of each file in `folder`."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}


def sweep(folder: str, *, below: bool = False) -> None:
    """Deletes the temporary files in `folder`, and `below` it too."""
    for place, folders, names in os.walk(folder):
        if not below:
            folders.clear()
        for name in names:
            if name.startswith(PARTIAL):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(place, name))


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
