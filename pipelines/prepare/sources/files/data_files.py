"""The data files that DATASET names: what each is, and what its content is known by.

Only plain values are in here, and nothing needs `datasets`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = ["DataFile", "FileKind", "Listing", "version_of"]

# What services call it: best the number that each upload gets anew.
_VERSIONS = ("generation", "etag", "ETag", "md5Hash", "crc32c")

FileKind = Literal["parquet", "arrow", "json", "csv", "tsv", "text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
    """One data file.

    `path` is an absolute local path or an address (`gs://`, `hf://datasets/NAME@COMMIT/...`, `https://`), which may
    hold credentials and is shown by `shown.without_access` only. `name` is what the manifest calls it. `version` is
    what its content is known by: `xxh3:...` of a local file, generation or etag of a remote one, and empty where
    the address pins it (a commit of the hub). `stamp` is the time of the last change of a local file, in nanoseconds.
    """

    path: str
    name: str
    kind: FileKind
    size: int
    version: str
    stamp: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """The splits of a dataset and the files of each, both in the order in which `datasets` reads them.

    `identity` is what the fingerprint and the manifest say of the source, without paths and secrets. `features` are the
    columns as a dataset card or `dataset_info.json` describes them (JSON, as `datasets` writes it), None where none
    does, and `own_features` those of splits that have others. `needs_token` is true if the files can be read only with
    the launcher's credentials for the hub.
    """

    kind: Literal["files", "hub", "save_to_disk"]
    splits: Mapping[str, Sequence[DataFile]]
    identity: Mapping[str, Any]
    features: Any = None
    own_features: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs_token: bool = False

    def features_of(self, split: str) -> Any:
        """The columns of a split as they are described, None if nothing does."""
        return self.own_features.get(split, self.features)


def version_of(info: Mapping[str, Any]) -> str:
    """What `info` of a file system says that the content is known by; empty if it doesn't."""
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
