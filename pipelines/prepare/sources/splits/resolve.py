"""Resolving DATASET to splits and files, before anything is read. DATASET is one of

    a folder written by `save_to_disk`          its Arrow files are read as they are
    a folder, local or at any address           the splits are those of `load_dataset`, by its card or by file names
    files, by path, address or glob             the splits are those of `load_dataset`, by file names
    anything else                               a dataset of the hub; its revision is resolved once, and pinned

Neither `datasets` nor Beam is imported, and the hub's client only for a dataset of the hub.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fsspec.utils import glob_translate

from pipelines.prepare import storage
from pipelines.prepare.options import paths
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.files import addresses, folder_listing, identity
from pipelines.prepare.sources.files.data_files import FileKind, SourceListing
from pipelines.prepare.sources.files.folder_listing import FolderListing, ListedFile
from pipelines.prepare.sources.splits import cards, file_kinds, folders, saved_datasets, split_rules
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

if TYPE_CHECKING:  # importing the hub's client takes time, and most sources don't need it
    from pipelines.prepare.sources.files.hub import Repository

__all__ = ["resolve"]

Splits = Mapping[str, Sequence[ListedFile]]

_HUB = "hf://"
# Sources of more files are listed in the manifest by one digest.
_MOST_NAMED = 1_000

_log = logging.getLogger(__name__)


def resolve(config: SourceConfig) -> SourceListing:
    """Return the splits of the dataset, and the files of each with their versions.

    Raises: SourceError if it does not exist, cannot be listed, or `datasets` would read something else.
    """
    paths.require_dataset(config.dataset, *config.more_paths)
    if config.more_paths:
        return _of_files(config)
    if config.dataset.startswith(_HUB):
        return _of_hub_address(config)
    if not paths.names_files(config.dataset):
        return _of_hub(config)
    if (listing := _folder(config.dataset)) is None:
        return _of_files(config)
    return _of_saved(listing, config) if saved_datasets.is_saved(listing) else _of_folder(listing, config)


def _folder(dataset: str) -> FolderListing | None:
    """List what is below a local or remote folder; None if it is not a folder."""
    path = storage.local_path(dataset)
    if path is None:
        return addresses.list_folder(dataset)
    return folder_listing.list_local(path) if os.path.isdir(path) else None


def _of_folder(listing: FolderListing, config: SourceConfig, *, needs_token: bool = False) -> SourceListing:
    if not needs_token:
        _refuse_revision(config)
    card = cards.read(listing)
    chosen = cards.chosen(card, config.config, where=listing.shown)
    found = folders.splits(listing, chosen)
    source = _source(found, kind=folders.kind_of(found, where=listing.shown, config=chosen), where=listing.shown)
    return dataclasses.replace(source, features=chosen.features, needs_token=needs_token)


def _of_files(config: SourceConfig) -> SourceListing:
    """List files named by any number of paths, each file once."""
    _refuse_options(config)
    named = [each for name in (config.dataset, *config.more_paths) for each in _named(name)]
    files = sorted({each.path: each for each in named}.values(), key=lambda each: each.path)
    return _by_names(folder_listing.without_duplicate_links(files), where=without_access(config.dataset))


def _named(name: str) -> Sequence[ListedFile]:
    if name.startswith(_HUB):
        raise SourceError(
            f"{name}: an address of the hub with other paths, expected it alone",
            remedy="name one folder or one glob of a dataset of the hub",
        )
    listing = _folder(name)
    return addresses.list_files(name) if listing is None else folders.data_files(listing)


def _by_names(files: Sequence[ListedFile], *, where: str, needs_token: bool = False) -> SourceListing:
    kind = file_kinds.common_kind([each.path for each in files], dataset=where)
    shown = [without_access(each.path) for each in files]
    folder = paths.common_folder(shown)
    below = {path[len(folder) :].lstrip("/"): each for path, each in zip(shown, files, strict=True)}
    if len(below) < len(files):
        twice = next(path for path in shown if shown.count(path) > 1)
        raise SourceError(f"{twice}: named twice, with different queries", remedy="name each file once")
    splits = split_rules.by_split([*below], where=where)
    found = {split: [below[name] for name in names] for split, names in splits.items()}
    return dataclasses.replace(_source(found, kind=kind, where=where), needs_token=needs_token)


def _of_saved(listing: FolderListing, config: SourceConfig) -> SourceListing:
    _refuse_options(config)
    found = saved_datasets.splits(listing)
    for split in found:
        split_rules.require_split_name(split, where=listing.shown, saved=True)
    source = _source(found, kind="arrow", where=listing.shown, by_relative_path=True)
    return dataclasses.replace(
        source,
        kind="save_to_disk",
        identity={**source.identity, "kind": "save_to_disk"},
        own_features=saved_datasets.features(listing, found),
    )


def _of_hub(config: SourceConfig) -> SourceListing:
    from pipelines.prepare.sources.files import hub

    repository = hub.repository(config.dataset, revision=config.revision)
    return _of_repository(repository, config)


def _of_repository(repository: Repository, config: SourceConfig) -> SourceListing:
    listing = repository.listing
    chosen = cards.chosen(cards.read(listing), config.config, where=listing.shown)
    found = folders.splits(listing, chosen)
    kind = folders.kind_of(found, where=listing.shown, config=chosen)
    return dataclasses.replace(
        _source(found, kind=kind, where=listing.shown, by_relative_path=True),
        kind="hub",
        identity={"kind": "hub", "name": repository.name, "config": config.config, "revision": repository.commit},
        features=chosen.features,
        needs_token=repository.needs_token,
    )


def _of_hub_address(config: SourceConfig) -> SourceListing:
    """List the dataset at hf://datasets/NAME, or the folder or files at an address below it."""
    repository, inner = _repository_of(config.dataset, revision=config.revision)
    if not inner:
        return _of_repository(repository, config)
    below = {
        name[len(inner) + 1 :]: each for name, each in repository.listing.files.items() if name.startswith(f"{inner}/")
    }
    if not below:
        _refuse_config(config)
        files = _in_repository(repository, inner)
        return _by_names(files, where=config.dataset, needs_token=repository.needs_token)
    listing = dataclasses.replace(repository.listing, shown=config.dataset, files=below)
    return _of_folder(listing, config, needs_token=repository.needs_token)


