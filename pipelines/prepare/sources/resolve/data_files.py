"""The data files of a dataset as plain values: size and version of each, and the splits that they belong to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from pipelines.prepare.sources.resolve.library import Stream

__all__ = ["DIGEST", "DataFile", "SourceListing", "stamp_of", "version_of"]

# Prefix of our own digests.
DIGEST = "xxh3:"
# Keys for an object's version in metadata of file systems; the number that each upload gets comes first.
_VERSION_KEYS = ("generation", "etag", "ETag", "md5Hash", "crc32c")
# Sources of more files are listed in the manifest by one digest.
_MOST_NAMED = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
    """One data file.

    `path` is an absolute local path or an address (`gs://`, `hf://datasets/NAME@COMMIT/...`, `https://`); it may hold
    credentials, so messages show it by `shown.without_access` only. `name` is the file's name in the manifest.
    `version` tells whether the file was changed: generation or etag of a remote one, empty if the address pins it (a
    commit of the hub) or the service reports none. `tag` identifies the content: `xxh3:...`, or the service's own
    digest; empty before `identity.identify`. `stamp` is that of a local file, see `stamp_of`.
    """

    path: str
    name: str
    size: int
    version: str = ""
    tag: str = ""
    stamp: int | None = None

    @property
    def is_pinned(self) -> bool:
        """Return whether the address identifies the content."""
        return self.path.startswith("hf://") and "@" in self.path

    @property
    def entry(self) -> dict[str, Any]:
        """The file in the dataset's identity: `name`, `bytes`, and `xxh3` or the service's `mark`."""
        ours = self.tag.startswith(DIGEST)
        tag = {"xxh3": self.tag.removeprefix(DIGEST)} if ours else {"mark": self.tag}
        return {"name": self.name, "bytes": self.size, **tag}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceListing:
    """The splits of a dataset and the files of each, both in the order in which `datasets` reads them.

    `kind` is the reader of `datasets`, such as `json`. `described` is what the identity says besides. `stream` reads
    the rows. `needs_token`: the files can be read only with the launcher's credentials for the hub.
    """

    kind: str
    splits: Mapping[str, Sequence[DataFile]]
    described: Mapping[str, Any]
    stream: Stream
    needs_token: bool = False

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Each file's entry, with its split."""
        return [{**file.entry, "split": split} for split, some in self.splits.items() for file in some]

    @property
    def identity(self) -> dict[str, Any]:
        """The source in the fingerprint and the manifest, without paths and secrets."""
        if self.described.get("kind") == "hub":  # the revision stands for the files
            return dict(self.described)
        entries: Any = self.entries
        if len(entries) > _MOST_NAMED:  # the manifest is to stay small
            digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
            entries = {"count": len(entries), "bytes": sum(each["bytes"] for each in entries), "sha256": digest}
        return {"kind": self.kind, "files": entries, **self.described}


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of the content from the `info` of a file system; empty if it has none."""
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")


def stamp_of(status: os.stat_result) -> int:
    """Return a digest of a local file's inode, modification and change times, 63 bits, to notice that it was replaced.

    The change time differs even if a file is replaced by one of the same size and modification time.
    """
    return xxhash.xxh3_64_intdigest(f"{status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}".encode()) >> 1
