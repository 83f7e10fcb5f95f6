"""Data files on disk or behind a URL: which ones DATASET names, of what kind they are, and which split each belongs to.

data/train-00000-of-00002.parquet    kind parquet, split train
data/dev.jsonl.gz                    kind json, split validation
data/_SUCCESS, data/part-7 (empty)   no data
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare import hub
from tfrecord_io.errors import SourceError

__all__ = ["BUILDERS", "by_split", "find", "has_rows", "kind_of", "kind_of_all"]

# What `datasets` calls the reader of each kind. Tab-separated files are a kind of their own: they take an option.
BUILDERS = {"parquet": "parquet", "arrow": "arrow", "json": "json", "csv": "csv", "tsv": "csv", "text": "text"}

_KINDS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
}
_PACKED = (".gz", ".bz2", ".xz", ".zst")
# What `datasets` and the tools around it leave beside the data.
_NOT_DATA = frozenset({"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json"})
# The words by which a file says its split, as separate parts of its name.
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
}


def find(dataset: str) -> list[str]:
    """The data files that a folder, a path, a glob or a URL names, sorted. Raises: SourceError if there is none."""
    if "://" in dataset:
        return hub.expand_url(dataset)
    if os.path.isdir(dataset):
        return _below(dataset)
    # A name that is there is that file, whatever signs are in it.
    paths = [dataset] if os.path.isfile(dataset) else sorted(glob.glob(dataset, recursive=True))
    if not (files := [path for path in paths if os.path.isfile(path)]):
        raise SourceError(f"{dataset}: no such file", remedy="check the path; quote a glob so that the shell leaves it")
    return files


def kind_of(path: str) -> str | None:
    """The kind of file that the name's suffix says, or None."""
    stem, suffix = posixpath.splitext(path.lower())
    return _KINDS.get(posixpath.splitext(stem)[1] if suffix in _PACKED else suffix)


def kind_of_all(paths: Sequence[str], *, dataset: str) -> str:
    """The one kind that all files are of. Raises: SourceError if they are of several, or of none that is known."""
    kinds = {kind_of(path) or "unknown" for path in paths}
    if len(kinds) != 1 or "unknown" in kinds:
        raise SourceError(
            f"{dataset}: files of the kinds {sorted(kinds)}, expected one kind of {sorted(_KINDS)}",
            remedy="name the data files by a glob, such as 'data/*.jsonl'",
        )
    return kinds.pop()


def by_split(paths: Sequence[str]) -> dict[str, list[str]]:
    """The files of each split, which a file's name says as a separate word (`train-00000-of-00002`); else `train`."""
    splits: dict[str, list[str]] = {}
    for path in paths:
        words = re.split(r"[^a-z]+", posixpath.basename(path).partition(".")[0].lower())
        split = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), "train")
        splits.setdefault(split, []).append(path)
    return splits


def has_rows(path: str) -> bool:
    """False for a local file that is certainly empty: tools write such parts, and `datasets` stops at them."""
    if not os.path.isfile(path):
        return True
    if os.path.getsize(path) == 0:
        return False
    if kind_of(path) == "parquet":
        try:
            return int(pq.read_metadata(path).num_rows) > 0
        except (OSError, pa.ArrowException):
            return True  # damaged: opening it says how
    return True


def _below(folder: str) -> list[str]:
    found = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    visible = (path for path in found if not any(part.startswith(".") for part in path[len(folder) :].split(os.sep)))
    if not (files := sorted(path for path in visible if kind_of(path) and posixpath.basename(path) not in _NOT_DATA)):
        raise SourceError(
            f"{folder}: no data file, expected {', '.join(sorted(_KINDS))} or a folder written by save_to_disk",
            remedy="name the data files by a glob, such as 'data/**/*.parquet'",
        )
    return files
