"""Early checks of paths in DATASET and --tokenizer. Without large imports, a misspelt path is reported at once."""

import difflib
import glob
import itertools
import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from tfrecord_io.errors import ConfigError, SourceError, TokenizerError
from tfrecord_io.local_paths import file_outside, is_tokenizers
from tfrecord_io.shown import without_access

_DATA = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# More suffixes that distinguish a file name from a Hub id.
_OTHER_FILE = re.compile(r"\.(gz|bz2|xz|zst|xlsx|xls|zip|tar|tgz|tfrecord|pkl|feather|avro|db)\Z", re.IGNORECASE)
# Names of readers of `load_dataset`; without file names, each would read the current folder.
_READERS = frozenset(
    {"arrow", "audiofolder", "csv", "hdf5", "imagefolder", "json", "lance", "pandas", "parquet", "pdffolder", "sql",
     "text", "videofolder", "webdataset", "xml"}
)  # fmt: skip

_FROM_TEKKEN = "convert it: AutoTokenizer.from_pretrained(FOLDER, mistral_format=False).save_pretrained(NEW)"


def is_data_file(path: str) -> bool:
    """Return whether a path or URL has the suffix of a data file, such as .csv, also with a suffix such as .gz."""
    stem, suffix = posixpath.splitext(without_access(path).lower())
    return (posixpath.splitext(stem)[1] if suffix in _COMPRESSED else suffix) in _DATA


def names_files(dataset: str) -> bool:
    """Return whether `dataset` is a path, glob or URL of files, which need not exist, rather than a Hub dataset."""
    return (
        os.path.exists(dataset)
        or "://" in dataset
        or glob.has_magic(dataset)
        or os.path.isabs(dataset)
        or dataset.startswith((".", "~"))
        or dataset.rstrip("/").count("/") != dataset.count("/")
        or dataset.count("/") > 1
        or is_data_file(dataset)
        or _OTHER_FILE.search(dataset) is not None
    )


def require_dataset(dataset: str, *more: str) -> None:
    """Raise SourceError if an argument is a local path or glob without files, or the name of a reader such as csv."""
    for name in map(os.path.expanduser, (dataset, *more)):
        if name in _READERS and not os.path.exists(name):
            raise SourceError(
                f"{name!r} is the name of a reader of `datasets`, expected the files to read",
                remedy="give the path or glob of the files, such as 'data/*.jsonl'",
            )
        if "://" in name or os.path.exists(name) or (glob.has_magic(name) and glob.glob(name, recursive=True)):
            continue
        if names_files(name) or _nearest(name):
            raise SourceError(f"{name}: no such file or folder", remedy=_other_dataset(name))
        if more:
            raise SourceError(
                f"{name}: no such file; several datasets can be given only as files",
                remedy="check the path, or give a Hub dataset alone",
            )


def require_tokenizer(name: str) -> None:
    """Check that `name`, if it is a local path, is a folder with a tokenizer's files. Raises: TokenizerError."""
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        raise TokenizerError(
            f"tokenizer {name!r} is a file, expected a folder that save_pretrained wrote, or a Hub id",
            remedy=f"give its folder, {os.path.dirname(path) or '.'}" if _is_tokenizer_file(path) else "give a folder",
        )
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        if not any(map(_is_tokenizer_file, names)):
            content = ", ".join(names[:3]) + (" …" if len(names) > 3 else "") if names else "nothing"
            raise TokenizerError(
                f"tokenizer {name!r}: the folder holds {content}, expected tokenizer.json or the files of a vocabulary",
                remedy=_FROM_TEKKEN if "tekken.json" in names else "give the folder that `save_pretrained` wrote",
            )
        _refuse_links(path, name)
        refuse_files_outside(path, name)
        return
    near = _nearest(path)
    if near or os.path.isabs(path) or path.startswith(".") or path.endswith("/") or path.count("/") > 1:
        raise TokenizerError(
            f"tokenizer {name!r}: no such folder",
            remedy=f"did you mean {near}?" if near else "check the path; a Hub id has the form USER/NAME or NAME",
        )


def read_template(path: str) -> str:
    """Return the text of a chat template in the file `path`. Raises: ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--chat-template {path}: cannot be read ({error})", remedy="give the path of a text file with the template"
        ) from error


def _refuse_links(folder: str, name: str) -> None:
    # The dataset would contain the target of a link. Links of the Hub's cache to its `blobs` are allowed.
    roots = [os.path.realpath(folder), os.path.realpath(os.path.join(folder, "..", "..", "blobs"))]
    for path in (*Path(folder).glob("*"), *Path(folder).glob("additional_chat_templates/*")):
        target, shown = Path(os.path.realpath(path)), path.relative_to(folder)
        if target.exists() and not target.is_file() and not target.is_dir():
            raise TokenizerError(
                f"tokenizer {name!r}: {shown} is a pipe or a device, expected a file",
                remedy="remove it from the folder",
            )
        if is_tokenizers(path.name) and not any(target.is_relative_to(root) for root in roots):
            raise TokenizerError(
                f"tokenizer {name!r}: {shown} leads out of the folder, to {target}, expected a file in the "
                "tokenizer's folder",
                remedy=f"if the dataset may contain that file, make a copy without links: cp -rL {folder} COPY",
            )


def refuse_files_outside(folder: str, name: str) -> None:
    """Check that a tokenizer's settings name no file outside its folder. `name`: for errors. Raises: TokenizerError."""
    if entry := file_outside(folder):
        raise TokenizerError(
            f"tokenizer {name!r}: {entry}, expected no file outside of its folder, since the dataset would contain it",
            remedy="if you trust the tokenizer, remove that entry from its settings",
        )


def tokenizer_folder(name: str) -> str:
    """Return the path of the folder `tokenizer` if `name` is a finished dataset's folder, else `name`."""
    folder, inner = os.path.expanduser(name), os.path.join(name, "tokenizer")
    is_dataset = os.path.isfile(os.path.join(folder, "manifest.json")) and os.path.isdir(os.path.expanduser(inner))
    return inner if is_dataset else name


def _is_tokenizer_file(path: str) -> bool:
    name = os.path.basename(path).lower()
    words = ("token", "vocab", "merges", "sentencepiece", "spiece", "bpe", ".model", "config.json")
    return any(word in name for word in words)


def _other_dataset(path: str) -> str:
    if near := _nearest(path):
        elsewhere = "" if names_files(path) else " (for the Hub dataset of that name, run this in another folder)"
        return f"did you mean {near}?{elsewhere}"
    if glob.has_magic(path):
        return "check the path: the glob matches nothing"
    return "check the path; a Hub dataset has the form USER/NAME or NAME"


def _nearest(path: str) -> str | None:
    folder, name = os.path.split(path.rstrip("/"))
    if not folder and "." not in name:
        return None  # a Hub id may resemble any folder's name
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.75)
    except OSError:
        return None
    return os.path.join(folder, near[0]) if near else None


def common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder that contains all paths or URLs; '' if there is none."""
    split = [posixpath.dirname(path).split("/") for path in paths]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*split, strict=False))
    return "/".join(parts[0] for parts in shared)
