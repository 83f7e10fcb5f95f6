"""Folders written by `save_to_disk`: the Arrow files of each split, in the order of its rows.

dataset_dict.json          {"splits": ["train", "test"]}, of a DatasetDict only
train/state.json           {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...], "_split": ...}
train/dataset_info.json    {"features": {...}, ...}
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Mapping
from typing import Any

from pipelines.prepare.sources.files.folder_listing import FolderListing, ListedFile
from tfrecord_io.errors import SourceError

__all__ = ["features", "is_saved", "splits"]

_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"


def is_saved(listing: FolderListing) -> bool:
    """Whether the folder was written by `save_to_disk`."""
    return _DICT in listing.files or _STATE in listing.files


def splits(listing: FolderListing) -> dict[str, list[ListedFile]]:
    """Return the files of each split; none for a split without rows. Raises: SourceError if a file is missing."""
    if _DICT not in listing.files:
        state = _read_json(listing, _STATE)
        return {_own_name(state): _files(listing, "", state)}
    names = _read_json(listing, _DICT).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and "/" not in name for name in names):
        raise _damaged(listing, _DICT, "no list of splits")
    return {name: _files(listing, name, _read_json(listing, posixpath.join(name, _STATE))) for name in names}


def features(listing: FolderListing, found: Collection[str]) -> dict[str, Any]:
    """Return the described columns of each split (JSON, as `datasets` writes it); splits without any are left out."""
    paths = {name: posixpath.join(name if _DICT in listing.files else "", _INFO) for name in found}
    described = {
        name: _read_json(listing, path).get("features") for name, path in paths.items() if path in listing.files
    }
    return {name: each for name, each in described.items() if each is not None}


def _files(listing: FolderListing, folder: str, state: Mapping[str, Any]) -> list[ListedFile]:
    entries = state.get("_data_files")
    if not isinstance(entries, list):
        raise _damaged(listing, posixpath.join(folder, _STATE), "no list of data files")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise SourceError(
            f"{listing.shown}: its rows are reordered by an indices file, as old releases of `datasets` wrote them",
            remedy="load it and save it again with `save_to_disk`",
        )
    return [_file(listing, folder, entry) for entry in entries]


def _file(listing: FolderListing, folder: str, entry: Any) -> ListedFile:
    name = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        raise _damaged(listing, posixpath.join(folder, _STATE), "a data file without a name")
    # A path that leads out of the folder is not in the listing.
    if (found := listing.files.get(posixpath.join(folder, name))) is None:
        raise SourceError(
            f"{listing.shown}: {posixpath.join(folder, name)} is missing, though {_STATE} names it",
            remedy="copy the folder again, with all its files",
        )
    return found


def _own_name(state: Mapping[str, Any]) -> str:
    """Return the split that a saved single dataset was loaded from, or `train` if that is not one split."""
    loaded = str(state.get("_split") or "") if state.get("_data_files") else ""
    names = {part.partition("[")[0] for part in loaded.split("+")}
    return (names.pop() if len(names) == 1 else "") or "train"


def _read_json(listing: FolderListing, name: str) -> dict[str, Any]:
    content = listing.read(name)
    if content is None:
        raise _damaged(listing, name, "it is missing")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(listing, name, str(error)) from error
    if not isinstance(document, dict):
        raise _damaged(listing, name, "expected a JSON object")
    return document


def _damaged(listing: FolderListing, name: str, what: str) -> SourceError:
    return SourceError(
        f"{listing.shown}: {name} is not as `save_to_disk` writes it: {what}",
        remedy="copy the folder again, with all its files",
    )
