"""The split of each file of a folder, by the rules of `datasets`, so that splits are those of `load_dataset`.

The first rule that fits any file is applied to all files:

    1. data/NAME-00000-of-00001.*     split NAME, whatever NAME is
    2. *.eval, task.toml              logs of evaluations and tasks of Harbor, which are not supported
    3. a folder named for a split     data/train/0.jsonl, my-test/a.csv
    4. a file named for a split       train.jsonl, en.valid.jsonl, part_test_0.csv
    5. everything else                split train

A folder or file is named for a split if its name has one of the split's words, bounded by `-`, `.`, `_`, a blank, a
digit, or the end of the name. (Source: https://huggingface.co/docs/datasets/repository_structure and
`datasets.data_files`.) Folders for which `datasets` would leave a data file out, read one twice or for two splits, read
other files as well, or train on `TEST.jsonl` are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipelines.prepare.options import paths
from pipelines.prepare.options.split_options import SPLIT_NAME
from pipelines.prepare.sources.splits import file_kinds
from tfrecord_io.errors import SourceError

__all__ = ["by_split", "require_split_name"]

# Words of each split; `datasets` lists splits and files in this order.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_APART = "[-._ 0-9]"
_SHARDED = re.compile(r"data/(?P<split>[^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
_ELSEWHERE = {"logs": re.compile(r".*\.eval"), "test": re.compile(r"(.*/)?(task\.toml|instruction\.md)")}
_IN_FOLDER = ("(.*/)?{word}/.*", "(.*/)?{word}{apart}[^/]*/.*", "(.*/)?[^/]*{apart}{word}/.*",
              "(.*/)?[^/]*{apart}{word}{apart}[^/]*/.*")  # fmt: skip
_IN_FILE = ("(.*/)?{word}{apart}[^/]*", "(.*/)?[^/]*{apart}{word}{apart}[^/]*")
# The names that `datasets` allows; SPLIT_NAME is for names that become parts of file names.
_SPLIT_NAME = re.compile(r"\w+(\.\w+)*")


def by_split(names: Sequence[str], *, where: str) -> dict[str, list[str]]:
    """Return the data files of each split, in the order in which `datasets` reads them.

    `names` are the paths, below a folder, of all files that `datasets` would consider. `where` names the folder in
    messages.

    Raises: SourceError if `datasets` would read other files, or one of them twice.
    """
    names = sorted(names)
    data = [name for name in names if paths.kind_of(name)]
    by_name = _split_by_name(data)
    found = by_name or {"train": data}
    _require_one_split_each(data, found, where=where)
    if not by_name:
        _refuse_capitals(data, where=where)
    theirs = file_kinds.read_by_datasets(found if data == names else _split_by_name(names) or {"train": names})
    # Files of several kinds are refused later, with a better message.
    if len({paths.kind_of(name) for name in data}) == 1 and theirs and theirs != found:
        _refuse_others(theirs, found, where=where)
    for split in found:
        require_split_name(split, where=where)
    return found


def require_split_name(split: str, *, where: str, saved: bool = False) -> None:
    """Raise SourceError for a split name that `datasets` would refuse, or that cannot be part of a file name."""
    if not SPLIT_NAME.match(split) or not (saved or _SPLIT_NAME.fullmatch(split)):
        raise SourceError(
            f"{where}: split {split!r}, expected letters, digits, '_' or '.', as in a file name",
            remedy="rename the split in the source",
        )


def _split_by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """Apply the first of rules 1 to 4 that fits any file; empty if none does. A file may be listed twice."""
    return _sharded(names) or _elsewhere(names) or _matching(names, _IN_FOLDER) or _matching(names, _IN_FILE)


def _sharded(names: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _SHARDED.fullmatch(name):
            found.setdefault(match["split"], []).append(name)
    first = [split for split in _WORDS if split in found]
    return {split: found[split] for split in (*first, *sorted(found.keys() - set(first)))}


def _elsewhere(names: Sequence[str]) -> dict[str, list[str]]:
    for split, pattern in _ELSEWHERE.items():
        if matched := [name for name in names if pattern.fullmatch(name)]:
            return {split: matched}
    return {}


def _matching(names: Sequence[str], forms: Sequence[str]) -> dict[str, list[str]]:
    """Match every word of each split in every form; files are in the order of the patterns that they match."""
    found: dict[str, list[str]] = {}
    for split, words in _WORDS.items():
        matched: list[str] = []
        for word in words:
            likely = [name for name in names if word in name]
            patterns = (re.compile(form.format(word=word, apart=_APART)) for form in forms)
            matched += (name for pattern in patterns for name in likely if pattern.fullmatch(name))
        if matched:
            found[split] = matched
    return found


def _require_one_split_each(names: Sequence[str], found: Mapping[str, Sequence[str]], *, where: str) -> None:
    of: dict[str, list[str]] = {name: [] for name in names}
    for split, files in found.items():
        for name in files:
            of[name].append(split)
    for name, splits in of.items():
        if len(several := dict.fromkeys(splits)) > 1:
            raise SourceError(
                f"{where}: {name} belongs to the splits {' and '.join(several)} by its name, expected one split",
                remedy="rename the file or its folder so that its name has the word of one split only",
            )
        if len(splits) > 1:
            raise SourceError(
                f"{where}: {name} has the word of split {splits[0]} twice; `datasets` would read it twice",
                remedy="rename the file or its folder so that its name has the word of the split once",
            )
        if not splits:
            raise SourceError(
                f"{where}: {name} belongs to no split by its name, while other files belong to {', '.join(found)}; "
                "`datasets` would silently leave it out",
                remedy="name only the files that you want, or rename this one, such as train-extra.jsonl",
            )


def _refuse_capitals(names: Sequence[str], *, where: str) -> None:
    if meant := _split_by_name([name.lower() for name in names]):
        lowered = next(iter(next(iter(meant.values()))))
        name = next(name for name in names if name.lower() == lowered)
        raise SourceError(
            f"{where}: {name} has a split's name in capitals, which `datasets` ignores: every row would be in split "
            "train",
            remedy="rename files and folders to lower case, such as test.jsonl",
        )


def _refuse_others(theirs: Mapping[str, Sequence[str]], ours: Mapping[str, Sequence[str]], *, where: str) -> None:
    here = {name for files in ours.values() for name in files}
    there = {name for files in theirs.values() for name in files}
    if more := sorted(there - here):
        what = f"`datasets` would take {more[0]} for data, which is not read here"
    else:
        what = f"`datasets` would leave out {sorted(here - there)[0]}" if here - there else "its splits are not clear"
    raise SourceError(
        f"{where}: {what}",
        remedy="move it elsewhere or rename it, or name the data files by a glob, as in '**/*.jsonl'",
    )
