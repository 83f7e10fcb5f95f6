"""Folders written by `save_to_disk`: the Arrow files of each split, in the order of its rows, and its features.

dataset_dict.json          {"splits": ["train", "test"]}, of a DatasetDict only
train/state.json           {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...], "_split": ...}
train/dataset_info.json    {"features": {...}, ...}

`load_from_disk` would copy a remote folder to this machine first, so the two small files are read here.
"""

import json
import posixpath
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.sources.resolve import data_files
from tfrecord_io.errors import SourceError
from tfrecord_io.format import json_fields
from tfrecord_io.shown import is_web, without_access

_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"


def is_saved(folder: str) -> bool:
    """Return whether the folder was written by `save_to_disk`."""
    if is_web(folder) or not data_files.is_folder(folder):
        return False
    return any(_content(folder, name) is not None for name in (_DICT, _STATE))


def read(folder: str) -> dict[str, tuple[list[str], Any]]:
    """Return the files and the features of each split. Raises: SourceError if something is missing or damaged."""
    if _content(folder, _DICT) is None:
        state = _read_json(folder, _STATE)
        loaded = state.get("_split") if state.get("_data_files") else None
        return {own_name(str(loaded or "")): _split(folder, "", state)}
    names = _read_json(folder, _DICT).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and "/" not in name for name in names):
        raise _damaged(folder, _DICT, "no list of splits")
    found = {name: _split(folder, name, _read_json(folder, posixpath.join(name, _STATE))) for name in names}
    return {name: split for name, split in found.items() if split[0]}


def _split(folder: str, split: str, state: dict[str, Any]) -> tuple[list[str], Any]:
    import datasets

    entries = state.get("_data_files")
    if not isinstance(entries, list):
        raise _damaged(folder, posixpath.join(split, _STATE), "no list of data files")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise SourceError(
            f"{without_access(folder)}: its rows are reordered by an indices file, as old releases of `datasets` wrote",
            remedy="load it and save it again with `save_to_disk`",
        )
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    for name in names:
        if not isinstance(name, str) or name != posixpath.basename(name) or name in ("", ".", ".."):
            raise _damaged(folder, posixpath.join(split, _STATE), f"the data file {name!r}")
    described = _read_json(folder, posixpath.join(split, _INFO)).get("features")
    features = None if described is None else datasets.Features.from_dict(described)
    root = storage.local_path(folder)
    absolute = folder if root is None else str(storage.local_path(root))
    return [storage.join(absolute, *filter(None, [split]), str(name)) for name in names], features


def own_name(loaded: str) -> str:
    """Return the split that a single dataset was `loaded` from, such as `test[:10%]`; `train` if not from one split."""
    names = {part.partition("[")[0] for part in loaded.split("+")}
    return (names.pop() if len(names) == 1 else "") or "train"


def _content(folder: str, name: str) -> bytes | None:
    try:
        with storage.as_source_error(folder):
            return storage.read_bytes(storage.join(folder, name), most_bytes=16 << 20)
    except FileNotFoundError:
        return None


def _read_json(folder: str, name: str) -> dict[str, Any]:
    if (content := _content(folder, name)) is None:
        raise _damaged(folder, name, "it is missing")
    try:
        return json_fields.mapping(json.loads(content))
    except (*json_fields.WRONG, RecursionError) as error:
        raise _damaged(folder, name, str(error) or "expected a JSON object") from error


def _damaged(folder: str, name: str, what: str) -> SourceError:
    return SourceError(
        f"{without_access(folder)}: {name} is not as `save_to_disk` writes it: {what}",
        remedy="copy the folder again, with all its files",
    )
