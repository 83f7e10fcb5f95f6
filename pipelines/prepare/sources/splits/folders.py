"""The data files of a folder by split, according to its card or to their names."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import cast

from fsspec.utils import glob_translate

from pipelines.prepare.options import paths
from pipelines.prepare.sources.files.data_files import FileKind
from pipelines.prepare.sources.files.folder_listing import FolderListing, ListedFile
from pipelines.prepare.sources.splits import file_kinds, split_rules
from pipelines.prepare.sources.splits.cards import Config
from tfrecord_io.errors import SourceError

__all__ = ["data_files", "kind_of", "splits"]

# Files that `datasets` and related tools leave beside the data.
_NOT_DATA = frozenset(
    {"README.md", "config.json", "dataset_infos.json", "dataset_info.json", "dataset_dict.json", "dummy_data.zip"}
)
_OURS_NOT_DATA = frozenset({"state.json", "metadata.json", ".huggingface.yaml"})
_SEPARATORS = {",": "csv", "\t": "tsv"}


def splits(listing: FolderListing, config: Config) -> dict[str, list[ListedFile]]:
    """Return the data files of each split of a configuration, in the order in which `datasets` reads them.

    Raises: SourceError if there are none, or `datasets` would read others.
    """
    if config.data_files is None:
        folder = _folder(listing, config)
        shown = posixpath.join(listing.shown, folder) if folder else listing.shown
        found = split_rules.by_split(_names(listing, folder, shown=shown), where=shown)
        return {split: [listing.files[posixpath.join(folder, name)] for name in some] for split, some in found.items()}
    picked = {split: _picked(listing, config, patterns) for split, patterns in config.data_files.items()}
    for split in picked:
        split_rules.require_split_name(split, where=listing.shown)
    return {split: [listing.files[name] for name in names] for split, names in picked.items()}


def data_files(listing: FolderListing) -> list[ListedFile]:
    """Return all data files of a folder. Raises: SourceError if there are none."""
    return [listing.files[name] for name in _names(listing, "", shown=listing.shown) if paths.kind_of(name)]


def kind_of(found: Mapping[str, Sequence[ListedFile]], *, where: str, config: Config) -> FileKind:
    """Return the kind of all files; for separated values, the separator of the card decides.

    Raises: SourceError if the files are of several kinds, or the card has other options for their reader.
    """
    files = list(dict.fromkeys(each.path for some in found.values() for each in some))
    kind = file_kinds.common_kind(files, dataset=where)
    options = config.options_of(kind)
    if not options:
        return kind
    separator = options.get("delimiter", options.get("sep"))
    if set(options) <= {"sep", "delimiter"} and kind in ("csv", "tsv") and separator in [*_SEPARATORS]:
        return cast("FileKind", _SEPARATORS[separator])
    raise SourceError(
        f"{where}: the card gives the reader of {kind} files the option {next(iter(options))}, which is not supported",
        remedy="load it with `datasets`, save it with `save_to_disk`, and name that folder",
    )


def _folder(listing: FolderListing, config: Config) -> str:
    folder = posixpath.normpath(config.data_dir) if config.data_dir else ""
    if posixpath.isabs(folder) or folder.split("/")[0] == ".." or "://" in folder:
        raise _outside(listing, config.data_dir)
    return "" if folder == "." else folder


def _names(listing: FolderListing, folder: str, *, shown: str) -> list[str]:
    """Return the relative paths below a folder that could be data. Raises: SourceError if none is a data file."""
    start = f"{folder}/" if folder else ""
    below = (name[len(start) :] for name in listing.files if name.startswith(start))
    names = [name for name in below if posixpath.basename(name) not in _NOT_DATA | _OURS_NOT_DATA]
    if not any(map(paths.kind_of, names)):
        raise SourceError(
            f"{shown}: no data file, expected {', '.join(sorted(paths.KINDS))} or a folder written by save_to_disk",
            remedy="name the data files by a glob, such as 'data/**/*.parquet'",
        )
    return names


def _picked(listing: FolderListing, config: Config, patterns: Sequence[str]) -> list[str]:
    names = [name for pattern in patterns for name in _matching(listing, config, pattern)]
    if twice := next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None:
        raise SourceError(
            f"{listing.shown}: the card names {twice} twice for one split; `datasets` would read it twice",
            remedy="correct the card, or name the data files by a glob",
        )
    return names


def _matching(listing: FolderListing, config: Config, pattern: str) -> list[str]:
    whole = posixpath.normpath(posixpath.join(_folder(listing, config), pattern))
    if "://" in pattern or posixpath.isabs(whole) or whole.split("/")[0] == "..":
        raise _outside(listing, pattern)
    try:
        matches = re.compile(glob_translate(whole)).match
    except ValueError as error:
        raise SourceError(
            f"{listing.shown}: the card names {pattern}: {error}", remedy="name the data files by a glob of your own"
        ) from error
    candidates = [whole] if not glob.has_magic(whole) else [name for name in listing.files if matches(name)]
    ignored = (_NOT_DATA | {".huggingface.yaml"}) - {posixpath.basename(pattern)}
    named = [name for name in candidates if name in listing.files and posixpath.basename(name) not in ignored]
    if not (found := [name for name in named if file_kinds.has_reader(name)]):
        raise SourceError(
            f"{listing.shown}: the card names {pattern}, but there is no such data file",
            remedy="name the data files by a glob of your own",
        )
    return found


def _outside(listing: FolderListing, what: str) -> SourceError:
    return SourceError(
        f"{listing.shown}: the card names {what}, expected a path below the card's folder",
        remedy="name those files as DATASET if you trust the card and want to read them",
    )
