"""One task, from rows to a finished shard (see `shard_files`; or several, of rows of several lengths), and its receipt.

    read batches ──► extract ──► encode (threads, in order) ──► gather ──► permute ──► Example bytes ──► frames ──► file

Everything random comes from (seed, split, shard), so the bytes are the same wherever and whenever this runs.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.crosscheck import comparing, unencodable
from pipelines.prepare.crosscheck.comparing import CrossCheck, EngineMismatch, TokensDiffer
from pipelines.prepare.dataset import engine_mismatch, receipts, reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.dataset.rejected_rows import Rejects
from pipelines.prepare.layouts import BatchEncoder, Builder, Encoded, LengthGroup, length_groups
from pipelines.prepare.plan.planning import ShardTask, split_seed
from pipelines.prepare.process import memory, progress
from pipelines.prepare.process.stopwatch import Stopwatch
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.shards import shard_files
from pipelines.prepare.shards.shard_files import ShardFile
from pipelines.prepare.sources.columns.extraction import Rows, extract, sizes_of
from pipelines.prepare.sources.columns.rejected import RejectedRow
from pipelines.prepare.sources.formats.groups import Pieces
from tfrecord_io.errors import LedgerError, OutputError, RowsRejectedError
from tfrecord_io.manifest import Shard
from tfrecord_io.shown import without_access

__all__ = ["batches", "generator", "unusable_row", "write"]

# One call of the engine takes a batch: enough rows to fill the cores and for what Python does for each batch not to
# count, few enough that what the Rust tokenizer keeps of them, about 100 bytes for each token, stays small. The others
# keep next to nothing.
_BATCH_BYTES = 1 << 19
_FAST_BATCH_BYTES = 1 << 21
# The threads of one task take all cores, and an engine in Python holds the GIL: gathering two shards at once would gain
# nothing and hold two shards' tokens. While one task lays out and writes, the next one gathers.
_gathering = threading.Lock()


def write(
    task: ShardTask,
    job: Job,
    encoder: BatchEncoder,
    *,
    expected: tuple[Shard, ...] | None = None,
    clock: Stopwatch | None = None,
) -> Receipt:
    """Makes a task's shard, or one for each length of rows, and its receipt. What does not come out as `expected` is
    not changed. `clock` is told of the stages read, tokenize and write.

    Raises: OutputError if a shard cannot be written, would be empty, is not as expected or was written by another job
        meanwhile; SourceError if the rows cannot be read; TokenizerError if the tokenizer fails on some;
        RowsRejectedError if the job is strict, and a row cannot be used.
    """
    seen = storage.generations(_paths(task, job))
    reservation.require_own(job)
    clock = clock or Stopwatch()
    encoder = _trusted(encoder, job)
    try:
        gathered = _gather(task, job, encoder, clock=clock)
    except TokensDiffer as found:
        engine_mismatch.record(
            job, EngineMismatch(engine=comparing.engine_of(encoder), split=task.split, row=found.row)
        )
        encoder = _trusted(encoder, job)
        gathered = _gather(task, job, encoder, clock=clock)
    memory.release_freed()
    reservation.require_own(job)
    with clock.stage("write"):
        made = _write_files(task, job, gathered, seen=seen, expected=expected)
    rejects = gathered.rejects
    rejected_path, receipt_path = job.rejected_path(task), job.receipt_path(task)
    rejects.write(rejected_path, inside=job.root, replacing=seen.get(rejected_path))
    receipt = Receipt(
        fingerprint=job.fingerprint,
        split=task.split,
        index=task.index,
        shards=made,
        engine=comparing.engine_of(encoder),
        rows_checked=gathered.rows_checked,
        first_rejected=tuple(rejects.first),
    )
    reservation.require_own(job)
    content = receipts.dump(receipt)
    storage.write_bytes(receipt_path, content, inside=job.root, make=False, replacing=seen.get(receipt_path))
    progress.add(shards=len(made))
    return receipt


def generator(job: Job, task: ShardTask, *, length: int | None = None) -> np.random.Generator | None:
    """What decides the order of a shard's rows, which have `length` tokens, None where all shards' have the same; None
    where they stay as they are.
    """
    length_seed = () if length is None else (length,)
    return (
        np.random.default_rng([job.spec.seed, split_seed(task.split), task.index, *length_seed])
        if job.spec.shuffle
        else None
    )


def batches(
    job: Job, split: str, pieces: Pieces, *, num_bytes: int = _BATCH_BYTES
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row number, record batch) of a split's rows, in batches of about so many bytes of text, or of one row."""
    for first, batch in job.splits[split].reader.read(pieces, job.spec.columns.names):
        part = np.cumsum(sizes_of(batch, job.spec.columns.content)) // num_bytes
        edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), batch.num_rows]
        for start, stop in itertools.pairwise(edges):
            yield first + start, batch.slice(start, stop - start)


