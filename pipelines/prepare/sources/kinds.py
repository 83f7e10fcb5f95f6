"""Of what kind data files are, and which of them are certainly empty."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import TextIO, cast

from pipelines.prepare import paths
from pipelines.prepare.sources.files import FileKind
from pipelines.prepare.sources.unpacking import Unpacked, suffix_of
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["SEPARATORS", "has_rows", "one_of"]

# Of the kinds that have a header line.
SEPARATORS = {"csv": ",", "tsv": "\t"}
_REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls"), "save the sheet as CSV, or `pandas.read_excel(…).to_parquet(…)`"),
    **dict.fromkeys((".zip", ".tar", ".tgz"), "unpack it, and name the files"),
    ".tfrecord": "this is what a build makes; name the files that it is to be made from",
}
# Enough to tell a file that has rows from one that has none.
_HEAD_LETTERS = 1 << 16
# By default Python's CSV reader takes fields up to 128 KB.
_MOST_LETTERS = 1 << 30
# Whatever has more bytes has rows.
_MOST_EMPTY_BYTES = 1 << 16
# What a file says that cannot be unpacked, or is no CSV: opening it for its rows says it better.
_UNREADABLE = (SourceError, OSError, ValueError, csv.Error)


def one_of(files: Sequence[str], *, dataset: str) -> FileKind:
    """The one kind that all files are of. Raises: SourceError if they are of several, or of none that is known."""
    kinds: dict[str, list[str]] = {}
    for path in files:
        kind = paths.kind_of(path)
        if kind is None:
            raise _unknown(without_access(path))
        kinds.setdefault(kind, []).append(without_access(path))
    if len(kinds) > 1:
        found = ", ".join(f"{len(some)} {kind} (such as {posixpath.basename(some[0])})" for kind, some in kinds.items())
        globs = " or ".join(f"'{_glob(some[0], dataset=dataset)}'" for some in kinds.values())
        raise SourceError(f"{dataset}: files of several kinds: {found}, expected one", remedy=f"name {globs}")
    return cast("FileKind", next(iter(kinds)))


def has_rows(path: str, *, size: int, kind: FileKind) -> bool:
    """False for a file that is certainly empty: tools write such parts, and the readers of `datasets` stop at them.
    What binary files hold, their footers say.
    """
    if size == 0:
        return False
    if "://" in path or kind in ("parquet", "arrow") or size > _MOST_EMPTY_BYTES:
        return True
    try:
        return _says_rows(path, kind)
    except _UNREADABLE:
        return True  # damaged: opening it says how


def _says_rows(path: str, kind: FileKind) -> bool:
    with _open_text(path) as stream:
        head = stream.read(_HEAD_LETTERS)
    if len(head) == _HEAD_LETTERS:
        return True
    if kind == "json":
        return "".join(head.split()) not in ("", "[]")
    if kind in SEPARATORS:
        return len(_first_records(io.StringIO(head, newline=""), separator=SEPARATORS[kind])) == 2
    return head != ""


def _first_records(stream: TextIO, *, separator: str) -> list[list[str]]:
    """The first two lines of a CSV file that are not blank, as fields."""
    with _long_fields():
        lines = csv.reader(stream, delimiter=separator)
        filled = (fields for fields in lines if "".join(fields).strip() or len(fields) > 1)
        return list(itertools.islice(filled, 2))


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    limit = csv.field_size_limit(_MOST_LETTERS)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


@contextlib.contextmanager
def _open_text(path: str) -> Iterator[TextIO]:
    with open(path, "rb") as stored:
        suffix = suffix_of(path)
        content = io.BufferedReader(Unpacked(stored, suffix, shown=without_access(path))) if suffix else stored
        # Letters that are not UTF-8 are somebody else's to complain of.
        with io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="") as text:
            yield text


def _unknown(path: str) -> SourceError:
    suffix = posixpath.splitext(path)[1].lower()
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
