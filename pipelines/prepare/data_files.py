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

from pipelines.prepare import hub, packed_files, paths, split_rules
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = [
    "BUILDERS",
    "SEPARATORS",
    "by_split",
    "find",
    "has_rows",
    "header",
    "kind_of_all",
    "literal",
    "options",
]

# What `datasets` calls the reader of each kind. Tab-separated files are a kind of their own: they take an option.
BUILDERS = {"parquet": "parquet", "arrow": "arrow", "json": "json", "csv": "csv", "tsv": "csv", "text": "text"}
# Of the kinds that have a header line.
SEPARATORS = {"csv": ",", "tsv": "\t"}

# What `datasets` and the tools around it leave beside the data.
_NOT_DATA = frozenset(
    {"config.json", "dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json"}
)
# What a build leaves in its output from its first moment on.
_WORK_FOLDER = ".prep"
# Where `datasets` looks for which files belong to which split.
_CARDS = ("README.md", ".huggingface.yaml")
_REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls"), "save the sheet as CSV, or `pandas.read_excel(…).to_parquet(…)`"),
    **dict.fromkeys((".zip", ".tar", ".tgz"), "unpack it, and name the files"),
    ".tfrecord": "this is what a build makes; name the files that it is to be made from",
}
# Enough to tell a file that has rows from one that has none.
_HEAD_LETTERS = 1 << 16
# By default Python's CSV reader takes fields up to 128 KB.
_MOST_LETTERS = 1 << 30
# What a file says that cannot be unpacked, or is no CSV: opening it for its rows says it better.
_UNREADABLE = (*packed_files.UNREADABLE, ValueError, csv.Error)


def find(dataset: str, *more: str) -> list[str]:
    """The data files that folders, paths, globs and URLs name, sorted, each once.

    Raises: SourceError if there is none.
    """
    found: dict[str, str] = {}
    for path in (path for name in (dataset, *more) for path in _find(name)):
        found.setdefault(path if "://" in path else os.path.abspath(path), path)
    return sorted(found.values())


def kind_of_all(files: Sequence[str], *, dataset: str) -> str:
    """The one kind that all files are of. Raises: SourceError if they are of several, or of none that is known."""
    kinds: dict[str, list[str]] = {}
    for path in files:
        kind = paths.kind_of(path)
        if kind is None:
            raise _unknown(path)
        kinds.setdefault(kind, []).append(path)
    if len(kinds) > 1:
        found = ", ".join(f"{len(some)} {kind} (such as {posixpath.basename(some[0])})" for kind, some in kinds.items())
        globs = " or ".join(f"'{_glob(some[0], dataset=dataset)}'" for some in kinds.values())
        raise SourceError(f"{dataset}: files of several kinds: {found}, expected one", remedy=f"name {globs}")
    return next(iter(kinds))


def by_split(files: Sequence[str], *, dataset: str) -> dict[str, list[str]]:
    """The files of each split, see `split_rules`. A folder's names count from there, others from what they share.

    Raises: SourceError if a file belongs to no split where others do, or to several; or if a dataset card says it.
    """
    if os.path.isdir(dataset):
        _refuse_card(dataset)
        return split_rules.by_split(files, folder=dataset)
    return split_rules.by_split(files, folder=paths.common_folder([without_access(path) for path in files]))


def has_rows(path: str) -> bool:
    """False for a local file that is certainly empty: tools write such parts, and `datasets` stops at them."""
    if not os.path.isfile(path):
        return True
    if os.path.getsize(path) == 0:
        return False
    kind = paths.kind_of(path)
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


def _find(dataset: str) -> list[str]:
    if "://" in dataset:
        return hub.expand_url(dataset)
    dataset = os.path.expanduser(dataset)
    paths.require(dataset)
    if os.path.isdir(dataset):
        return _below(dataset)
    # A name that is there is that file, whatever signs are in it.
    found = [dataset] if os.path.isfile(dataset) else glob.glob(dataset, recursive=True)
    if not (files := [path for path in found if os.path.isfile(path)]):
        raise SourceError(
            f"{dataset}: only folders, expected files", remedy=f"name the files, as in '{dataset}/*.jsonl'"
        )
    return files


def _unknown(path: str) -> SourceError:
    suffix = posixpath.splitext(without_access(path))[1].lower()
    return SourceError(
        f"{path}: a file of an unknown kind, expected {', '.join(sorted(paths.KINDS))}, or one of these as .gz, .bz2, "
        ".xz or .zst",
        remedy=_REMEDIES.get(suffix, "bring it into one of these kinds, or name other files by a glob"),
    )


def _glob(path: str, *, dataset: str) -> str:
    """What names the files of one kind."""
    suffix = posixpath.basename(path).partition(".")[2]
    folder = dataset if os.path.isdir(dataset) else posixpath.dirname(path)
    return posixpath.join(folder, "**" if os.path.isdir(dataset) else "", f"*.{suffix.rpartition('.')[2]}")


def _refuse_card(folder: str) -> None:
    """`datasets` goes by a card that says which files belong to which split, and not by their names."""
    for name in _CARDS:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), encoding="utf-8") as stream:
            head = stream.read(_HEAD_LETTERS)
            front = head if name.endswith(".yaml") else head.partition("\n---")[0]
            if re.search(r"^(configs|data_files|data_dir)\s*:", front, re.MULTILINE):
                raise SourceError(
                    f"{os.path.join(folder, name)} says which files belong to which split, which is not read here",
                    remedy="name the files of one configuration by a glob, such as 'data/*.parquet'",
                )


def _below(folder: str) -> list[str]:
    _refuse_prepared(folder)
    found = (os.path.join(place, name) for place, names in _walk(folder) for name in names)
    visible = (path for path in found if not _is_hidden(os.path.relpath(path, folder)))
    if not (
        files := sorted(path for path in visible if paths.kind_of(path) and posixpath.basename(path) not in _NOT_DATA)
    ):
        raise SourceError(
            f"{folder}: no data file, expected {', '.join(sorted(paths.KINDS))} or a folder written by save_to_disk",
            remedy="name the data files by a glob, such as 'data/**/*.parquet'",
        )
    return files


def _walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Every folder, and the files in it, but for what builds made: an --output below the source is no part of it, or
    the same command would find other files each time.
    """
    for place, folders, names in os.walk(folder):
        if place != folder and (_WORK_FOLDER in folders or _is_prepared(names)):
            folders.clear()
            continue
        yield place, names


def _refuse_prepared(folder: str) -> None:
    if _is_prepared(os.listdir(folder)):
        raise SourceError(
            f"{folder}: a dataset that a build made, expected what one is to be made from",
            remedy=_REMEDIES[".tfrecord"].partition("; ")[2],
        )


def _is_prepared(names: Sequence[str]) -> bool:
    return "manifest.json" in names and any(".tfrecord" in name for name in names)


def _is_hidden(path: str) -> bool:
    """Whether `datasets` would not see a path below a folder: a hidden file, or one in a hidden or a special folder."""
    *folders, name = path.split(os.sep)
    return name.startswith(".") or any(folder.startswith((".", "__")) for folder in folders)
