"""What DATASET and --tokenizer name, as far as a look at the disk tells: with the standard library alone, so that a
misspelt path is answered before anything large is imported.
"""

from __future__ import annotations

import difflib
import glob
import os
import posixpath
from collections.abc import Sequence

from tfrecord_io.errors import SourceError, TokenizerError
from tfrecord_io.shown import without_access

__all__ = ["KINDS", "common_folder", "is_files", "kind_of", "require", "require_tokenizer"]

# The kind of a data file by its suffix.
KINDS = {
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
# Of files that people have, and that a hub id never ends with.
_OTHER_SUFFIXES = (*_PACKED, ".xlsx", ".xls", ".zip", ".tar", ".tgz", ".tfrecord", ".pkl", ".feather", ".avro", ".db")
# The readers that `load_dataset` knows by name: each reads the current folder if it is told no files.
_READERS = frozenset(
    {"arrow", "audiofolder", "csv", "hdf5", "imagefolder", "json", "lance", "pandas", "parquet", "pdffolder", "sql",
     "text", "videofolder", "webdataset", "xml"}
)  # fmt: skip


def kind_of(path: str) -> str | None:
    """The kind of data file that a path's suffix says, or None. A web address may have a query behind the name."""
    stem, suffix = posixpath.splitext(without_access(path).lower())
    return KINDS.get(posixpath.splitext(stem)[1] if suffix in _PACKED else suffix)


def is_files(dataset: str) -> bool:
    """Whether this names files or a folder, be they there or not, rather than a dataset on the hub."""
    return (
        os.path.exists(dataset)
        or "://" in dataset
        or glob.has_magic(dataset)
        or os.path.isabs(dataset)
        or dataset.startswith((".", "~"))
        or dataset.rstrip("/").count("/") != dataset.count("/")
        or dataset.count("/") > 1
        or kind_of(dataset) is not None
        or dataset.lower().endswith(_OTHER_SUFFIXES)
    )


def require(dataset: str, *more: str) -> None:
    """Looks at what is named. Addresses and hub ids are somebody else's to look at.

    Raises: SourceError for a path or glob without any file, or the name of a reader instead of a dataset.
    """
    for name in map(os.path.expanduser, (dataset, *more)):
        if name in _READERS and not os.path.exists(name):
            raise SourceError(
                f"{name!r} is a reader of `datasets`, expected the files that it is to read",
                remedy=f"name them by path or glob, such as 'data/*.{_suffix_of(name)}'",
            )
        if "://" in name or os.path.exists(name) or (glob.has_magic(name) and glob.glob(name, recursive=True)):
            continue
        if is_files(name) or _nearest(name):
            raise SourceError(f"{name}: no such file or folder", remedy=_remedy(name))
        if more:
            raise SourceError(
                f"{name}: no such file, expected only files where several are named",
                remedy="check the path; a dataset of the hub is named alone",
            )


def require_tokenizer(name: str) -> None:
    """Looks at what is to be the tokenizer. Hub ids are somebody else's to look at.

    Raises: TokenizerError for a path where there is none, a file, or a folder without any file that tokenizers have.
    """
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        raise TokenizerError(
            f"tokenizer {name!r} is a file, expected a folder that save_pretrained wrote, or a hub id",
            remedy=f"name its folder, {os.path.dirname(path) or '.'}" if _is_of_tokenizer(path) else "name a folder",
        )
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        if not any(map(_is_of_tokenizer, names)):
            held = ", ".join(names[:3]) + (" …" if len(names) > 3 else "") if names else "nothing"
            raise TokenizerError(
                f"tokenizer {name!r}: the folder holds {held}, expected tokenizer.json or the files of a vocabulary",
                remedy="name the folder to which `tokenizer.save_pretrained(…)` wrote",
            )
        return
    if os.path.isabs(path) or path.startswith(".") or path.endswith("/") or path.count("/") > 1 or _nearest(path):
        near = _nearest(path)
        raise TokenizerError(
            f"tokenizer {name!r}: no such folder",
            remedy=f"did you mean {near}?" if near else "check the path; a hub id has the form USER/NAME or NAME",
        )


def _is_of_tokenizer(path: str) -> bool:
    """By the names that `transformers` gives the files of tokenizers, of whatever age."""
    name = os.path.basename(path).lower()
    words = ("token", "vocab", "merges", "sentencepiece", "spiece", "bpe", ".model", "config.json")
    return any(word in name for word in words)


def _suffix_of(reader: str) -> str:
    return next((suffix[1:] for suffix, kind in KINDS.items() if kind == reader), "parquet")


def _remedy(path: str) -> str:
    if near := _nearest(path):
        elsewhere = "" if is_files(path) else " (for a dataset of the hub, run this in another folder)"
        return f"did you mean {near}?{elsewhere}"
    if glob.has_magic(path):
        return "check the path: the glob matches nothing"
    return "check the path; a dataset of the hub has the form USER/NAME or NAME"


def _nearest(path: str) -> str | None:
    """What lies in the same folder and has nearly the same name."""
    folder, name = os.path.split(path.rstrip("/"))
    if not folder and "." not in name:
        return None  # the name of something on the hub is like many a folder's
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.75)
    except OSError:
        return None
    return os.path.join(folder, near[0]) if near else None


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that all paths or addresses are below."""
    split = [posixpath.dirname(path).split("/") for path in paths]
    shared = 0
    while all(len(parts) > shared and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    return "/".join(split[0][:shared])
