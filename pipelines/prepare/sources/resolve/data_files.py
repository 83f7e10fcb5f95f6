"""The data files of a dataset as plain values: size and version of each, and the splits that they belong to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from pipelines.prepare.sources.resolve.library import Stream

__all__ = ["DataFile", "SourceListing", "stamp_of", "version_of"]

# Keys for an object's version in metadata of file systems; the number that each upload gets comes first.
_VERSION_KEYS = ("generation", "etag", "ETag", "md5Hash", "crc32c")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
    """One data file.

    `path` is an absolute local path or an address (`gs://`, `hf://datasets/NAME@COMMIT/...`, `https://`); it may hold
    credentials, so messages show it by `shown.without_access` only. `name` is the file's name in the manifest.
    `version` identifies the content: `xxh3:...` of a local file, generation or etag of a remote one, empty if the
    address pins it (a commit of the hub). `stamp` is that of a local file, see `stamp_of`.
    """

    path: str
    name: str
    size: int
    version: str
    stamp: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceListing:
    """The splits of a dataset and the files of each, both in the order in which `datasets` reads them.

    `kind` is the reader of `datasets`, such as `json`. `identity` describes the source in the fingerprint and the
    manifest, without paths and secrets; `entries` describe each file as it does: `split`, `name`, `bytes`, and `xxh3`
    or the service's `mark`. `stream` reads the rows. `needs_token`: the files can be read only with the launcher's
    credentials for the hub.
    """

    kind: str
    splits: Mapping[str, Sequence[DataFile]]
    identity: Mapping[str, Any]
    stream: Stream
    needs_token: bool = False
    entries: Sequence[Mapping[str, Any]] = ()


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of the content from the `info` of a file system; empty if it has none."""
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")


def stamp_of(status: os.stat_result) -> int:
    """Return a digest of a local file's inode, modification and change times, 63 bits, to notice that it was replaced.

    The change time differs even if a file is replaced by one of the same size and modification time.
    """
    return xxhash.xxh3_64_intdigest(f"{status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}".encode()) >> 1
