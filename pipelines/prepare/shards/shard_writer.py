"""One task, from rows to its finished shard and receipt; with several lengths of records, to a shard for each.

    read batches ──► extract ──► encode (threads, in order) ──► gather ──► permute ──► Example bytes ──► frames ──► file

Everything random is seeded by (seed, split, shard), so the bytes are the same wherever and whenever this runs.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.crosscheck import comparing
from pipelines.prepare.crosscheck.comparing import CrossCheck
from pipelines.prepare.dataset import receipts, reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.dataset.rejected_rows import RejectedRows
from pipelines.prepare.layouts import BatchEncoder, Builder, Encoded, LengthGroup, length_groups
from pipelines.prepare.plan.planning import ShardSpec, ShardTask, split_seed
from pipelines.prepare.process import memory
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.shards import shard_files
from pipelines.prepare.shards.shard_files import ShardFile
from pipelines.prepare.sources.columns.extraction import Rows, extract, text_bytes_of
from pipelines.prepare.sources.parquet.groups import Pieces
from pipelines.prepare.sources.rows.unused_rows import RejectedRow
from tfrecord_io.errors import LedgerError, OutputError, RowsRejectedError
from tfrecord_io.manifest import Shard
from tfrecord_io.shown import without_access

# Bytes of text in one call of the engine: enough to occupy all cores and to make Python's cost per batch negligible,
# but not more, since the Rust tokenizer keeps about 100 bytes for each token. The fast engines keep next to nothing.
_BATCH_BYTES = 1 << 19
_FAST_BATCH_BYTES = 1 << 22


def write(
    task: ShardTask,
    job: Job,
    encoder: BatchEncoder,
    *,
    expected: tuple[Shard, ...] | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Receipt:
    """Make a task's shard, or one for each length of records, and its receipt.

    A shard that differs from `expected` is not written. `progress` counts what is done. `threads` tokenize batches and
    encode records, by default one for each core.

    Raises: OutputError if a shard cannot be written, would be empty, is not as expected or was written by another job
        meanwhile; SourceError if the rows cannot be read; TokenizerError if the tokenizer fails on a row, or an engine
        gives other tokens than the reference; RowsRejectedError if the job is strict and a row cannot be used.
    """
    generations = storage.generations(_paths(task, job))
    reservation.require_own(job)
    progress, threads = progress or Progress(), threads or cores()
    gathered = _gather(task, job, encoder, threads=threads, progress=progress)
    memory.release_freed()
    reservation.require_own(job)
    shards = _write_shards(
        task, job, gathered, threads=threads, generations=generations, expected=expected, progress=progress
    )
    rejected_path, receipt_path = job.rejected_path(task), job.receipt_path(task)
    gathered.rejected.write(rejected_path, inside=job.root, replacing=generations.get(rejected_path))
    receipt = Receipt(
        fingerprint=job.fingerprint,
        split=task.split,
        index=task.index,
        shards=shards,
        engine=comparing.engine_of(encoder),
        rows_checked=gathered.rows_checked,
        first_rejected=tuple(gathered.rejected.first),
        labels=None if gathered.labels is None else tuple(gathered.labels.tolist()),
    )
    reservation.require_own(job)
    content = receipts.dump(receipt)
    storage.write_bytes(receipt_path, content, inside=job.root, make=False, replacing=generations.get(receipt_path))
    progress.add(shards=len(shards))
    return receipt


def shuffle_rng(job: Job, task: ShardTask, *, length: int | None = None) -> np.random.Generator | None:
    """Return the generator that permutes the rows of a shard; None if the job does not shuffle.

    `length`: the tokens of its records, None if all shards' records have the same length.
    """
    return shard_rng(job.spec.seed, split=task.split, index=task.index, length=length) if job.spec.shuffle else None


def shard_rng(seed: int, *, split: str, index: int, length: int | None = None) -> np.random.Generator:
    """Return the generator that permutes the rows of shard `index` of a split. `length`: as in `shuffle_rng`."""
    return np.random.default_rng([seed, split_seed(split), index, *(() if length is None else (length,))])


def batches(
    job: Job, split: str, pieces: Pieces, *, num_bytes: int = _BATCH_BYTES
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (first row number, record batch) of a split's rows, in batches of about `num_bytes` of text or one row."""
    for first, batch in job.splits[split].reader.read(pieces, job.spec.columns.names):
        part = np.cumsum(text_bytes_of(batch, job.spec.columns.content)) // num_bytes
        edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), batch.num_rows]
        for start, stop in itertools.pairwise(edges):
            yield first + start, batch.slice(start, stop - start)


