"""The last step: from all receipts to the manifest, which is written last and makes the dataset exist."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import tfrecord_io
from pipelines.prepare import storage
from pipelines.prepare.crosscheck.comparing import EngineMismatch
from pipelines.prepare.dataset import engine_mismatch, made_shards, own_files, plan_files, receipts, reservation, tfds
from pipelines.prepare.dataset.job import Job, tokenizer_files
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.sources.columns.rejected import NAMED_ROWS, RejectedRow
from pipelines.prepare.tokenize import engines
from tfrecord_io import manifest
from tfrecord_io.errors import OutputError, PrepError, RowsRejectedError
from tfrecord_io.format.ledger import LEFT_OUT
from tfrecord_io.manifest import Manifest, Split

__all__ = ["check_error_rate", "commit"]

_log = logging.getLogger(__name__)


def commit(job: Job, *, items: Mapping[str, Any], identity: Mapping[str, Any], max_error_rate: float) -> Manifest:
    """Writes the tokenizer, the files for TFDS, and the manifest. Splits that were committed before stay.

    Raises: OutputError if a shard is missing, or another job has written here meanwhile; LedgerError if rows are
        missing; RowsRejectedError if too many were rejected.
    """
    # Before what is read: a manifest that comes in between is not the one that was read, and is not replaced.
    seen = storage.generations(_paths(job))
    made = {split: _receipts(job, split) for split in job.splits}
    splits = {
        split: receipts.to_split(found, rows_in=job.splits[split].num_rows) for split, found in sorted(made.items())
    }
    rejected = {split: (ledger.rejected, _first(made[split])) for split, ledger in _ledgers(splits).items()}
    check_error_rate(rejected, rows={split: job.splits[split].num_rows for split in splits}, limit=max_error_rate)
    before = _manifest_before(job)
    mismatch = engine_mismatch.read(job)
    if before is not None and mismatch is not None:
        _require_trusted(before, mismatch, made=set(made), root=job.root)
    result = Manifest(
        name=job.name,
        fingerprint=job.fingerprint,
        schema=job.spec.schema,
        layout={"name": job.spec.layout.name, "max_length": job.spec.length, **job.spec.layout.non_default_options()},
        tokenizer=job.spec.facts,
        splits={**(before.splits if before else {}), **splits},
        label_names=job.spec.columns.label_names,
        compression=job.spec.compression,
        index_stride=job.spec.index_stride,
        source={**identity, **_taken(job, before)},
        options=items,
        engines=_engines(before, made, mismatch),
        versions={
            "prep-tfrecords": tfrecord_io.__version__,
            **{name: metadata.version(name) for name in ("datasets", "tokenizers", "transformers")},
        },
    )
    _write(job, result, seen)
    _remove_copy(job)
    return result


def _remove_copy(job: Job) -> None:
    """Deletes the ingested copy of the source, once the dataset is complete. What is left of it does no harm."""
    if job.ingested is None:
        return
    try:
        storage.delete(job.ingested, inside=job.root)
    except PrepError as error:
        _log.warning("%s is of no more use, but could not be deleted: %s", job.ingested, error.cause)


def check_error_rate(
    rejected: Mapping[str, tuple[Mapping[str, int], tuple[RejectedRow, ...]]],
    *,
    rows: Mapping[str, int],
    limit: float,
    exact: bool = True,
) -> None:
    """`rejected` is, for each split, the count of rows by reason and the first rows; there may be more of both unless
    they are `exact`. Rows that are left out on purpose are neither good nor bad.

    Raises: RowsRejectedError if more than `limit` (a fraction) of the rows cannot be used.
    """
    on_purpose = sum(reasons.get(reason, 0) for reasons, _ in rejected.values() for reason in LEFT_OUT)
    total = sum(rows.values()) - on_purpose
    bad = sum(sum(reasons.values()) for reasons, _ in rejected.values()) - on_purpose
    if bad <= limit * total:
        return
    reasons = "; ".join(
        f"{split}: "
        + ", ".join(f"{count} {reason}" for reason, count in sorted(by_reason.items()) if reason not in LEFT_OUT)
        for split, (by_reason, _) in sorted(rejected.items())
        if by_reason.keys() - set(LEFT_OUT)
    )
    named = [f"{split}[{row.row}] {row.reason}" for split, (_, first) in sorted(rejected.items()) for row in first]
    least = "" if exact else "at least "
    raise RowsRejectedError(
        f"{least}{bad} of {total} rows cannot be used ({reasons}), of which the first are {', '.join(named[:3])}; "
        f"--max-error-rate {limit:g} allows {int(limit * total)}",
        remedy="mend or filter these rows, or allow a share of them with --max-error-rate",
    )


def _receipts(job: Job, split: str) -> list[Receipt]:
    header = plan_files.read_header(job, split)
    tasks = plan_files.all_tasks(header) if header else []
    found = made_shards.find_receipts(job, tasks)
    missing = [job.shard_name(task) for task, receipt in zip(tasks, found, strict=True) if receipt is None]
    if missing or not tasks:
        raise OutputError(
            f"{job.root}: {len(missing)} shards of split {split!r} are not there ({', '.join(missing[:3])})",
            remedy="run the same command again; only what is missing is made",
        )
    return [receipt for receipt in found if receipt is not None]


def _paths(job: Job) -> list[str]:
    """Every file that a commit may write."""
    names = (*own_files.OWN_FILES, *(f"tokenizer/{name}" for name in tokenizer_files(job)))
    return [storage.join(job.root, name) for name in names]


def _manifest_before(job: Job) -> Manifest | None:
    """What an earlier run of the same job has committed. Raises: OutputError if it is another job's."""
    before = own_files.read_manifest(job.root)
    if before is not None and before.fingerprint != job.fingerprint:
        raise OutputError(
            f"{storage.join(job.root, manifest.FILE_NAME)}: is of another job, which has written to this folder "
            f"meanwhile: got fingerprint {before.fingerprint}, expected {job.fingerprint}",
            remedy="choose another --output, or let one job at a time write to this folder and start over with "
            "--overwrite",
        )
    return before


