"""Recognizing an output that is already complete, so that nothing is ingested, planned or made again."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.prepare import storage
from pipelines.prepare.dataset import fingerprint, own_files, reservation, source_record, tfds
from pipelines.prepare.launch.request import Request
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import FormatError
from tfrecord_io.format.json_fields import WRONG, count, mapping
from tfrecord_io.manifest import Manifest, Split

__all__ = ["find"]


def find(request: Request) -> tuple[Manifest, int, int] | None:
    """Return the output's dataset, 0 shards to make, and the number of requested ones; None if something is left to do.

    Raises: ManifestError if the manifest is damaged.
    """
    config, items = request.config, request.early_items()
    root = config.output.root
    manifest = None if items is None or config.overwrite else own_files.read_manifest(root)
    if items is None or manifest is None or manifest.fingerprint != fingerprint.fingerprint_of(items):
        return None
    rows = _rows(request, manifest)
    needed = selection.needed_source_splits(config.source, list(request.found.listing.splits))
    if rows is None or not set(needed) <= set(rows):
        return None
    chosen = selection.select_ranges(config.source, rows)
    for name, selected in chosen.items():
        ranges = [list(span) for span in selected.ranges]
        is_there = name in manifest.splits and manifest.source["splits"].get(name) == ranges
        if not is_there or source_record.origin_of(manifest, name) != selected.source_split:
            return None
    splits = [manifest.splits[name] for name in chosen]
    made_by = {name for names in manifest.engines.get("splits", {}).values() for name in names}
    if config.engine == "hf" and not all(map(engines.is_reference, made_by)):
        return None
    if not _are_few(splits, limit=config.max_error_rate) or not _is_whole(root, manifest, splits):
        return None
    reservation.sweep(root)
    return manifest, 0, sum(len(split.shards) for split in splits)


def _are_few(splits: Sequence[Split], *, limit: float) -> bool:
    """Return whether no more rows were rejected than this run allows. If there were more, the commit reports them."""
    ledgers = [split.ledger for split in splits]
    bad = sum(sum(ledger.unusable.values()) for ledger in ledgers)
    return bad <= limit * sum(ledger.rows_in - ledger.rows_left_out for ledger in ledgers)


def _is_whole(root: str, manifest: Manifest, splits: Sequence[Split]) -> bool:
    """Return whether the shards are there, and the files that a commit writes beside them."""
    sizes = storage.sizes(root)
    shards = [shard for split in splits for shard in split.shards]
    return (
        all(sizes.get(shard.name) == shard.num_bytes for shard in shards)
        and tfds.files(manifest).keys() <= sizes.keys()
        and bool(storage.list_names(storage.join(root, "tokenizer")))
    )


def _rows(request: Request, manifest: Manifest) -> dict[str, int] | None:
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
