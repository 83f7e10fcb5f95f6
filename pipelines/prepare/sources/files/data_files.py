"""The data files of a dataset as plain values: kind, size and version of each, and the splits that they belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = ["DataFile", "FileKind", "SourceListing", "version_of"]

# Keys for an object's version in metadata of file systems; the number that each upload gets comes first.
_VERSION_KEYS = ("generation", "etag", "ETag", "md5Hash", "crc32c")

FileKind = Literal["parquet", "arrow", "json", "csv", "tsv", "text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
    """One data file.

    `path` is an absolute local path or an address (`gs://`, `hf://datasets/NAME@COMMIT/...`, `https://`); it may hold
    credentials, so messages show it by `shown.without_access` only. `name` is the file's name in the manifest.
    `version` identifies the content: `xxh3:...` of a local file, generation or etag of a remote one, empty if the
    address pins it (a commit of the hub). `stamp` is the modification time of a local file, in nanoseconds.
    """

    path: str
    name: str
    kind: FileKind
    size: int
    version: str
    stamp: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceListing:
    """The splits of a dataset and the files of each, both in the order in which `datasets` reads them.

    `identity` describes the source in the fingerprint and the manifest, without paths and secrets; `entries` describe
    each file as it does: `split`, `name`, `bytes`, and `xxh3` or the service's `mark`. `features` are the
    columns as a dataset card or `dataset_info.json` describes them (JSON, as `datasets` writes it), None without such a
    description; `own_features` are those of splits that differ. `needs_token`: the files can be read only with the
    launcher's credentials for the hub.
    """

    kind: Literal["files", "hub", "save_to_disk"]
    splits: Mapping[str, Sequence[DataFile]]
    identity: Mapping[str, Any]
    features: Any = None
    own_features: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs_token: bool = False
    entries: Sequence[Mapping[str, Any]] = ()

    def features_of(self, split: str) -> Any:
        """Return the described columns of a split, or None if they are not described."""
        return self.own_features.get(split, self.features)


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of the content from the `info` of a file system; empty if it has none."""
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")
