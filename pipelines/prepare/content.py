"""What content a file or folder has, as digests: the part of the fingerprint that no name or time stamp can stand
for.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from pipelines.prepare import storage
from pipelines.prepare.persistence import persist
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["bytes_digest", "files_digest"]

_CHUNK_BYTES = 4 << 20
# What storage services call the version of a file's content.
_MARKS = ("md5Hash", "crc32c", "etag", "ETag", "generation")
# Requests under way at once, and how long one may go without an answer: most libraries for storage set no limit.
_ASKERS = 32
_ANSWER_SECONDS = 300.0


def files_digest(paths: Sequence[str], *, root: str | None = None) -> list[dict[str, Any]]:
    """Name, size and content of each file. Local files are read whole (XXH3-128, as fast as the disk); of others the
    storage service's own version mark is taken, where it has one.

    Names are relative to `root`, or plain file names: moving a dataset does not change what it is, nor does signing its
    address anew.

    Raises: SourceError if a file is gone, may not be read, or its service does not answer.
    """
    remote = [path for path in paths if not os.path.exists(path)]
    said = dict(zip(remote, _ask(remote), strict=True))
    return [{"name": _name(path, root=root), **(said.get(path) or _local(path))} for path in paths]


def bytes_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents, in the names' order."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


def _name(path: str, *, root: str | None) -> str:
    return os.path.relpath(path, root) if root else posixpath.basename(without_access(path))


def _local(path: str) -> dict[str, Any]:
    with storage.source_explained(path), open(path, "rb", buffering=0) as stream:
        return {"bytes": os.path.getsize(path), "xxh3": _xxh3(stream)}


def _ask(paths: Sequence[str]) -> list[dict[str, Any]]:
    """What the services say of files, many at a time."""
    pool = concurrent.futures.ThreadPoolExecutor(_ASKERS)
    try:
        asked = [(path, pool.submit(_remote, path)) for path in paths]
        return [_answer(path, answer) for path, answer in asked]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(path: str, asked: concurrent.futures.Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return asked.result(timeout=_ANSWER_SECONDS)
    except FileNotFoundError as error:
        raise SourceError(
            f"{path}: no such file, though it was listed", remedy="run the same command again; somebody deletes files"
        ) from error
    except concurrent.futures.TimeoutError as error:
        raise SourceError(
            f"{path}: no answer within {_ANSWER_SECONDS:.0f} s", remedy="check the network, and run the command again"
        ) from error


def _remote(path: str) -> dict[str, Any]:
    with storage.source_explained(path):
        fs, inner = storage.file_system(path)
        info = persist(lambda: fs.info(inner), path=path)
        if mark := next((str(info[key]) for key in _MARKS if info.get(key)), ""):
            return {"bytes": info.get("size"), "mark": mark}
        with fs.open(inner, "rb") as stream:
            return {"bytes": info.get("size"), "xxh3": _xxh3(stream)}


def _xxh3(stream: Any) -> str:
    total = xxhash.xxh3_128()
    while chunk := stream.read(_CHUNK_BYTES):
        total.update(chunk)
    return str(total.hexdigest())
