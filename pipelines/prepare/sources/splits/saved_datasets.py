"""Folders that `save_to_disk` wrote: the Arrow files of each split, in the order of its rows.

dataset_dict.json          {"splits": ["train", "test"]}, of a DatasetDict only
train/state.json           {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...], "_split": ...}
train/dataset_info.json    {"features": {...}, ...}
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Mapping
from typing import Any

from pipelines.prepare.sources.files.folder_listing import Found, Place
from tfrecord_io.errors import SourceError

__all__ = ["features", "is_saved", "splits"]

_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"


def is_saved(place: Place) -> bool:
    """Whether `save_to_disk` wrote the folder."""
    return _DICT in place.files or _STATE in place.files


def splits(place: Place) -> dict[str, list[Found]]:
    """The files of each split; none for one without rows. Raises: SourceError if they are not all there."""
    if _DICT not in place.files:
        state = _said(place, _STATE)
        return {_own_name(state): _files(place, "", state)}
    names = _said(place, _DICT).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and "/" not in name for name in names):
        raise _damaged(place, _DICT, "no list of splits")
    return {name: _files(place, name, _said(place, posixpath.join(name, _STATE))) for name in names}


def features(place: Place, found: Collection[str]) -> dict[str, Any]:
    """The columns of each split, which has its own; nothing of one of which nothing is said."""
    paths = {name: posixpath.join(name if _DICT in place.files else "", _INFO) for name in found}
    said = {name: _said(place, path).get("features") for name, path in paths.items() if path in place.files}
    return {name: each for name, each in said.items() if each is not None}


def _files(place: Place, folder: str, state: Mapping[str, Any]) -> list[Found]:
    entries = state.get("_data_files")
    if not isinstance(entries, list):
        raise _damaged(place, posixpath.join(folder, _STATE), "no list of data files")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise SourceError(
            f"{place.shown}: its rows are in another order than its files, as old releases of `datasets` wrote it",
            remedy="load it and save it again with `save_to_disk`",
        )
    return [_file(place, folder, entry) for entry in entries]


def _file(place: Place, folder: str, entry: Any) -> Found:
    name = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        raise _damaged(place, posixpath.join(folder, _STATE), "a data file without a name")
    # What is not below the folder is not in the listing either.
    if (found := place.files.get(posixpath.join(folder, name))) is None:
        raise SourceError(
            f"{place.shown}: {posixpath.join(folder, name)} is not there, though {_STATE} names it",
            remedy="copy the folder again, with all that is in it",
        )
    return found


def _own_name(state: Mapping[str, Any]) -> str:
    """The name that a saved dataset has for itself: of one split or slice that split's, else `train`."""
    said = str(state.get("_split") or "") if state.get("_data_files") else ""
    names = {part.partition("[")[0] for part in said.split("+")}
    return (names.pop() if len(names) == 1 else "") or "train"


def _said(place: Place, name: str) -> dict[str, Any]:
    content = place.read(name)
    if content is None:
        raise _damaged(place, name, "it is not there")
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(place, name, str(error)) from error
    if not isinstance(said, dict):
        raise _damaged(place, name, "no names and values")
    return said


def _damaged(place: Place, name: str, what: str) -> SourceError:
    return SourceError(
        f"{place.shown}: {name} is not as `save_to_disk` writes it: {what}",
        remedy="copy the folder again, with all that is in it",
    )
