"""Data files on disk or behind a URL: which ones DATASET names, of what kind they are, and which split each belongs to.

data/train-00000-of-00002.parquet    kind parquet, split train
data/dev.jsonl.gz                    kind json, split validation
data/_SUCCESS, data/part-7 (empty)   no data
data/part-8.csv (only a header)      no data
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import itertools
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare import hub, packed_files
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = [
    "BUILDERS",
    "SEPARATORS",
    "by_split",
    "find",
    "has_rows",
    "header",
    "kind_of",
    "kind_of_all",
    "literal",
    "options",
]

# What `datasets` calls the reader of each kind. Tab-separated files are a kind of their own: they take an option.
BUILDERS = {"parquet": "parquet", "arrow": "arrow", "json": "json", "csv": "csv", "tsv": "csv", "text": "text"}
# Of the kinds that have a header line.
SEPARATORS = {"csv": ",", "tsv": "\t"}

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
# What `datasets` and the tools around it leave beside the data.
_NOT_DATA = frozenset({"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json"})
# Enough to tell a file that has rows from one that has none.
_HEAD_LETTERS = 1 << 16
# By default Python's CSV reader takes fields up to 128 KB.
_MOST_LETTERS = 1 << 30
# What a file says that cannot be unpacked, or is no CSV: opening it for its rows says it better.
_UNREADABLE = (*packed_files.UNREADABLE, ValueError, csv.Error)
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
    """The kind of file that the name's suffix says, or None. A web address may have a query behind the name."""
    stem, suffix = posixpath.splitext(without_access(path).lower())
    return _KINDS.get(posixpath.splitext(stem)[1] if suffix in packed_files.SUFFIXES else suffix)


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
        words = re.split(r"[^a-z]+", posixpath.basename(without_access(path)).partition(".")[0].lower())
        split = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), "train")
        splits.setdefault(split, []).append(path)
    return splits


def has_rows(path: str) -> bool:
    """False for a local file that is certainly empty: tools write such parts, and `datasets` stops at them."""
    if not os.path.isfile(path):
        return True
    if os.path.getsize(path) == 0:
        return False
    kind = kind_of(path)
    try:
        if kind == "parquet":
            return int(pq.read_metadata(path).num_rows) > 0
        return kind == "arrow" or kind is None or _says_rows(path, kind)
    except (pa.ArrowException, *_UNREADABLE):
        return True  # damaged: opening it says how


def header(path: str, *, separator: str) -> tuple[list[str], int]:
    """The names in the header line of a CSV file, and the number of fields in its first row; none where they cannot be
    read.
    """
    try:
        with _open_text(path) as stream, _long_fields():
            records = _records(stream, separator=separator)
            return next(records, []), len(next(records, []))
    except _UNREADABLE:
        return [], 0


def options(kind: str) -> dict[str, Any]:
    """What the reader of a kind is to be told."""
    if kind == "text":
        return {"encoding": "utf-8-sig"}  # a byte order mark is no text
    return {"sep": SEPARATORS[kind]} if kind == "tsv" else {}


def literal(path: str) -> str:
    """`path` for `datasets`, which takes each path for a glob."""
    return path if "://" in path else glob.escape(path)


def _says_rows(path: str, kind: str) -> bool:
    with _open_text(path) as stream:
        head = stream.read(_HEAD_LETTERS)
    if len(head) == _HEAD_LETTERS:
        return True
    if kind == "json":
        return "".join(head.split()) not in ("", "[]")
    if kind in SEPARATORS:
        records = _records(io.StringIO(head, newline=""), separator=SEPARATORS[kind])
        return len(list(itertools.islice(records, 2))) == 2
    return head != ""


def _records(stream: TextIO, *, separator: str) -> Iterator[list[str]]:
    """The lines of a CSV file that are not blank, as fields."""
    return (fields for fields in csv.reader(stream, delimiter=separator) if "".join(fields).strip() or len(fields) > 1)


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    limit = csv.field_size_limit(_MOST_LETTERS)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _open_text(path: str) -> contextlib.AbstractContextManager[TextIO]:
    # Letters that are not UTF-8 are somebody else's to complain of.
    opened = fsspec.open(path, "rt", compression="infer", encoding="utf-8-sig", errors="replace", newline="")
    return cast("contextlib.AbstractContextManager[TextIO]", opened)


def _below(folder: str) -> list[str]:
    found = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    visible = (path for path in found if not any(part.startswith(".") for part in path[len(folder) :].split(os.sep)))
    if not (files := sorted(path for path in visible if kind_of(path) and posixpath.basename(path) not in _NOT_DATA)):
        raise SourceError(
            f"{folder}: no data file, expected {', '.join(sorted(_KINDS))} or a folder written by save_to_disk",
            remedy="name the data files by a glob, such as 'data/**/*.parquet'",
        )
    return files