def _require_trusted(before: Manifest, mismatch: EngineMismatch, *, made: set[str], root: str) -> None:
    """Raises: OutputError if a split that was committed earlier, and is not made now, is a fast engine's."""
    for split, names in sorted(before.engines.get("splits", {}).items()):
        if split not in made and not all(map(engines.is_reference, names)):
            raise OutputError(
                f"{root}: {mismatch.engine} gave other tokens than the reference for row {mismatch.row} of split "
                f"{mismatch.split!r}, and split {split!r} was made by {', '.join(sorted(names))} before",
                remedy="ask for all splits at once, so that these are made again too, or start over with --overwrite",
            )


def _engines(
    before: Manifest | None, made: Mapping[str, list[Receipt]], mismatch: EngineMismatch | None
) -> dict[str, Any]:
    """Of each engine the rows that it tokenized and those of them that were compared with the reference, by split."""
    splits: dict[str, Any] = dict(before.engines.get("splits", {})) if before else {}
    for split, found in made.items():
        splits[split] = {
            engine: {
                "rows": sum(receipt.ledger.rows_in for receipt in found if receipt.engine == engine),
                "rows_checked": sum(receipt.rows_checked for receipt in found if receipt.engine == engine),
            }
            for engine in sorted({receipt.engine for receipt in found})
        }
    return {"splits": splits, "disproved": mismatch.to_json() if mismatch else None}


def _taken(job: Job, before: Manifest | None) -> dict[str, Any]:
    """Which rows each split has: ranges of the rows of its origin, which is named where it has another name."""
    known = before.source if before else {}
    ranges, source_splits = dict(known.get("splits", {})), dict(known.get("origins", {}))
    for name, split in job.splits.items():
        ranges[name] = [list(span) for span in split.ranges]
        source_splits.pop(name, None)
        if split.source_split != name:
            source_splits[name] = split.source_split
    return {"splits": ranges, **({"origins": source_splits} if source_splits else {})}


def _ledgers(splits: Mapping[str, Split]) -> dict[str, manifest.Ledger]:
    return {name: split.ledger for name, split in splits.items()}


def _first(found: list[Receipt]) -> tuple[RejectedRow, ...]:
    every = sorted((row for receipt in found for row in receipt.first_rejected), key=lambda row: row.row)
    return tuple(every[:NAMED_ROWS])


def _write(job: Job, result: Manifest, seen: Mapping[str, int]) -> None:
    """`seen` are the generations of what there was, where storage has such."""
    files = {f"tokenizer/{name}": content for name, content in tokenizer_files(job).items()}
    files |= {**tfds.files(result), manifest.FILE_NAME: manifest.dump(result)}
    for name, content in files.items():
        if name == manifest.FILE_NAME:
            reservation.require_own(job)
        path = storage.join(job.root, name)
        storage.write_bytes(path, content, inside=job.root, replacing=seen.get(path))
