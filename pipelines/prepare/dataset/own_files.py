"""The files that belong to a dataset, its manifest, and its generations: the build and each append.

Jobs change and delete no other files. Task and row numbers continue from one generation to the next.
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
    """Return the manifest of the dataset in `root`, or None if there is none.

    Raises: ManifestError if it is damaged; OutputError if a file of the dataset is a link.
    """
    path = storage.join(root, manifest.FILE_NAME)
    refuse_links(root)
    try:
        return manifest.parse(storage.read_bytes(path), place=path)
    except FileNotFoundError:
        return None


def require_manifest(root: str) -> Manifest:
    """Return the manifest of a finished dataset. Raises: ManifestError if it is missing or damaged."""
    if (committed := read_manifest(root)) is not None:
        return committed
    local = storage.local_path(root)
    if local is not None and not os.path.exists(local):
        cause = "no such folder"
    elif local is not None and os.path.isfile(local):
        cause = "a file, expected the folder of a dataset"
    else:
        cause = f"no {manifest.FILE_NAME}, so there is no finished dataset here"
    raise ManifestError(
        f"{root}: {cause}", remedy="name the --output of a build that has finished, or run the build again"
    )


def refuse_links(root: str) -> None:
    """Check that none of the dataset's own files and folders is a link. Raises: OutputError."""
    storage.refuse_links(root, is_own=_OWN.fullmatch, folders=(WORK_FOLDER, *FOLDERS))


def generations_of(manifest: Manifest) -> tuple[Generation, ...]:
    """Return the generations of a dataset: the build, then each append."""
    if manifest.generations:
        return manifest.generations
    rows = manifest.source.get("splits", {})
    only = Generation(
        fingerprint=manifest.fingerprint,
        tasks={name: len(split.by_task()) for name, split in manifest.splits.items()},
        rows={name: tuple((start, stop) for start, stop in rows.get(name, ())) for name in manifest.splits},
    )
    return (only,)
