"""The files and folders of a dataset that this package owns, and its manifest. Nothing else is changed or deleted."""

from __future__ import annotations

import os
import re

from pipelines.prepare import storage
from tfrecord_io import manifest
from tfrecord_io.errors import ManifestError
from tfrecord_io.manifest import Manifest

__all__ = [
    "FOLDERS",
    "OWN_FILES",
    "WORK_FOLDER",
    "former_manifests",
    "read_former",
    "read_manifest",
    "refuse_links",
    "require_manifest",
]

WORK_FOLDER = ".prep"
FOLDERS = ("tokenizer", "rejected", "index")
# What a dataset's folder holds besides its shards.
OWN_FILES = (manifest.FILE_NAME, "dataset_info.json", "features.json", "label.labels.txt", "tags.labels.txt", *FOLDERS)
# The manifests of earlier generations.
_FORMER = re.compile(r"manifest-\d+\.json")


def read_manifest(root: str, *, name: str = manifest.FILE_NAME) -> Manifest | None:
    """Return the manifest of the dataset in `root`, or None if there is none. `name`: that of an earlier generation.

    Raises: ManifestError if it is damaged.
    """
    path = storage.join(root, name)
    refuse_links(root)
    try:
        return manifest.parse(storage.read_bytes(path), place=path)
    except FileNotFoundError:
        return None


def read_former(root: str, current: Manifest, fingerprint: str) -> Manifest | None:
    """Return the dataset in `root` as it was at an earlier generation; None if no generation has this fingerprint, or
    its manifest is not there any more.

    Raises: ManifestError if that manifest is damaged.
    """
    known = [each.fingerprint for each in current.generations[:-1]]
    if fingerprint not in known:
        return None
    return read_manifest(root, name=manifest.former_name(known.index(fingerprint)))


def former_manifests(root: str) -> list[str]:
    """Return the names of the manifests of earlier generations in `root`."""
    return [name for name in storage.list_names(root) if _FORMER.fullmatch(name)]


def require_manifest(root: str) -> Manifest:
    """Return the manifest of the finished dataset in `root`. Raises: ManifestError if it is missing or damaged."""
    found = read_manifest(root)
    if found is None:
        raise ManifestError(
            f"{root}: {_instead_of_a_dataset(root)}",
            remedy="name the --output of a build that has finished, or run the build again",
        )
    return found


def _instead_of_a_dataset(root: str) -> str:
    local = storage.local_path(root)
    if local is not None and not os.path.exists(local):
        return "no such folder"
    if local is not None and os.path.isfile(local):
        return "a file, expected the folder of a dataset"
    return f"no {manifest.FILE_NAME}, so there is no finished dataset here"


def refuse_links(root: str) -> None:
    """Raise OutputError if one of our own files or folders is a link, since writing it would change something else."""
    storage.refuse_links(root, is_own=_is_own, folders=(WORK_FOLDER, *FOLDERS))


def _is_own(name: str) -> bool:
    return (
        name in (WORK_FOLDER, *OWN_FILES)
        or name.endswith((".tfrecord", ".tfrecord.gz"))
        or _FORMER.fullmatch(name) is not None
    )
