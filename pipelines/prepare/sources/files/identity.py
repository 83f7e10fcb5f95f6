"""What the content of data files is known by, asked for many at a time.

    local       XXH3-128 of the whole file, as fast as the disk
    remote      what the service says of it in the listing, or else when it is asked; if nothing, the same digest
    hub         the commit that the address names

Names are relative to the dataset, or plain file names: moving a dataset does not change what it is, nor does signing
its address anew.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, cast

import xxhash

from pipelines.prepare import storage
from pipelines.prepare.options import paths
from pipelines.prepare.sources.files import folder_listing
from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from pipelines.prepare.sources.files.folder_listing import Found
from pipelines.prepare.storage import object_storage
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["known"]

Result = TypeVar("Result")

# How a digest of our own is marked.
_DIGEST = "xxh3:"
_CHUNK_BYTES = 4 << 20
# Requests under way at once, and how long one may go without an answer: most libraries for storage set no limit.
_ASKERS = 32
_ANSWER_SECONDS = 300.0
# More read a disk no faster.
_READERS = 8


def known(files: Sequence[Found], *, kind: FileKind | None = None) -> list[tuple[DataFile, dict[str, Any]]]:
    """Each file with its version, and what the identity of a dataset says of it; all are of this `kind`, or of the one
    that their names say.

    Raises: SourceError if a file is gone, may not be read, changes meanwhile, or its service does not answer.
    """
    local = [each for each in files if "://" not in each.path]
    silent = [each for each in files if "://" in each.path and not each.pinned and not each.mark]
    said = {
        **dict(zip((each.path for each in local), _together(_read, local, at_once=_READERS), strict=True)),
        **dict(
            zip(
                (each.path for each in silent),
                _together(_asked, silent, at_once=_ASKERS, seconds=_ANSWER_SECONDS),
                strict=True,
            )
        ),
    }
    return [_known(said.get(each.path, each), kind=kind) for each in files]


def _known(found: Found, *, kind: FileKind | None) -> tuple[DataFile, dict[str, Any]]:
    data = DataFile(
        path=found.path,
        name=found.name,
        kind=kind or cast("FileKind", paths.kind_of(found.path)),
        size=found.size,
        version="" if found.pinned else found.version,
        stamp=found.stamp,
    )
    digest = found.mark.startswith(_DIGEST)
    mark = {"xxh3": found.mark.removeprefix(_DIGEST)} if digest else {"mark": found.mark}
    return data, {"name": found.name, "bytes": found.size, **mark}


def _together(
    each: Callable[[Found], Found], files: Sequence[Found], *, at_once: int, seconds: float | None = None
) -> list[Found]:
    pool = concurrent.futures.ThreadPoolExecutor(max(1, min(at_once, len(files))))
    try:
        asked = [(found, pool.submit(each, found)) for found in files]
        return [_answer(found, answer, seconds=seconds) for found, answer in asked]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(found: Found, asked: concurrent.futures.Future[Found], *, seconds: float | None) -> Found:
    place = without_access(found.path)
    try:
        return asked.result(timeout=seconds)
    except FileNotFoundError as error:
        raise SourceError(
            f"{place}: no such file, though it was listed", remedy="run the same command again; somebody deletes files"
        ) from error
    except concurrent.futures.TimeoutError as error:
        raise SourceError(
            f"{place}: no answer within {seconds:.0f} s", remedy="check the network, and run the command again"
        ) from error


def _read(found: Found) -> Found:
    """A local file with its digest."""
    with storage.source_explained(found.path), open(found.path, "rb", buffering=0) as stream:
        digest = _xxh3(stream)
        status = os.fstat(stream.fileno())
    if (status.st_size, status.st_mtime_ns) != (found.size, found.stamp):
        raise SourceError(f"{found.path}: was changed while it was read", remedy="run the same command again")
    return _with(found, mark=digest, version=digest)


def _asked(found: Found) -> Found:
    """A remote file with what its service says of it, or else its digest."""
    with storage.source_explained(found.path):
        fs, inner = storage.file_system(found.path)
        info: Mapping[str, Any] = persist(lambda: object_storage.ask(fs, inner, path=found.path), path=found.path)
        told = folder_listing.remote_file(found.path, info, name=found.name)
        if told.mark:
            return told
        with fs.open(inner, "rb") as stream:
            digest = _xxh3(stream)
    return _with(told, mark=digest, version=digest)


def _with(found: Found, *, mark: str, version: str) -> Found:
    return Found(path=found.path, name=found.name, size=found.size, stamp=found.stamp, mark=mark, version=version)


def _xxh3(stream: BinaryIO) -> str:
    total = xxhash.xxh3_128()
    while chunk := stream.read(_CHUNK_BYTES):
        total.update(chunk)
    return f"{_DIGEST}{total.hexdigest()}"
