"""Opening a dataset's folder, whoever reads its files: the manifest, and whether all shards are there as a whole."""

import os
from collections.abc import Collection, Mapping
from typing import Protocol

from tfrecord_io import manifest as manifests
from tfrecord_io.errors import ManifestError, ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.shown import without_secrets


class Folder(Protocol):
    """A folder's files, `shown` and with a `path` as messages name them. Methods raise OSError."""

    @property
    def shown(self) -> str: ...

    def path(self, name: str) -> str: ...

    def read(self, name: str, *, most: int) -> bytes:
        """Read a whole file, or of a larger one `most` bytes."""

    def sizes(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the bytes of each file in the folder that is among `names`."""


def open_manifest(folder: Folder, name: str) -> Manifest:
    """Read the manifest `name`, and check at once that no shard is missing or cut off, not after hours of training.

    Raises:
        ReaderError: there is no manifest, or a shard is missing or of another size than the manifest says.
        ManifestError: the manifest is not valid, or of a newer major version.
    """
    manifest = manifests.parse(_read(folder, name), place=folder.path(name))
    split_of = {shard.name: split for split, each in manifest.splits.items() for shard in each.shards}
    try:
        sizes = folder.sizes(split_of)
    except OSError as error:
        raise _unreadable(folder.shown, error) from error
    expected = {shard.name: shard.num_bytes for split in manifest.splits.values() for shard in split.shards}
    if wrong := sorted(shard for shard, num_bytes in expected.items() if sizes.get(shard) != num_bytes):
        first, more = wrong[0], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        found = f"has {sizes[first]} bytes" if first in sizes else "is missing"
        raise ReaderError(
            f"{folder.shown}: shard {first} of split {split_of[first]!r} {found}{more}, "
            f"expected {expected[first]} bytes by the manifest",
            remedy=f"run `prep-tfrecords verify {folder.shown} --repair`, which makes it again, or copy the folder "
            "again as a whole",
        )
    return manifest


def _read(folder: Folder, name: str) -> bytes:
    path, output = folder.path(name), "name the folder that `prep-tfrecords build --output` wrote"
    try:
        content = folder.read(name, most=manifests.MOST_BYTES + 1)
    except FileNotFoundError as error:
        # Object stores have no folders that could be there or not.
        no_folder = "://" not in folder.shown and not os.path.isdir(folder.shown)
        raise ReaderError(
            f"{folder.shown}: there is no such folder, expected that of a finished dataset"
            if no_folder
            else f"{path}: there is no manifest, expected the folder of a finished dataset",
            remedy=f"{output}; an interrupted build has no manifest yet: run the same command again and it continues",
        ) from error
    except NotADirectoryError as error:
        raise ReaderError(
            f"{folder.shown}: this is no folder, expected that of a finished dataset",
            remedy=f"{output}, and no file in it",
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > manifests.MOST_BYTES:
        raise ManifestError(
            f"{path}: more than {manifests.MOST_BYTES:,} bytes, expected at most so many of a manifest",
            remedy="copy it again from where the dataset was made",
        )
    return content


def _unreadable(path: str, error: OSError) -> ReaderError:
    return ReaderError(
        f"{path}: cannot be read ({type(error).__name__}: {without_secrets(str(error))})",
        remedy="check the path, and that this machine may read it",
    )