def _repository_of(address: str, *, revision: str | None) -> tuple[Repository, str]:
    from pipelines.prepare.sources.files import hub

    name, in_address, inner = hub.parse_address(address)
    return hub.repository(name, revision=in_address or revision), inner


def _in_repository(repository: Repository, pattern: str) -> list[ListedFile]:
    matches = re.compile(glob_translate(pattern)).match
    files = repository.listing.files
    if found := [files[pattern]] if pattern in files else [each for name, each in files.items() if matches(name)]:
        return found
    raise SourceError(
        f"{repository.name}: no file {pattern}", remedy="check the path; the page of the dataset lists its files"
    )


def _source(found: Splits, *, kind: FileKind, where: str, by_relative_path: bool = False) -> SourceListing:
    """List the files that have rows, with their versions, named by relative path or by file name."""
    filled = _filled(found, kind=kind, where=where)
    files = list(dict.fromkeys(each for some in filled.values() for each in some))
    named = (
        files if by_relative_path else [dataclasses.replace(each, name=posixpath.basename(each.name)) for each in files]
    )
    identified = dict(zip(files, identity.identify(named, kind=kind), strict=True))
    splits = {split: [identified[each][0] for each in some] for split, some in filled.items()}
    entries = [{**identified[each][1], "split": split} for split, some in filled.items() for each in some]
    identity_of_files = {"kind": kind, "files": _entries(entries)}
    return SourceListing(kind="files", splits=splits, identity=identity_of_files, entries=entries)


def _entries(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Return each file's entry, or one digest of very many: the manifest is to stay small."""
    if len(entries) <= _MOST_NAMED:
        return list(entries)
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return {"count": len(entries), "bytes": sum(entry["bytes"] for entry in entries), "sha256": digest}


def _filled(found: Splits, *, kind: FileKind, where: str) -> dict[str, list[ListedFile]]:
    """Return the splits without files that are certainly empty, and without splits that have only those."""
    filled = {
        split: [each for each in files if file_kinds.has_rows(each.path, size=each.size, kind=kind)]
        for split, files in found.items()
    }
    left = {split: files for split, files in filled.items() if files}
    if not left:
        raise SourceError(f"{where}: no rows, expected at least one", remedy="check the files for their content")
    for split in sorted(filled.keys() - left.keys()):
        _log.warning("%s: split %r has no rows and is left out", where, split)
    return left


def _refuse_options(config: SourceConfig) -> None:
    _refuse_config(config)
    _refuse_revision(config)


def _refuse_config(config: SourceConfig) -> None:
    if config.config:
        raise SourceError(
            f"{without_access(config.dataset)}: --config chooses among those of a dataset card, but this has none",
            remedy="leave --config out",
        )


def _refuse_revision(config: SourceConfig) -> None:
    if config.revision:
        raise SourceError(
            f"{without_access(config.dataset)}: --revision is for hub datasets, but these are files",
            remedy="leave --revision out",
        )
