"""Commit, the last step of a build: combine all receipts into the manifest."""

import collections
import heapq
import itertools
import logging
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import tfrecord_io
from pipelines.prepare import layouts, storage
from pipelines.prepare.dataset import own_files, plan_files, receipts, reservation, tfds
from pipelines.prepare.dataset.job import Job, tokenizer_files
from pipelines.prepare.dataset.own_files import generations_of
from pipelines.prepare.sources.rows.unused_rows import NAMED_ROWS, UnusedRows, remedy_of, words_of
from tfrecord_io import manifest
from tfrecord_io.errors import OutputError, PrepError, RowsRejectedError
from tfrecord_io.manifest import Generation, Manifest, Split
from tfrecord_io.shown import some

_log = logging.getLogger(__name__)


def commit(job: Job, *, items: Mapping[str, Any], identity: Mapping[str, Any], max_error_rate: float) -> Manifest:
    """Write the tokenizer, the TFDS files and, last, the manifest; return the manifest.

    `items`: the fingerprint's values by name. `identity`: see `SourceListing.identity`. Splits committed earlier stay
    in the manifest. An append keeps the previous manifest as `manifest-N.json`. Raises: OutputError if a shard is
    missing, or another job has written to the folder; LedgerError; RowsRejectedError.
    """
    # Read the versions before the manifest, so that no other job's manifest is replaced.
    tokenizer = {f"tokenizer/{name}": content for name, content in tokenizer_files(job).items()}
    versions = storage.versions([storage.join(job.root, name) for name in (*own_files.OWN_FILES, *tokenizer)])
    receipts_of = {split: _receipts(job, split) for split in job.splits}
    rows = {split: job.splits[split].num_rows for split in sorted(job.splits)}
    splits = {split: receipts.to_split(receipts_of[split], rows_in=rows_in) for split, rows_in in rows.items()}
    unused = {}
    for name, split in splits.items():
        rejected = itertools.chain.from_iterable(receipt.first_rejected for receipt in receipts_of[name])
        first = heapq.nsmallest(NAMED_ROWS, rejected, key=lambda row: row.row)
        ledger = split.ledger
        unused[name] = UnusedRows(rejected=ledger.rejected, filtered=ledger.filtered, first=tuple(first))
    check_error_rate(unused, rows=rows, limit=max_error_rate)
    before = _manifest_before(job)
    if job.appends_to is not None and before is not None and before.fingerprint == job.fingerprint:
        _delete_tfds(job)
        _remove_copy(job)
        return before  # an earlier attempt made the commit
    splits, ranges, origins, engines = _merge(job, before, splits, receipts_of)
    made = Generation(
        fingerprint=job.fingerprint,
        tasks={name: len(own) for name, own in receipts_of.items()},
        rows={name: split.ranges for name, split in job.splits.items()},
    )
    result = Manifest(
        name=job.name,
        fingerprint=job.fingerprint,
        schema=job.spec.schema,
        layout=layouts.manifest_entry(job.spec.layout, length=job.spec.length),
        tokenizer=job.spec.facts,
        splits=splits,
        label_names=job.spec.columns.label_names,
        compression=job.spec.compression,
        index_stride=job.spec.index_stride,
        source={**identity, "splits": ranges, **({"origins": origins} if origins else {})},
        options=items,
        engines={"splits": engines},
        versions={
            "prep-tfrecords": tfrecord_io.__version__,
            **{name: metadata.version(name) for name in ("datasets", "tokenizers", "transformers")},
        },
        generations=(*generations_of(before), made) if job.appends_to is not None and before is not None else (),
    )
    _write(job, result, {**tokenizer, **tfds.files(result), manifest.FILE_NAME: manifest.dump(result)}, versions)
    _remove_copy(job)
    return result


def _merge(
    job: Job, before: Manifest | None, splits: dict[str, Split], receipts_of: Mapping[str, list[receipts.Receipt]]
) -> tuple[dict[str, Split], dict[str, Any], dict[str, str], dict[str, Any]]:
    old_splits, old_engines = (before.splits, before.engines.get("splits", {})) if before else ({}, {})
    source = before.source if before else {}
    ranges, origins, engines = dict(source.get("splits", {})), dict(source.get("origins", {})), dict(old_engines)
    for name, split in job.splits.items():
        counts: dict[str, Any] = {}
        if job.appends_to is not None and name in old_splits:
            old, new = old_splits[name], splits[name]
            # Shards of one length stay together.
            shards = tuple(sorted((*old.shards, *new.shards), key=lambda shard: shard.length or 0))
            labels = old.labels.joined(new.labels) if old.labels and new.labels else None
            splits[name] = Split(shards=shards, labels=labels)
            counts = {engine: dict(rows) for engine, rows in engines.get(name, {}).items()}
        for receipt in receipts_of[name]:
            of_engine = counts.setdefault(receipt.engine, {"rows": 0, "rows_checked": 0})
            of_engine["rows"] += receipt.ledger.rows_of_split
            of_engine["rows_checked"] += receipt.rows_checked
        engines[name] = dict(sorted(counts.items()))
        ranges[name] = spans = [list(span) for span in (*split.ranges_before, *split.ranges)]
        last = len(split.ranges_before) - 1
        if 0 <= last < len(spans) - 1 and spans[last][1] == spans[last + 1][0]:  # join adjacent ranges
            spans[last][1] = spans.pop(last + 1)[1]
        origins.pop(name, None)
        if split.source_split != name:
            origins[name] = split.source_split
    return {**old_splits, **splits}, ranges, origins, engines


