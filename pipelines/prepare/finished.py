"""Whether an output already holds what is asked for: then nothing is ingested, planned or made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.prepare import storage, workspace
from pipelines.prepare.resolving import Begun
from pipelines.prepare.sources import selection
from tfrecord_io.errors import FormatError
from tfrecord_io.json_fields import WRONG, count, mapping
from tfrecord_io.manifest import Manifest

__all__ = ["find"]


def find(begun: Begun, items: Mapping[str, Any]) -> tuple[Manifest, list[str]] | None:
    """The dataset in the output and the splits that are asked for, if all of their shards are there; else None.

    `items` are what the fingerprint covers. Raises: ManifestError if the manifest is damaged.
    """
    root = begun.config.output.root
    manifest = workspace.read_manifest(root)
    if manifest is None or manifest.fingerprint != workspace.fingerprint_of(items):
        return None
    rows = _rows(root, manifest.fingerprint)
    if rows is None or set(rows) < set(selection.needed(begun.config.source, list(begun.found.listing.splits))):
        return None
    chosen = selection.selected(begun.config.source, rows)
    if not all(name in manifest.splits and _is_same(manifest, each) for name, each in chosen.items()):
        return None
    sizes = storage.sizes(root)
    shards = [shard for name in chosen for shard in manifest.splits[name].shards]
    return (manifest, list(chosen)) if all(sizes.get(shard.name) == shard.num_bytes for shard in shards) else None


def _rows(root: str, fingerprint: str) -> dict[str, int] | None:
    """The rows of the source's splits, as the job found them; None if that is not known."""
    try:
        place = workspace.read_place(root, fingerprint)
        return {name: count(rows) for name, rows in mapping(place["rows"]).items()}
    except (FormatError, *WRONG):
        return None


def _is_same(manifest: Manifest, selected: selection.Selected) -> bool:
    """Whether the dataset has the very rows that are asked for under this name."""
    source = manifest.source
    origin = source.get("origins", {}).get(selected.name, selected.name)
    ranges = [list(span) for span in selected.ranges]
    return bool(origin == selected.origin and source["splits"].get(selected.name) == ranges)
