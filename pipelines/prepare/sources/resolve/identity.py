"""The identity of data files: what their content is known by, determined for many files at a time.

    local       XXH3-128 of the whole file, computed as fast as the disk reads
    remote      the service's digest or etag, from the listing or a request for the file; without either, XXH3-128
    hub         the commit in the address

Files are named relative to the dataset, or by file name, so that neither moving a dataset nor a new signature of its
address changes its identity.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import xxhash

from pipelines.prepare import storage
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.resolve import listing
from pipelines.prepare.sources.resolve.data_files import DIGEST, DataFile, stamp_of
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["identify"]

_CHUNK_BYTES = 4 << 20
_THREADS = 16


def identify(files: Sequence[DataFile]) -> list[DataFile]:
    """Return each file with its tag. Raises: SourceError if a file is gone, cannot be read, or changes meanwhile."""
    return list(ordered_map(_identified, files, threads=min(_THREADS, len(files))))


def _identified(file: DataFile) -> DataFile:
    if file.tag or file.is_pinned:
        return file
    try:
        with storage.as_source_error(file.path):
            found = file if file.stamp is not None else listing.describe(file.path, name=file.name)
            return found if found.tag else _digested(found)
    except FileNotFoundError as error:
        raise SourceError(
            f"{without_access(file.path)}: was listed, but is gone",
            remedy="run the same command again; something deletes files",
        ) from error


def _digested(file: DataFile) -> DataFile:
    total = xxhash.xxh3_128()
    fs, inner = storage.file_system(file.path)
    with fs.open(inner, "rb") if file.stamp is None else open(file.path, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            total.update(chunk)
        status = None if file.stamp is None else os.fstat(stream.fileno())
    if status is not None and (status.st_size, stamp_of(status)) != (file.size, file.stamp):
        raise SourceError(f"{file.path}: was changed while it was read", remedy="run the same command again")
    digest = f"{DIGEST}{total.hexdigest()}"
    return dataclasses.replace(file, tag=digest, version=digest)