def _paths(task: ShardTask, job: Job) -> list[str]:
    """Return the path of every file that a task may write."""
    names = [job.shard_name(task, length=length) for length in job.spec.layout.buckets or (None,)]
    files = [path for name in names for path in shard_files.paths(job, name)]
    return [*files, job.rejected_path(task), job.receipt_path(task)]


@dataclasses.dataclass(kw_only=True)
class _Gathered:
    """The tokenized rows of a task: `rows_in` were read, `rows_checked` were compared with the reference tokenizer.

    `labels`: as `Receipt.labels`, int64.
    """

    builder: Builder
    rejected: RejectedRows
    rows_in: int = 0
    rows_checked: int = 0
    labels: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Batch:
    """Usable rows and their numbers in the split; `source` is all that was read of them, if some may be rejected."""

    rows: Rows
    numbers: np.ndarray
    source: pa.RecordBatch | None


def _gather(task: ShardTask, job: Job, encoder: BatchEncoder, *, threads: int, progress: Progress) -> _Gathered:
    """Read, tokenize and collect the task's rows, rejecting those that cannot be used."""
    gathered = _Gathered(builder=encoder.builder(), rejected=RejectedRows(task.row_ranges))

    def encode(batch: _Batch) -> tuple[_Batch, Encoded]:
        return batch, comparing.encode(encoder, batch.rows, split=task.split)

    checks = CrossCheck(encoder, split=task.split)
    usable = _usable_batches(task, job, encoder, gathered, progress)
    for batch, encoded in ordered_map(encode, usable, threads=threads if encoder.concurrent else 1):
        checks.add(batch.rows, encoded, which=comparing.chosen(batch.numbers, seed=job.spec.seed))
        gathered.builder.add(encoded)
        if (labels := _unnamed_labels(encoded, job.spec)) is not None:
            known = np.zeros(0, np.int64) if gathered.labels is None else gathered.labels
            gathered.labels = receipts.with_labels(known, labels)
        if batch.source is not None:
            gathered.rejected.add(batch.source, encoded.reasons, batch.numbers, details=encoded.details)
            _require_usable(task, job, gathered.rejected)
        progress.add(rows=len(batch.numbers), tokens=encoded.num_tokens)
    checks.finish()
    gathered.rows_checked = checks.rows_checked
    return gathered


def _unnamed_labels(encoded: Encoded, spec: ShardSpec) -> np.ndarray | None:
    """Return the integer labels without names of usable rows, or those of their words; None if there are no such."""
    columns = spec.columns
    if columns.label is not None:
        return encoded.arrays["label"][encoded.reasons == ""] if columns.label.kind == "int" else None
    if columns.tags is None or columns.tags.kind != "int":
        return None
    tags, mask = (encoded.ragged[name] for name in ("tags", "tag_mask"))  # as the layout `tokens` calls them
    return tags.ids[(mask.ids > 0) & np.repeat(encoded.usable, tags.lengths)]


def _usable_batches(
    task: ShardTask, job: Job, encoder: BatchEncoder, gathered: _Gathered, progress: Progress
) -> Iterator[_Batch]:
    """Yield the task's usable rows in batches, rejecting the others."""
    num_bytes = _BATCH_BYTES if encoder.reference is None else _FAST_BATCH_BYTES
    for first, batch in batches(job, task.split, task.located, num_bytes=num_bytes):
        gathered.rows_in += batch.num_rows
        rows, reasons = extract(batch, job.spec.columns, first=first)
        gathered.rejected.add(batch, reasons, np.arange(first, first + batch.num_rows))
        _require_usable(task, job, gathered.rejected)
        usable = np.flatnonzero(reasons == "")
        source = _take(batch, usable) if encoder.may_reject else None
        progress.add(rows=batch.num_rows - len(usable))
        yield _Batch(rows=rows, numbers=first + usable, source=source)


