"""Where the source of a finished dataset is, for `verify --repair` and `trace`: OUT/.prep/FINGERPRINT/source.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from tfrecord_io.errors import FormatError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import WRONG, items, mapping, optional, text

__all__ = ["read", "source_path"]

_FILE = "source.json"


def source_path(root: str, fingerprint: str) -> str:
    """The file that says where the source is, and through which of the user's steps its rows go."""
    return storage.join(root, WORK_FOLDER, fingerprint, _FILE)


def read(root: str, fingerprint: str) -> Mapping[str, Any]:
    """Where the job of a finished dataset found its source. Raises: FormatError if that is not known any more."""
    path = source_path(root, fingerprint)
    try:
        place = mapping(_load(storage.read_bytes(path), place=path))
        text(place["dataset"])
        place["more"] = [text(path) for path in items(place.get("more", []))]
        optional(text, place.get("config"))
        optional(text, place.get("revision"))
    except (FileNotFoundError, *WRONG) as error:
        raise FormatError(
            f"{path}: not there, or damaged: it says from where the dataset was made",
            remedy="copy .prep/ again from where the dataset was made, or build it anew with --overwrite",
        ) from error
    return place


def _load(content: bytes, *, place: str) -> Any:
    try:
        return json_fields.load(content)
    except ValueError as error:
        raise FormatError(f"{place}: not JSON ({error})", remedy="start over with --overwrite") from error
