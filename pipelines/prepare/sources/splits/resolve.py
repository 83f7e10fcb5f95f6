"""From DATASET to splits and files, before anything is read. DATASET is one of

    a folder written by `save_to_disk`          its Arrow files are read as they are
    a folder, here or at any address            the splits are those of `load_dataset`: by its card, or by names
    files, by path, address or glob             the same by names, from the folder that they share
    anything else                               a dataset of the hub; its revision is resolved here, once, and pinned

Neither `datasets` nor Beam is needed for it, and the hub's client only where the hub is meant.
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

from pipelines.prepare.options import paths
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.files import addresses, folder_listing, identity
from pipelines.prepare.sources.files.data_files import FileKind, Listing
from pipelines.prepare.sources.files.folder_listing import Found, Place
from pipelines.prepare.sources.splits import cards, file_kinds, folders, saved_datasets, split_rules
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

if TYPE_CHECKING:  # most sources have nothing to do with the hub
    from pipelines.prepare.sources.files.hub import Repository

__all__ = ["resolve"]

Splits = Mapping[str, Sequence[Found]]

_HUB = "hf://"
# Files that the manifest names.
_MOST_NAMED = 1_000

_log = logging.getLogger(__name__)


def resolve(config: SourceConfig) -> Listing:
    """The splits of the dataset, the files of each, and what they are known by.

    Raises: SourceError if there is none, it cannot be listed, or `datasets` would read something else.
    """
    paths.require_dataset(config.dataset, *config.more_paths)
    if config.more_paths:
        return _of_files(config)
    if config.dataset.startswith(_HUB):
        return _of_hub_address(config)
    if not paths.names_files(config.dataset):
        return _of_hub(config)
    if (place := _folder(config.dataset)) is None:
        return _of_files(config)
    return _of_saved(place, config) if saved_datasets.is_saved(place) else _of_folder(place, config)


def _folder(dataset: str) -> Place | None:
    """What is below a folder, here or elsewhere; None if it is no folder."""
    path = addresses.local_path(dataset)
    if path is None:
        return addresses.folder(dataset)
    return folder_listing.local(path) if os.path.isdir(path) else None


def _of_folder(place: Place, config: SourceConfig, *, needs_token: bool = False) -> Listing:
    if not needs_token:
        _refuse_revision(config)
    card = cards.read(place)
    chosen = cards.chosen(card, config.config, place=place.shown)
    found = folders.splits(place, chosen)
    listing = _listing(found, kind=folders.kind_of(found, place=place.shown, config=chosen), place=place.shown)
    return dataclasses.replace(listing, features=chosen.features, needs_token=needs_token)


def _of_files(config: SourceConfig) -> Listing:
    """Files from any number of places, each once."""
    _refuse_options(config)
    named = [each for name in (config.dataset, *config.more_paths) for each in _named(name)]
    files = sorted({each.path: each for each in named}.values(), key=lambda each: each.path)
    return _by_names(folder_listing.without_doubles(files), place=without_access(config.dataset))


def _named(name: str) -> Sequence[Found]:
    if name.startswith(_HUB):
        raise SourceError(
            f"{name}: an address of the hub among others, expected it alone",
            remedy="name one folder or one glob of a dataset of the hub",
        )
    place = _folder(name)
    return addresses.files(name) if place is None else folders.data_of(place)


def _by_names(files: Sequence[Found], *, place: str, needs_token: bool = False) -> Listing:
    kind = file_kinds.one_of([each.path for each in files], dataset=place)
    shown = [without_access(each.path) for each in files]
    folder = paths.common_folder(shown)
    below = {path[len(folder) :].lstrip("/"): each for path, each in zip(shown, files, strict=True)}
    if len(below) < len(files):
        twice = next(path for path in shown if shown.count(path) > 1)
        raise SourceError(f"{twice}: named twice, with other queries", remedy="name each file once")
    splits = split_rules.by_split([*below], place=place)
    found = {split: [below[name] for name in names] for split, names in splits.items()}
    return dataclasses.replace(_listing(found, kind=kind, place=place), needs_token=needs_token)


def _of_saved(place: Place, config: SourceConfig) -> Listing:
    _refuse_options(config)
    found = saved_datasets.splits(place)
    for split in found:
        split_rules.require_split_name(split, place=place.shown, saved=True)
    listing = _listing(found, kind="arrow", place=place.shown, below=True)
    said = {**listing.identity, "kind": "save_to_disk"}
    return dataclasses.replace(
        listing, kind="save_to_disk", identity=said, own_features=saved_datasets.features(place, found)
    )


def _of_hub(config: SourceConfig) -> Listing:
    from pipelines.prepare.sources.files import hub

    repository = hub.repository(config.dataset, revision=config.revision)
    return _of_repository(repository, config)


def _of_repository(repository: Repository, config: SourceConfig) -> Listing:
    place = repository.place
    chosen = cards.chosen(cards.read(place), config.config, place=place.shown)
    found = folders.splits(place, chosen)
    listing = _listing(
        found, kind=folders.kind_of(found, place=place.shown, config=chosen), place=place.shown, below=True
    )
    said = {"kind": "hub", "name": repository.name, "config": config.config, "revision": repository.commit}
    return dataclasses.replace(
        listing, kind="hub", identity=said, features=chosen.features, needs_token=repository.needs_token
    )


def _of_hub_address(config: SourceConfig) -> Listing:
    """Of hf://datasets/NAME the dataset; of an address below it the folder or the files."""
    repository, inner = _repository_of(config.dataset, revision=config.revision)
    if not inner:
        return _of_repository(repository, config)
    below = {
        name[len(inner) + 1 :]: each for name, each in repository.place.files.items() if name.startswith(f"{inner}/")
    }
    if not below:
        _refuse_config(config)
        files = _in_repository(repository, inner)
        return _by_names(files, place=config.dataset, needs_token=repository.needs_token)
    place = dataclasses.replace(repository.place, shown=config.dataset, files=below)
    return _of_folder(place, config, needs_token=repository.needs_token)


