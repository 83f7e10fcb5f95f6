"""The files that belong to a dataset, its manifest, and its generations: the build and each append.

Builds change and delete no other files. Task and row numbers continue from one generation to the next.
"""

import os
import re

from pipelines.prepare import storage
from pipelines.prepare.dataset import tfds
from pipelines.prepare.storage.local_storage import WORK_FOLDER as WORK_FOLDER
from tfrecord_io import manifest
from tfrecord_io.errors import ManifestError
from tfrecord_io.manifest import Generation, Manifest

FOLDERS = ("tokenizer", "rejected", "index")
OWN_FILES = (manifest.FILE_NAME, *tfds.NAMES, *FOLDERS)
FORMER = re.compile(r"manifest-\d+\.json")
_OWN = re.compile("|".join((*map(re.escape, (WORK_FOLDER, *OWN_FILES)), FORMER.pattern, r"(?s:.*)\.tfrecord(\.gz)?")))


def read_manifest(root: str) -> Manifest | None:
    """Read the manifest of the dataset in `root`; return None if there is none.

    Raises: ManifestError if it is damaged; OutputError if a file of the dataset is a symbolic link.
    """
    path = storage.join(root, manifest.FILE_NAME)
    refuse_links(root)
    try:
        return manifest.parse(storage.read_bytes(path), place=path)
    except FileNotFoundError:
        return None


def require_manifest(root: str) -> Manifest:
    """Read the manifest of the dataset in `root`. Raises: ManifestError if it is missing or damaged."""
    if (committed := read_manifest(root)) is not None:
        return committed
    local, cause = storage.local_path(root), f"no {manifest.FILE_NAME}, so there is no finished dataset here"
    if local is not None and not os.path.isdir(local):
        cause = "a file, expected the folder of a dataset" if os.path.exists(local) else "no such folder"
    raise ManifestError(f"{root}: {cause}", remedy="name the --output of a finished build, or run the build again")


def refuse_links(root: str) -> None:
    """Check that no file or folder of a dataset in `root` is a symbolic link. Raises: OutputError."""
    storage.refuse_links(root, is_own=_OWN.fullmatch, folders=(WORK_FOLDER, *FOLDERS))


def generations_of(manifest: Manifest) -> tuple[Generation, ...]:
    """Return the generations of a dataset: the build, then each append."""
    rows = manifest.source.get("splits", {})
    build = Generation(
        fingerprint=manifest.fingerprint,
        tasks={name: len(split.by_task()) for name, split in manifest.splits.items()},
        rows={name: tuple((start, stop) for start, stop in rows.get(name, ())) for name in manifest.splits},
    )
    return manifest.generations or (build,)