def _paths(task: ShardTask, job: Job) -> list[str]:
    """Every file that a task may write."""
    names = [job.shard_name(task, length=length) for length in job.spec.layout.buckets or (None,)]
    files = [path for name in names for path in shard_files.paths(job, name)]
    return [*files, job.rejected_path(task), job.receipt_path(task)]


@dataclasses.dataclass(kw_only=True)
class _Gathered:
    """All rows of a task, tokenized: how many were read, and how many of them were compared with the reference."""

    builder: Builder
    rejects: Rejects
    rows_in: int = 0
    rows_checked: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Batch:
    """Usable rows, their numbers in the split, and all that was read of them, where it may be asked for again."""

    rows: Rows
    numbers: np.ndarray
    source: pa.RecordBatch | None


def _trusted(encoder: BatchEncoder, job: Job) -> BatchEncoder:
    """Return the encoder, or its reference if a worker of this job found wrong tokens of a faster engine."""
    return encoder if encoder.reference is None or engine_mismatch.read(job) is None else encoder.reference


def _gather(task: ShardTask, job: Job, encoder: BatchEncoder, *, clock: Stopwatch) -> _Gathered:
    """Reads, tokenizes and collects the task's rows, rejecting those that cannot be used."""
    gathered = _Gathered(builder=encoder.builder(), rejects=Rejects(task.row_ranges))

    def encode(batch: _Batch) -> tuple[_Batch, Encoded]:
        with clock.stage("tokenize"):
            return batch, unencodable.encode(encoder, batch.rows, split=task.split, numbers=batch.numbers)

    threads = len(os.sched_getaffinity(0)) if encoder.concurrent else 1
    with _gathering, concurrent.futures.ThreadPoolExecutor(1) as beside:
        checks = CrossCheck(encoder, pool=beside)
        usable = _usable(task, job, encoder, gathered, clock=clock)
        for batch, encoded in ordered_map(encode, usable, threads=threads):
            with clock.stage("check"):
                checks.add_some(batch.rows, encoded, numbers=batch.numbers, seed=job.spec.seed)
            gathered.builder.add(encoded)
            if batch.source is not None:
                gathered.rejects.add(batch.source, encoded.reasons, batch.numbers, details=encoded.details)
                _require_usable(task, job, gathered.rejects)
            progress.add(rows=len(batch.numbers), tokens=encoded.num_tokens)
        checks.finish()
    gathered.rows_checked = checks.rows_checked
    return gathered


def _usable(
    task: ShardTask, job: Job, encoder: BatchEncoder, gathered: _Gathered, *, clock: Stopwatch
) -> Iterator[_Batch]:
    num_bytes = _BATCH_BYTES if encoder.reference is None else _FAST_BATCH_BYTES
    for first, batch in clock.waiting("read", batches(job, task.split, task.found, num_bytes=num_bytes)):
        gathered.rows_in += batch.num_rows
        rows, reasons = extract(batch, job.spec.columns, first=first)
        gathered.rejects.add(batch, reasons, np.arange(first, first + batch.num_rows))
        _require_usable(task, job, gathered.rejects)
        unused = np.flatnonzero(reasons == "")
        source = _rows_of(batch, unused) if encoder.may_reject else None
        progress.add(rows=batch.num_rows - len(unused))
        yield _Batch(rows=rows, numbers=first + unused, source=source)