def _repository_of(address: str, *, revision: str | None) -> tuple[Repository, str]:
    from pipelines.prepare.sources.files import hub

    name, said, inner = hub.address(address)
    return hub.repository(name, revision=said or revision), inner


def _in_repository(repository: Repository, pattern: str) -> list[Found]:
    matches = re.compile(glob_translate(pattern)).match
    files = repository.place.files
    if found := [files[pattern]] if pattern in files else [each for name, each in files.items() if matches(name)]:
        return found
    raise SourceError(
        f"{repository.name}: no file {pattern}", remedy="check the path; the page of the dataset lists its files"
    )


def _listing(found: Splits, *, kind: FileKind, place: str, below: bool = False) -> Listing:
    """The files that have rows, each with what its content is known by; their names are paths below the folder, or
    plain file names.
    """
    filled = _filled(found, kind=kind, place=place)
    files = list(dict.fromkeys(each for some in filled.values() for each in some))
    named = files if below else [dataclasses.replace(each, name=posixpath.basename(each.name)) for each in files]
    known = identity.known(named, kind=kind)
    data = dict(zip(files, known, strict=True))
    splits = {split: [data[each][0] for each in some] for split, some in filled.items()}
    entries = [{**data[each][1], "split": split} for split, some in filled.items() for each in some]
    return Listing(kind="files", splits=splits, identity={"kind": kind, "files": _said(entries)})


def _said(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Each file, or where these are very many, all of them by one digest: the manifest is to stay small."""
    if len(entries) <= _MOST_NAMED:
        return list(entries)
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return {"count": len(entries), "bytes": sum(entry["bytes"] for entry in entries), "sha256": digest}


def _filled(found: Splits, *, kind: FileKind, place: str) -> dict[str, list[Found]]:
    """The splits without the files that are certainly empty, and without those that have no others."""
    filled = {
        split: [each for each in files if file_kinds.has_rows(each.path, size=each.size, kind=kind)]
        for split, files in found.items()
    }
    left = {split: files for split, files in filled.items() if files}
    if not left:
        raise SourceError(f"{place}: no rows, expected at least one", remedy="check the files for their content")
    for split in sorted(filled.keys() - left.keys()):
        _log.warning("%s: split %r has no rows and is left out", place, split)
    return left


def _refuse_options(config: SourceConfig) -> None:
    _refuse_config(config)
    _refuse_revision(config)


def _refuse_config(config: SourceConfig) -> None:
    if config.config:
        raise SourceError(
            f"{without_access(config.dataset)}: --config chooses among those of a dataset card, but this has none",
            remedy="leave it out",
        )


def _refuse_revision(config: SourceConfig) -> None:
    if config.revision:
        raise SourceError(
            f"{without_access(config.dataset)}: --revision belongs to hub datasets, but these are files",
            remedy="leave it out",
        )
