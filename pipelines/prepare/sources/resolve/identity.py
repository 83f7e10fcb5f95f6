"""The identity of data files: a version of their content, determined for many files at a time.

    local       XXH3-128 of the whole file, computed as fast as the disk reads
    remote      the service's digest or etag, from the listing or a request for the file; without either, XXH3-128
    hub         the commit in the address

Files are named relative to the dataset, or by file name, so that neither moving a dataset nor a new signature of its
address changes its identity.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import xxhash

from pipelines.prepare import storage
from pipelines.prepare.sources.resolve import listing
from pipelines.prepare.sources.resolve.data_files import DataFile, stamp_of
from pipelines.prepare.sources.resolve.listing import ListedFile
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["identify"]

# Prefix of our own digests.
_DIGEST = "xxh3:"
_CHUNK_BYTES = 4 << 20
# Requests at a time, and the limit of each: most storage libraries set none.
_REQUESTS = 32
_ANSWER_SECONDS = 300.0
# More threads read a disk no faster.
_READERS = 8


def identify(files: Sequence[ListedFile]) -> list[tuple[DataFile, dict[str, Any]]]:
    """Return each file with its version, and its entry in the dataset's identity.

    Raises: SourceError if a file is gone, cannot be read, changes meanwhile, or its service does not answer.
    """
    local = [each for each in files if "://" not in each.path]
    untagged = [each for each in files if "://" in each.path and not each.pinned and not each.tag]
    tagged = [
        *_in_parallel(_read, local, threads=_READERS),
        *_in_parallel(_request, untagged, threads=_REQUESTS, seconds=_ANSWER_SECONDS),
    ]
    by_path = {each.path: each for each in tagged}
    return [_identified(by_path.get(each.path, each)) for each in files]


def _identified(file: ListedFile) -> tuple[DataFile, dict[str, Any]]:
    data = DataFile(
        path=file.path,
        name=file.name,
        size=file.size,
        version="" if file.pinned else file.version,
        stamp=file.stamp,
    )
    is_ours = file.tag.startswith(_DIGEST)
    tag = {"xxh3": file.tag.removeprefix(_DIGEST)} if is_ours else {"mark": file.tag}
    return data, {"name": file.name, "bytes": file.size, **tag}


def _in_parallel(
    function: Callable[[ListedFile], ListedFile],
    files: Sequence[ListedFile],
    *,
    threads: int,
    seconds: float | None = None,
) -> list[ListedFile]:
    """Call `function` for each file, and wait at most so many seconds for each result."""
    pool = concurrent.futures.ThreadPoolExecutor(max(1, min(threads, len(files))))
    try:
        results = [(file, pool.submit(function, file)) for file in files]
        return [_wait(result, file, seconds=seconds) for file, result in results]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _wait(result: concurrent.futures.Future[ListedFile], file: ListedFile, *, seconds: float | None) -> ListedFile:
    where = without_access(file.path)
    try:
        return result.result(timeout=seconds)
    except FileNotFoundError as error:
        raise SourceError(
            f"{where}: was listed, but is gone", remedy="run the same command again; something deletes files"
        ) from error
    except concurrent.futures.TimeoutError as error:
        raise SourceError(
            f"{where}: no answer within {seconds:.0f} s", remedy="check the network, and run the command again"
        ) from error


def _read(file: ListedFile) -> ListedFile:
    """Return a local file with its digest."""
    with storage.as_source_error(file.path), open(file.path, "rb", buffering=0) as stream:
        digest = _xxh3(stream)
        status = os.fstat(stream.fileno())
    if (status.st_size, stamp_of(status)) != (file.size, file.stamp):
        raise SourceError(f"{file.path}: was changed while it was read", remedy="run the same command again")
    return dataclasses.replace(file, tag=digest, version=digest)


def _request(file: ListedFile) -> ListedFile:
    """Return a remote file with its service's metadata, or else with its digest."""
    with storage.as_source_error(file.path):
        described = listing.describe(file.path, name=file.name)
        if described.tag:
            return described
        fs, inner = storage.file_system(file.path)
        with fs.open(inner, "rb") as stream:
            digest = _xxh3(stream)
    return dataclasses.replace(described, tag=digest, version=digest)


def _xxh3(stream: BinaryIO) -> str:
    total = xxhash.xxh3_128()
    while chunk := stream.read(_CHUNK_BYTES):
        total.update(chunk)
    return f"{_DIGEST}{total.hexdigest()}"
