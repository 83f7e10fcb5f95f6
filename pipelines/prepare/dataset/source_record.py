"""Source of a dataset: its identity in the manifest, and its location in OUT/.prep/FINGERPRINT/source.json."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.source_config import SOURCE_OPTIONS
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import FormatError
from tfrecord_io.format import json_fields
from tfrecord_io.manifest import Manifest
from tfrecord_io.shown import without_access

_FILE = "source.json"


def identity_of(manifest: Manifest) -> dict[str, Any]:
    """Return the identity of a dataset's source, as in `SourceListing.identity`, from the dataset's manifest."""
    return {name: value for name, value in manifest.source.items() if name not in ("splits", "origins")}


def files_of(manifest: Manifest) -> list[Mapping[str, Any]]:
    """Return the entries of the source's files in a manifest: empty for the Hub, or if it has only their digest."""
    files = manifest.source.get("files", ())
    return [] if isinstance(files, Mapping) else list(files)


def origin_of(manifest: Manifest, split: str) -> str:
    """Return the name of the source split that the dataset's split `split` was made from."""
    return str(manifest.source.get("origins", {}).get(split, split))


def source_path(root: str, fingerprint: str) -> str:
    return storage.join(root, WORK_FOLDER, fingerprint, _FILE)


def read(root: str, fingerprint: str) -> Mapping[str, Any]:
    """Read source.json, which says where a dataset's source is. Raises: FormatError."""
    path = source_path(root, fingerprint)
    try:
        texts = dict.fromkeys(("config", "revision", "format", "sample_by"), str | None)
        lists = dict.fromkeys(("more", "data_files", "source_options", "object_splits"), tuple[str, ...])
        source = json_fields.checked(json_fields.load(storage.read_bytes(path)), {"dataset": str}, {**texts, **lists})
        source.setdefault("more", [])
        for name in lists.keys() & source.keys() - {"more"}:
            source[name] = tuple(source[name])
    except (FileNotFoundError, *json_fields.WRONG) as error:
        raise FormatError(
            f"{path}: missing or damaged; this file says where the source of the dataset is",
            remedy="copy .prep/ again from where the dataset was made, or build it again with --overwrite",
        ) from error
    return source


def location_of(config: SourceConfig, opened: OpenedSource, functions: Sequence[UserFunction] = ()) -> dict[str, Any]:
    """Return the content of source.json: the source's place, pinned revision and functions, without credentials."""
    identity = opened.listing.identity
    place = {
        "dataset": _address(config.dataset, identity),
        "config": config.config,
        "revision": identity.get("revision"),
        **{name: value for name in (*SOURCE_OPTIONS, "object_splits") if (value := getattr(config, name))},
    }
    if config.data_files:
        place["data_files"] = tuple(map(without_access, config.data_files))
    if config.more_paths:
        place["more"] = [_address(path, identity) for path in config.more_paths]
    return {**place, "functions": list(map(dataclasses.asdict, functions))} if functions else place


def _address(dataset: str, identity: Mapping[str, Any]) -> str:
    if "://" in dataset or identity["kind"] == "hub":
        return without_access(dataset)
    return os.path.abspath(os.path.expanduser(dataset))
