"""Find the splits, features and Arrow files in a folder of `save_to_disk`.

    dataset_dict.json          {"splits": ["train", "test"]}, for a DatasetDict only
    train/state.json           {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...], "_split": ...}
    train/dataset_info.json    {"features": {...}, ...}

`load_from_disk` is not used, because it first copies a remote folder to this machine.
"""

import json
import posixpath
from collections.abc import Callable
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.sources.resolve import data_files, library
from tfrecord_io.errors import SourceError
from tfrecord_io.format.json_fields import NAME, WRONG, items, mapping, text
from tfrecord_io.shown import is_web, without_access

_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"


def is_saved(folder: str) -> bool:
    if is_web(folder) or not data_files.is_folder(folder):
        return False
    return any(_content(folder, name) is not None for name in (_DICT, _STATE))


def read(folder: str) -> dict[str, tuple[list[str], Any]]:
    """Return each split's Arrow files, in row order, and `Features`. Raises: SourceError."""
    if _content(folder, _DICT) is None:
        loaded = _read(folder, _STATE, lambda state: state.get("_split") if state.get("_data_files") else None)
        return {own_name(str(loaded or "")): _split(folder, "")}
    names = _read(folder, _DICT, lambda saved: list(map(text, items(saved.get("splits")))))
    library.require_split_names(names, where=without_access(folder))
    splits = {name: _split(folder, name) for name in names}
    return {name: split for name, split in splits.items() if split[0]}


def _split(folder: str, split: str) -> tuple[list[str], Any]:
    import datasets

    state = posixpath.join(split, _STATE)
    if _read(folder, state, lambda saved: saved.get("_indices_data_files") or saved.get("_indices_files")):
        raise SourceError(
            f"{without_access(folder)}: its rows are reordered by an indices file, as old releases of `datasets` wrote",
            remedy="load the dataset with `load_from_disk`, and save it again with `save_to_disk`",
        )
    names = _read(
        folder, state, lambda saved: [text(mapping(file)["filename"], NAME) for file in items(saved.get("_data_files"))]
    )
    described = _read(folder, posixpath.join(split, _INFO), lambda saved: saved.get("features"))
    features = None if described is None else datasets.Features.from_dict(described)
    return [storage.join(storage.local_path(folder) or folder, split, name) for name in names], features


def own_name(loaded: str) -> str:
    """Return the split that `loaded`, a specification such as `test[:10%]`, names; `train` for none or several."""
    names = {part.partition("[")[0] for part in loaded.split("+")}
    return (names.pop() if len(names) == 1 else "") or "train"


def _content(folder: str, name: str) -> bytes | None:
    try:
        with storage.as_source_error(folder):
            return storage.read_bytes(storage.join(folder, name), most_bytes=16 << 20)
    except FileNotFoundError:
        return None


def _read(folder: str, name: str, parse: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        if (content := _content(folder, name)) is None:
            raise ValueError("no such file")
        return parse(mapping(json.loads(content)))
    except (*WRONG, RecursionError) as error:
        cause = f"{without_access(folder)}: {name} is missing or not as `save_to_disk` writes it ({error})"
        raise SourceError(cause, remedy="copy the folder again, with all its files") from error