def _require_usable(task: ShardTask, job: Job, rejects: Rejects) -> None:
    """Raises: RowsRejectedError if a row was rejected that no shard may be without."""
    if job.strict and rejects.first:
        raise unusable_row(rejects.first[0], task)


def unusable_row(row: RejectedRow, task: ShardTask) -> RowsRejectedError:
    """The error of a task that has come upon a row that cannot be used, where none may be rejected."""
    pieces = task.found
    piece = int(np.flatnonzero((pieces.starts <= row.row) & (row.row < pieces.starts + pieces.counts))[0])
    file = pieces.files[int(pieces.file[piece])]
    place = f" in {without_access(file.path)}" if file.format == "parquet" else ""
    return RowsRejectedError(
        f"{task.split}[{row.row}]{place} cannot be used ({row.reason}); --max-error-rate 0 allows no such row",
        remedy="mend or filter these rows, or allow a share of them with --max-error-rate",
    )


def _rows_of(batch: pa.RecordBatch, which: np.ndarray) -> pa.RecordBatch:
    # Mostly they are all of them, and what is nested in rows takes long to copy.
    return batch if len(which) == batch.num_rows else batch.take(pa.array(which))


def _write_files(
    task: ShardTask, job: Job, gathered: _Gathered, *, seen: Mapping[str, int], expected: tuple[Shard, ...] | None
) -> tuple[Shard, ...]:
    """A file for each family of records. What an earlier try may have left of families that are empty goes away; what
    was not there when it was `seen`, and is now, is another job's.
    """
    found = length_groups(gathered.builder)
    if expected is not None and (lengths := [shard.length for shard in expected]) != [each.length for each in found]:
        raise OutputError(
            f"{job.shard_name(task)}: made again it has rows of the lengths {[each.length for each in found]}, "
            f"expected {lengths}; it was left as it is",
            remedy=shard_files.OTHERWISE,
        )
    rows_in = _rows_in(gathered, found)
    _check_total(rows_in, task, gathered.rejects, place=job.shard_name(task))
    made = []
    for at, group in enumerate(found):
        file = ShardFile(
            name=job.shard_name(task, length=group.length),
            length=group.length,
            task=None if group.length is None else task.index,
        )
        made.append(
            shard_files.write(
                file,
                job,
                group.builder,
                generator(job, task, length=group.length),
                rows_in=rows_in[at],
                rejected=gathered.rejects.by_reason if at == 0 else {},
                seen=seen,
                expected=None if expected is None else expected[at],
            )
        )
    for length in set(job.spec.layout.buckets) - {group.length for group in found}:
        shard_files.delete(job, job.shard_name(task, length=length), seen=seen)
    return tuple(made)


def _rows_in(gathered: _Gathered, found: Sequence[LengthGroup]) -> list[int]:
    """The rows that each file accounts for: those that went into its family, and in the first one the rejected too."""
    if found[0].rows is None:
        return [gathered.rows_in]
    rejected = sum(gathered.rejects.by_reason.values())
    return [rejected * (at == 0) + len(group.rows) for at, group in enumerate(found) if group.rows is not None]


def _check_total(rows_in: Sequence[int], task: ShardTask, rejects: Rejects, *, place: str) -> None:
    """Raises: LedgerError if not every row that was planned is in some file's ledger. Each file checks its own."""
    if sum(rows_in) != task.num_rows:
        raise LedgerError(
            f"{place}: {task.num_rows} rows were planned, but {sum(rows_in)} read, of which "
            f"{sum(rejects.by_reason.values())} were rejected, expected every row to be used or rejected",
            remedy="please report this with the plan in .prep/",
        )