def _require_usable(task: ShardTask, job: Job, rejected: RejectedRows) -> None:
    """Raise RowsRejectedError if a row was rejected and the job allows none."""
    if job.strict and rejected.first:
        raise unusable_row(rejected.first[0], task)


def unusable_row(row: RejectedRow, task: ShardTask) -> RowsRejectedError:
    """Return the error of a task with a row that cannot be used, where none may be rejected."""
    pieces = task.located
    piece = int(np.flatnonzero((pieces.starts <= row.row) & (row.row < pieces.starts + pieces.counts))[0])
    file = pieces.files[int(pieces.file[piece])]
    inside = f" in {without_access(file.path)}" if not file.ingested else ""
    return RowsRejectedError(
        f"{task.split}[{row.row}]{inside} cannot be used ({row.reason}); --max-error-rate 0 allows no such row",
        remedy="mend or filter these rows, or allow a share of them with --max-error-rate",
    )


def _take(batch: pa.RecordBatch, which: np.ndarray) -> pa.RecordBatch:
    # Usually all rows are taken, and nested values take long to copy.
    return batch if len(which) == batch.num_rows else batch.take(pa.array(which))


def _write_shards(
    task: ShardTask,
    job: Job,
    gathered: _Gathered,
    *,
    threads: int,
    generations: Mapping[str, int],
    expected: tuple[Shard, ...] | None,
    progress: Progress,
) -> tuple[Shard, ...]:
    """Write one file for each length of records, and delete what an earlier attempt left for lengths without rows.

    A file that has appeared or changed since `generations` belongs to another job.
    """
    groups = length_groups(gathered.builder)
    lengths = [group.length for group in groups]
    if expected is not None and (wanted := [shard.length for shard in expected]) != lengths:
        raise OutputError(
            f"{job.shard_name(task)}: made again it has rows of the lengths {lengths}, expected {wanted}; it was left "
            "as it is",
            remedy=shard_files.NOT_REPRODUCED_REMEDY,
        )
    shards = []
    for at, rows_in in enumerate(_rows_in(task, gathered, groups, place=job.shard_name(task))):
        length = lengths[at]
        file = ShardFile(
            name=job.shard_name(task, length=length), length=length, task=None if length is None else task.index
        )
        shards.append(
            shard_files.write(
                file,
                job,
                groups[at].builder,
                shuffle_rng(job, task, length=length),
                threads=threads,
                rows_in=rows_in,
                rejected=gathered.rejected.by_reason if at == 0 else {},
                generations=generations,
                expected=None if expected is None else expected[at],
                progress=progress,
            )
        )
    for length in set(job.spec.layout.buckets) - set(lengths):
        shard_files.delete(job, job.shard_name(task, length=length), generations=generations)
    return tuple(shards)


def _rows_in(task: ShardTask, gathered: _Gathered, groups: Sequence[LengthGroup], *, place: str) -> list[int]:
    """Return how many rows each file accounts for: those it is made of, and in the first one also the rejected rows.

    Raises: LedgerError if they are not all rows of the plan. Each file checks its own ledger.
    """
    num_rejected = sum(gathered.rejected.by_reason.values())
    if groups[0].rows is None:
        rows_in = [gathered.rows_in]
    else:
        rows_in = [len(group.rows) for group in groups if group.rows is not None]
        rows_in[0] += num_rejected
    if sum(rows_in) != task.num_rows:
        raise LedgerError(
            f"{place}: {task.num_rows} rows were planned, but {sum(rows_in)} read, of which {num_rejected} were "
            "rejected, expected every row to be used or rejected",
            remedy="please report this with the plan in .prep/",
        )
    return rows_in
