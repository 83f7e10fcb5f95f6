"""Opening a dataset's folder for random access."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

from tfrecord_io import manifest as manifests
from tfrecord_io import opening
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.random_access import storage as storages
from tfrecord_io.random_access.rows import Rows
from tfrecord_io.random_access.shards import ShardFiles
from tfrecord_io.random_access.storage import Storage

__all__ = ["Data", "open"]


def open(root: str | os.PathLike[str], *, check: bool = True) -> Data:
    """The dataset in folder `root`, local or of any scheme that fsspec knows, with its splits by name.

    The path of a manifest of an earlier generation, such as `out/manifest-0.json`, opens the dataset as it was before
    rows were appended.

    Reads manifest.json and lists the folder once; opens no shard.

    Args:
        check: whether the checksums of all rows that are read are compared.

    Raises:
        ReaderError: there is no manifest, or a shard is missing or of another size than the manifest says.
        ManifestError: the manifest is not valid, or of a newer major version.
    """
    folder, name = manifests.folder_and_name(os.fspath(root))
    storage = storages.at(folder)
    return Data(storage=storage, manifest=opening.open_manifest(storage, name), check=check)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Data(Mapping[str, Rows]):
    """An opened dataset: `data["train"]` are the rows of a split (see `Rows`)."""

    storage: Storage
    manifest: Manifest
    check: bool

    def __repr__(self) -> str:
        return f"Data({self.storage.shown!r}: {', '.join(self)})"

    def __getitem__(self, split: str) -> Rows:
        """The rows of a split. Raises: ReaderError if there is no such split, or it has rows of several lengths."""
        if split not in self.manifest.splits:
            raise ReaderError(f"{self.storage.shown}: no split {split!r}, expected one of {list(self)}")
        if self.manifest.bucket_lengths:
            raise ReaderError(
                f"{self.storage.shown}: rows of several lengths, {list(self.manifest.bucket_lengths)}, expected one: "
                "the rows of a sequence have one shape",
                remedy=f"read one length at a time: data.bucket({self.manifest.bucket_lengths[0]})[{split!r}]",
            )
        return Rows(ShardFiles(self.storage, self.manifest, split, self.check))

    def __contains__(self, split: object) -> bool:
        return split in self.manifest.splits

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.splits)

    def __len__(self) -> int:
        return len(self.manifest.splits)

    def bucket(self, length: int) -> Data:
        """The rows of one length alone, where there are several (`manifest.bucket_lengths`), as a dataset of its own.

        Raises: ManifestError if there is no such length.
        """
        return dataclasses.replace(self, manifest=self.manifest.bucket(length))
