"""Which files of a folder are read for which split, by its card or by their names."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import cast

from fsspec.utils import glob_translate

from pipelines.prepare.options import paths
from pipelines.prepare.sources.files.data_files import FileKind
from pipelines.prepare.sources.files.folder_listing import Found, Place
from pipelines.prepare.sources.splits import file_kinds, split_rules
from pipelines.prepare.sources.splits.cards import Config
from tfrecord_io.errors import SourceError

__all__ = ["data_of", "kind_of", "splits"]

# What `datasets` and the tools around it leave beside the data.
_NOT_DATA = frozenset(
    {"README.md", "config.json", "dataset_infos.json", "dataset_info.json", "dataset_dict.json", "dummy_data.zip"}
)
_OURS_NOT_DATA = frozenset({"state.json", "metadata.json", ".huggingface.yaml"})
_SEPARATORS = {",": "csv", "\t": "tsv"}


def splits(place: Place, config: Config) -> dict[str, list[Found]]:
    """The data files of each split of a configuration, in the order in which `datasets` reads them.

    Raises: SourceError if there is none, or `datasets` would read others.
    """
    if config.data_files is None:
        folder = _folder(place, config)
        shown = posixpath.join(place.shown, folder) if folder else place.shown
        found = split_rules.by_split(_names(place, folder, shown=shown), place=shown)
        return {split: [place.files[posixpath.join(folder, name)] for name in some] for split, some in found.items()}
    picked = {split: _picked(place, config, patterns) for split, patterns in config.data_files.items()}
    for split in picked:
        split_rules.require_split_name(split, place=place.shown)
    return {split: [place.files[name] for name in names] for split, names in picked.items()}


def data_of(place: Place) -> list[Found]:
    """All data files of a folder. Raises: SourceError if there is none."""
    return [place.files[name] for name in _names(place, "", shown=place.shown) if paths.kind_of(name)]


def kind_of(found: Mapping[str, Sequence[Found]], *, place: str, config: Config) -> FileKind:
    """The one kind of all files; of separated values, the one that the card says.

    Raises: SourceError if they are of several, or the card has other options for their reader.
    """
    files = list(dict.fromkeys(each.path for some in found.values() for each in some))
    kind = file_kinds.one_of(files, dataset=place)
    options = config.options_of(kind)
    if not options:
        return kind
    said = options.get("delimiter", options.get("sep"))
    if set(options) <= {"sep", "delimiter"} and kind in ("csv", "tsv") and said in [*_SEPARATORS]:
        return cast("FileKind", _SEPARATORS[said])
    raise SourceError(
        f"{place}: the card gives the reader of {kind} files the option {next(iter(options))}, which is not known here",
        remedy="load it with `datasets`, save it with `save_to_disk`, and name that folder",
    )


def _folder(place: Place, config: Config) -> str:
    folder = posixpath.normpath(config.data_dir) if config.data_dir else ""
    if posixpath.isabs(folder) or folder.split("/")[0] == ".." or "://" in folder:
        raise _outside(place, config.data_dir)
    return "" if folder == "." else folder


def _names(place: Place, folder: str, *, shown: str) -> list[str]:
    """What could be data below a folder."""
    start = f"{folder}/" if folder else ""
    below = (name[len(start) :] for name in place.files if name.startswith(start))
    names = [name for name in below if posixpath.basename(name) not in _NOT_DATA | _OURS_NOT_DATA]
    if not any(map(paths.kind_of, names)):
        raise SourceError(
            f"{shown}: no data file, expected {', '.join(sorted(paths.KINDS))} or a folder written by save_to_disk",
            remedy="name the data files by a glob, such as 'data/**/*.parquet'",
        )
    return names


def _picked(place: Place, config: Config, patterns: Sequence[str]) -> list[str]:
    names = [name for pattern in patterns for name in _matching(place, config, pattern)]
    if (
        double := next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    ):
        raise SourceError(
            f"{place.shown}: the card names {double} twice for one split; `datasets` would read it twice",
            remedy="mend the card, or name the data files by a glob",
        )
    return names


def _matching(place: Place, config: Config, pattern: str) -> list[str]:
    whole = posixpath.normpath(posixpath.join(_folder(place, config), pattern))
    if "://" in pattern or posixpath.isabs(whole) or whole.split("/")[0] == "..":
        raise _outside(place, pattern)
    try:
        matches = re.compile(glob_translate(whole)).match
    except ValueError as error:
        raise SourceError(
            f"{place.shown}: the card names {pattern}: {error}", remedy="name the data files by a glob of your own"
        ) from error
    candidates = [whole] if not glob.has_magic(whole) else [name for name in place.files if matches(name)]
    ignored = (_NOT_DATA | {".huggingface.yaml"}) - {posixpath.basename(pattern)}
    named = [name for name in candidates if name in place.files and posixpath.basename(name) not in ignored]
    if not (found := [name for name in named if file_kinds.known(name)]):
        raise SourceError(
            f"{place.shown}: the card names {pattern}, but there is no such data file",
            remedy="name the data files by a glob of your own",
        )
    return found


def _outside(place: Place, what: str) -> SourceError:
    return SourceError(
        f"{place.shown}: the card names {what}, expected something below the folder of the card",
        remedy="name those files yourself, if that is what you want to read",
    )
