"""What a request is, for a later run to compare: what decides the bytes of its dataset, and where its source is."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from pipelines.prepare.dataset import fingerprint
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.options.source_config import SOURCE_OPTIONS
from pipelines.prepare.sources.rows.hold_out import HoldOut
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io import manifest
from tfrecord_io.shown import without_access

__all__ = ["fingerprint_items", "source_location"]


def fingerprint_items(
    config: PrepareConfig,
    functions: Sequence[UserFunction],
    *,
    source: Mapping[str, Any],
    tokenizer_sha256: str,
    length: int,
    held: Sequence[HoldOut],
) -> dict[str, Any]:
    """Return what the fingerprint covers. `source` is the identity of the source, `held` the rows to hold out."""
    versions = {
        "format": manifest.FORMAT_VERSION,
        "algorithm": fingerprint.ALGORITHM,
        **{name: metadata.version(name) for name in ("tokenizers", "transformers")},
        # What zlib makes of the same bytes differs between its releases, and even more in zlib-ng.
        **({"zlib": zlib.ZLIB_RUNTIME_VERSION} if config.output.compression == "gzip" else {}),
    }
    return {
        **config.fingerprint_options(),
        **({"steps": [step.identity() for step in functions]} if functions else {}),
        **({"hold_out": [each.to_json() for each in held]} if held else {}),
        "max_length": length,
        "tokenizer": tokenizer_sha256,
        "source": dict(source),
        "versions": versions,
    }


def source_location(
    config: SourceConfig, found: OpenedSource, functions: Sequence[UserFunction] = ()
) -> dict[str, Any]:
    """Return what is needed to open the source again, as source.json holds it: an absolute path, an address without
    credentials or a pinned hub id, and the text of the user functions.
    """
    identity = found.listing.identity
    place = {
        "dataset": _address(config.dataset, identity),
        "config": config.config,
        "revision": identity.get("revision"),
        **{
            name: list(each) if isinstance(each, tuple) else each
            for name in (*SOURCE_OPTIONS, "object_splits")
            if (each := getattr(config, name))
        },
    }
    if config.more_paths:
        place["more"] = [_address(path, identity) for path in config.more_paths]
    return {**place, "steps": [step.to_json() for step in functions]} if functions else place


def _address(dataset: str, identity: Mapping[str, Any]) -> str:
    if "://" in dataset or identity["kind"] == "hub":
        return without_access(dataset)
    return os.path.abspath(os.path.expanduser(dataset))