def _remove_copy(job: Job) -> None:
    if job.ingested is None:
        return
    try:
        storage.delete(job.ingested, inside=job.root)
    except PrepError as error:
        _log.warning("%s is no longer needed, but could not be deleted: %s", job.ingested, error.cause)


def check_error_rate(unused: Mapping[str, UnusedRows], *, rows: Mapping[str, int], limit: float) -> None:
    """Raise RowsRejectedError if more than the share `limit` of unfiltered rows is rejected. `rows`: by split."""
    total, rejected = sum(rows.values()), collections.Counter[str]()
    reasons, named = list[str](), list[str]()
    for split, unused_rows in sorted(unused.items()):
        total -= sum(unused_rows.filtered.values())
        rejected.update(unused_rows.rejected)
        counts = [f"{words_of(reason)} in {count:,}" for reason, count in sorted(unused_rows.rejected.items())]
        reasons += [f"{split}: {', '.join(counts)}"] if counts else []
        for row in unused_rows.first:  # a chat template's message may be long, so only one is shown
            named.append(f"{split}[{row.row}] ({words_of(row.reason) if named else row.why})")
    if rejected.total() <= limit * total:
        return
    least = "" if all(unused_rows.exact for unused_rows in unused.values()) else "at least "
    such_as = f", such as {', '.join(named[:3])}" if named else ""
    raise RowsRejectedError(
        f"{least}{rejected.total():,} of {some(total, 'row')} cannot be used ({'; '.join(reasons)}){such_as}; "
        f"--max-error-rate {limit:g} allows {int(limit * total):,}",
        remedy=f"{remedy_of(rejected) or 'correct or filter such rows'}, or allow a share of them with "
        "--max-error-rate",
    )


def _receipts(job: Job, split: str) -> list[receipts.Receipt]:
    plan = plan_files.read(job, split)
    tasks = plan.tasks() if plan else []
    valid = {task.index: receipt for task, receipt in zip(tasks, receipts.find(job, tasks), strict=True) if receipt}
    if not tasks or len(valid) < len(tasks):
        missing = [job.shard_name(task) for task in tasks if task.index not in valid]
        lost = f"{some(len(missing), 'shard')} ({', '.join(missing[:3])})" if missing else "its plan"
        raise OutputError(
            f"{job.root}: split {split!r} lacks {lost}",
            remedy="run the same command again; only the missing files are made",
        )
    return list(valid.values())


def _manifest_before(job: Job) -> Manifest | None:
    before = own_files.read_manifest(job.root)
    if before is None and job.appends_to is not None:
        raise OutputError(
            f"{job.root}: the dataset to append to is gone",
            remedy="build it again without --append, which takes all rows",
        )
    if before is not None and before.fingerprint not in (job.fingerprint, job.appends_to):
        raise OutputError(
            f"{storage.join(job.root, manifest.FILE_NAME)}: another job has written this file meanwhile: got "
            f"fingerprint {before.fingerprint}, expected {job.fingerprint}",
            remedy="choose another --output, or let one job at a time write to this folder and start over with "
            "--overwrite",
        )
    return before


def _write(job: Job, result: Manifest, files: Mapping[str, bytes], versions: Mapping[str, int]) -> None:
    if job.appends_to is not None:
        # Keep the previous manifest for readers that continue with only its rows.
        content = storage.read_bytes(storage.join(job.root, manifest.FILE_NAME))
        if manifest.parse(content).fingerprint == job.appends_to:
            path = storage.join(job.root, manifest.former_name(len(result.generations) - 2))
            storage.write_bytes(path, content, inside=job.root)
    for name, content in files.items():  # the manifest last
        if name in (next(iter(files)), manifest.FILE_NAME):
            reservation.require_own(job)
        path = storage.join(job.root, name)
        storage.write_bytes(path, content, inside=job.root, replacing=versions.get(path))
    if result.generations:
        _delete_tfds(job)


def _delete_tfds(job: Job) -> None:
    for name in tfds.NAMES:
        storage.delete(storage.join(job.root, name), inside=job.root)
