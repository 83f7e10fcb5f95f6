"""Recognizing an output that is already complete, so that nothing is ingested, planned or made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.dataset import fingerprint, own_files, source_record, tfds
from pipelines.prepare.launch.opened_request import OpenedRequest
from pipelines.prepare.options.config import EngineName
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import FormatError
from tfrecord_io.format.json_fields import WRONG, count, mapping
from tfrecord_io.manifest import Manifest, Split

__all__ = ["find"]


def find(request: OpenedRequest, items: Mapping[str, Any]) -> tuple[Manifest, list[str]] | None:
    """Return the output's dataset and the names of the requested splits if nothing is left to do, else None.

    `items` are what the fingerprint covers. Raises: ManifestError if the manifest is damaged.
    """
    config = request.config
    root = config.output.root
    manifest = own_files.read_manifest(root)
    if manifest is None or manifest.fingerprint != fingerprint.fingerprint_of(items):
        return None
    rows = _rows(request, manifest)
    if rows is None or not set(
        selection.needed_source_splits(config.source, list(request.found.listing.splits))
    ) <= set(rows):
        return None
    chosen = selection.select_ranges(config.source, rows)
    if not all(name in manifest.splits and _is_same(manifest, each) for name, each in chosen.items()):
        return None
    splits = [manifest.splits[name] for name in chosen]
    allowed = _are_few(splits, limit=config.max_error_rate)
    done = allowed and _is_wanted(manifest, engine=config.engine) and _is_whole(root, manifest, splits)
    return (manifest, list(chosen)) if done else None


def _are_few(splits: Sequence[Split], *, limit: float) -> bool:
    """Whether no more rows were rejected than this run allows. If there were more, the commit reports them."""
    ledgers = [split.ledger for split in splits]
    bad = sum(sum(ledger.unusable.values()) for ledger in ledgers)
    return bad <= limit * sum(ledger.rows_in - ledger.rows_left_out for ledger in ledgers)


def _is_wanted(manifest: Manifest, *, engine: EngineName) -> bool:
    """Whether the engines that made it may have done so: with --engine hf only the reference."""
    made_by = {name for names in manifest.engines.get("splits", {}).values() for name in names}
    return engine != "hf" or all(map(engines.is_reference, made_by))


def _is_whole(root: str, manifest: Manifest, splits: Sequence[Split]) -> bool:
    """Whether the shards are there, and the files that a commit writes beside them."""
    sizes = storage.sizes(root)
    shards = [shard for split in splits for shard in split.shards]
    return (
        all(sizes.get(shard.name) == shard.num_bytes for shard in shards)
        and tfds.files(manifest).keys() <= sizes.keys()
        and bool(storage.list_names(storage.join(root, "tokenizer")))
    )


def _rows(request: OpenedRequest, manifest: Manifest) -> dict[str, int] | None:
    """Return the row counts of the source's splits as the job found them.

    None if they are unknown, or if the source has moved since: then the new location must be written down for `verify
    --repair` and `trace`.
    """
    here = source_record.location_of(request.config.source, request.found, request.functions)
    try:
        place = dict(source_record.read(request.config.output.root, manifest.fingerprint))
        rows = {name: count(rows) for name, rows in mapping(place.pop("rows")).items()}
        return rows if place == {"more": [], **here} else None
    except (FormatError, *WRONG):
        return None


def _is_same(manifest: Manifest, selected: selection.SelectedSplit) -> bool:
    """Whether the dataset has exactly the requested rows under this name."""
    ranges = [list(span) for span in selected.ranges]
    is_from = source_record.origin_of(manifest, selected.name) == selected.source_split
    return bool(is_from and manifest.source["splits"].get(selected.name) == ranges)
