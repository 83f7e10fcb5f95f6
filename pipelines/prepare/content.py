"""What content a file or folder has, as digests: the part of the fingerprint that no name or time stamp can stand
for.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import xxhash

from tfrecord_io.shown import without_access

__all__ = ["bytes_digest", "files_digest"]

_CHUNK_BYTES = 4 << 20
# What storage services call the version of a file's content.
_MARKS = ("md5Hash", "crc32c", "etag", "ETag", "generation")


def files_digest(paths: Sequence[str], *, root: str | None = None) -> list[dict[str, Any]]:
    """Name, size and content of each file. Local files are read whole (XXH3-128, as fast as the disk); of others the
    storage service's own version mark is taken, where it has one.

    Names are relative to `root`, or plain file names: moving a dataset does not change what it is, nor does signing its
    address anew.
    """
    return [_entry(path, root=root) for path in paths]


def bytes_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents, in the names' order."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


def _entry(path: str, *, root: str | None) -> dict[str, Any]:
    name = os.path.relpath(path, root) if root else posixpath.basename(without_access(path))
    if os.path.exists(path):
        with open(path, "rb", buffering=0) as stream:
            return {"name": name, "bytes": os.path.getsize(path), "xxh3": _xxh3(stream)}
    fs, inner = fsspec.core.url_to_fs(path)
    info = fs.info(inner)
    if mark := next((str(info[key]) for key in _MARKS if info.get(key)), ""):
        return {"name": name, "bytes": info.get("size"), "mark": mark}
    with fs.open(inner, "rb") as stream:
        return {"name": name, "bytes": info.get("size"), "xxh3": _xxh3(stream)}


def _xxh3(stream: Any) -> str:
    total = xxhash.xxh3_128()
    while chunk := stream.read(_CHUNK_BYTES):
        total.update(chunk)
    return str(total.hexdigest())
