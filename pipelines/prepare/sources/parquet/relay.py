"""Copying Parquet files that workers cannot read to a folder where they can, through the launcher's memory.

/data/a.parquet             on this machine's disk        ──► FOLDER/source/5d41402abc4b2a76-a.parquet
https://me:secret@host/...  credentials in the address
hf://datasets/ME/private    needs a token
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipelines.prepare import storage
from pipelines.prepare.sources.parquet import access
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.storage.storage_errors import bucket_of
from tfrecord_io.shown import is_web, without_access

__all__ = ["FOLDER", "readable_by_workers", "relay"]

FOLDER = "source"

_THREADS = 4
_CHUNK_BYTES = 8 << 20
_DIGEST_LETTERS = 16
_OTHER_LETTERS = re.compile(r"[^\w.\-]")


def readable_by_workers(file: DataFile, *, needs_token: bool) -> bool:
    """Return whether workers elsewhere can read the file: it is on gs://, or on the hub or the web for everybody."""
    if bucket_of(file.path) is not None:
        return True
    if file.path.startswith("hf://"):
        return not needs_token
    return is_web(file.path) and without_access(file.path) == file.path


def relay(
    files: Sequence[DataFile], *, folder: str, addresses: Mapping[str, str], inside: str | None = None
) -> dict[str, DataFile]:
    """Copy files to `FOLDER/source`, except those already there; return the copies by the files' paths.

    Raises: SourceError if a file cannot be read or has changed; OutputError.
    """
    target = storage.join(folder, FOLDER)
    copies = {file.path: _copy(file, number, target) for number, file in enumerate(files)}
    sizes = storage.sizes(target)
    missing = [file for file in files if sizes.get(posixpath.basename(copies[file.path].path)) != file.size]

    stop = threading.Event()

    def send(file: DataFile) -> None:
        storage.write_atomic(copies[file.path].path, _chunks(file, stop, addresses=addresses), inside=inside)

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            list(pool.map(send, missing))
        finally:
            stop.set()  # after an error or an interrupt, the other files end at their next chunk
    return copies


def _copy(file: DataFile, number: int, folder: str) -> DataFile:
    """Return the copy of a file, whose name has a digest of the version; signing the address anew doesn't change it."""
    shown = without_access(file.path)
    identity = (number, shown, file.name, file.size, file.version, file.stamp)
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:_DIGEST_LETTERS]
    name = _OTHER_LETTERS.sub("_", posixpath.basename(shown))[-100:]
    return DataFile(path=storage.join(folder, f"{digest}-{name}"), name=file.name, size=file.size, version="")


def _chunks(file: DataFile, stop: threading.Event, *, addresses: Mapping[str, str]) -> Iterator[bytes]:
    with access.opened(file, addresses) as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            if stop.is_set():
                raise RuntimeError("another file could not be sent, or the launcher was interrupted")
            yield chunk
