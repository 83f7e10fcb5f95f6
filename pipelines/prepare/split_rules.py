"""Which split each data file of a folder belongs to, by the rules of `datasets`: a dataset has the same splits here as
with `load_dataset`.

The first rule that fits any file holds for all of them:

    1. data/NAME-00000-of-00001.*     split NAME, whatever it is
    2. a folder named for a split     data/train/0.jsonl, my-test/a.csv
    3. a file named for a split       train.jsonl, en.valid.jsonl, part_test_0.csv
    4. everything else                split train

A folder or a file is named for a split if one of the split's words stands in its name by itself, next to `-`, `.`, `_`,
a blank, a digit, or nothing. (Source: https://huggingface.co/docs/datasets/repository_structure and
`datasets.data_files`.) Where `datasets` would leave a file out, read it for two splits, or train on `TEST.jsonl`, it is
refused here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["by_split"]

# In the order in which `datasets` lists splits, and the files of each.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_APART = "[-._ 0-9]"
_SHARDED = re.compile(r"data/(?P<split>[^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_IN_FOLDER = ("(.*/)?{word}/.*", "(.*/)?{word}{apart}[^/]*/.*", "(.*/)?[^/]*{apart}{word}/.*",
              "(.*/)?[^/]*{apart}{word}{apart}[^/]*/.*")  # fmt: skip
_IN_FILE = ("(.*/)?{word}{apart}[^/]*", "(.*/)?[^/]*{apart}{word}{apart}[^/]*")


def by_split(paths: Sequence[str], *, folder: str) -> dict[str, list[str]]:
    """The files of each split, in the order in which `datasets` reads them. `paths` are below `folder`, with slashes.

    Raises: SourceError if a file belongs to no split where others do, or to several.
    """
    names = {path: without_access(path)[len(folder) :].lstrip("/") for path in sorted(paths)}
    found = _named(names)
    _require_one_split_each(names, found or {"train": list(names)}, folder=folder)
    if not found and (meant := _named({path: name.lower() for path, name in names.items()})):
        path = next(iter(next(iter(meant.values()))))
        raise SourceError(
            f"{folder}: {names[path]} has a split's name in capitals, which `datasets` takes for none: every row would "
            "be in split train",
            remedy="rename files and folders to lower case, such as test.jsonl",
        )
    return found or {"train": list(names)}


def _named(names: Mapping[str, str]) -> dict[str, list[str]]:
    """By the first rule that fits any file; empty where none does."""
    return _sharded(names) or _matching(names, _IN_FOLDER) or _matching(names, _IN_FILE)


def _sharded(names: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, name in names.items():
        if match := _SHARDED.fullmatch(name):
            found.setdefault(match["split"], []).append(path)
    first = [split for split in _WORDS if split in found]
    return {split: found[split] for split in (*first, *sorted(found.keys() - set(first)))}


def _matching(names: Mapping[str, str], forms: Sequence[str]) -> dict[str, list[str]]:
    """By the words of each split, each in every form: the order of the files follows that of the patterns."""
    found: dict[str, list[str]] = {}
    for split, words in _WORDS.items():
        patterns = [re.compile(form.format(word=word, apart=_APART)) for word in words for form in forms]
        matched = [path for pattern in patterns for path, name in names.items() if pattern.fullmatch(name)]
        if matched:
            found[split] = list(dict.fromkeys(matched))
    return found


def _require_one_split_each(names: Mapping[str, str], found: Mapping[str, Sequence[str]], *, folder: str) -> None:
    for path, name in names.items():
        splits = [split for split, files in found.items() if path in files]
        if len(splits) > 1:
            raise SourceError(
                f"{folder}: {name} belongs to the splits {' and '.join(splits)} by its name, expected one of them",
                remedy="rename the file or its folder so that its name has the word of one split only",
            )
        if not splits:
            raise SourceError(
                f"{folder}: {name} belongs to no split by its name, while other files belong to {', '.join(found)}; "
                "`datasets` would leave it out without a word",
                remedy="name just the files that you want, or rename this one, such as train-extra.jsonl",
            )
