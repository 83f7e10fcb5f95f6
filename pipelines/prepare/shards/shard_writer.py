"""Read the rows of one task, and write one shard per record length (usually one), and a receipt.

Random numbers depend only on (seed, split, shard) or (seed, split, row), so the bytes are always the same.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.dataset import receipts, reservation
from pipelines.prepare.dataset.job import Job, rejected_path
from pipelines.prepare.dataset.rejected_rows import RejectedRows
from pipelines.prepare.layouts import BatchEncoder, Builder, Encoded, crosscheck
from pipelines.prepare.plan.planning import MAX_BLOCK_ROWS, ShardTask, split_seed
from pipelines.prepare.process import memory
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.shards import shard_files
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows, extract, text_bytes_of
from pipelines.prepare.sources.parquet.groups import Pieces
from pipelines.prepare.sources.rows.unused_rows import RejectedRow, remedy_of
from tfrecord_io.errors import LedgerError, OutputError, RowsRejectedError
from tfrecord_io.manifest import Ledger, Shard
from tfrecord_io.shown import some

# Enough text to occupy all cores. The Rust tokenizer needs about 100 bytes of memory per token, fast engines almost
# none.
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
) -> receipts.Receipt:
    """Write the shards of a task, one per record length, and its receipt. Return the receipt.

    `expected`: manifest entries of shards that are made again, to compare; None for new shards. `threads`: None for one
    per core.

    Raises: as `shard_files.write`; SourceError; TokenizerError if the tokenizer fails on a row, or the engine's tokens
    differ from the reference's; RowsRejectedError if the job is strict and rejects a row.
    """
    names = [job.shard_name(task, length=length) for length in job.spec.layout.buckets or (None,)]
    files = [path for name in names for path in shard_files.paths(job, name)]
    list_path, receipt_path = storage.join(job.root, rejected_path(task.split, task.index)), job.receipt_path(task)
    versions = storage.versions([*files, list_path, receipt_path])
    reservation.require_own(job)
    rows = _TaskRows(task, job, encoder, progress or Progress(), threads or cores())
    rows.gather()
    memory.release_freed()
    reservation.require_own(job)
    shards = rows.write_shards(versions=versions, expected=expected)
    rows.rejected.write(list_path, inside=job.root, replacing=versions.get(list_path))
    receipt = receipts.Receipt(
        fingerprint=job.fingerprint,
        split=task.split,
        index=task.index,
        shards=shards,
        engine=encoder.engine,
        rows_checked=rows.rows_checked,
        first_rejected=tuple(rows.rejected.first),
        labels=None if rows.labels is None else tuple(rows.labels.tolist()),
    )
    reservation.require_own(job)
    content = receipts.dump(receipt)
    storage.write_bytes(receipt_path, content, inside=job.root, replacing=versions.get(receipt_path))
    rows.progress.add(shards=len(shards))
    return receipt


def shuffle_rng(job: Job, task: ShardTask, *, length: int | None = None) -> np.random.Generator | None:
    """Return the random generator that shuffles a task's shard (see `shard_rng`); None if the job does not shuffle."""
    return shard_rng(job.spec.seed, split=task.split, index=task.index, length=length) if job.spec.shuffle else None


def shard_rng(seed: int, *, split: str, index: int, length: int | None = None) -> np.random.Generator:
    """Return the random generator that shuffles a shard. `length`: its record length; None if all are equal."""
    return np.random.default_rng([seed, split_seed(split), index, *(() if length is None else (length,))])


def batches(
    job: Job, split: str, pieces: Pieces, *, num_bytes: int = _BATCH_BYTES
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Yield the rows at `pieces` of a split in batches: the row numbers, int64 [N], and the rows.

    A batch has one row, or about `num_bytes` of text. Small batches are joined, because each one costs a millisecond.
    The number of rows is limited too, because kept columns may be much larger than the texts.
    """
    held: list[tuple[np.ndarray, pa.RecordBatch]] = []
    held_bytes = held_rows = 0
    for first, batch in job.splits[split].reader.read(pieces, job.spec.columns.names):
        ends = np.cumsum(text_bytes_of(batch, job.spec.columns.content))
        edges = [0, *(np.flatnonzero(np.diff(ends // num_bytes)) + 1).tolist(), batch.num_rows]
        for start, stop in itertools.pairwise(edges):
            size = int(ends[stop - 1] - (ends[start - 1] if start else 0))
            is_full = held_bytes + size > num_bytes or held_rows + stop - start > MAX_BLOCK_ROWS
            if held and (is_full or held[0][1].schema != batch.schema):
                yield _joined(held)
                held, held_bytes, held_rows = [], 0, 0
            held.append((np.arange(first + start, first + stop), batch.slice(start, stop - start)))
            held_bytes, held_rows = held_bytes + size, held_rows + stop - start
    if held:
        yield _joined(held)


def _joined(parts: Sequence[tuple[np.ndarray, pa.RecordBatch]]) -> tuple[np.ndarray, pa.RecordBatch]:
    if len(parts) == 1:
        return parts[0]
    numbers, tables = zip(*parts, strict=True)
    return np.concatenate(numbers), pa.concat_batches(tables)


def unusable_row(row: RejectedRow, task: ShardTask) -> RowsRejectedError:
    """Return the error that ends a job with --max-error-rate 0 at its first unusable row."""
    return RowsRejectedError(
        f"{task.split}[{row.row}]: {row.why}; --max-error-rate 0 allows no row that cannot be used",
        remedy=f"{remedy_of({row.reason: 1}) or 'correct or filter such rows'}, or allow a share of them with "
        "--max-error-rate",
    )


class _TaskRows:
    def __init__(self, task: ShardTask, job: Job, encoder: BatchEncoder, progress: Progress, threads: int) -> None:
        self._task, self._job, self._encoder, self.progress, self._threads = task, job, encoder, progress, threads
        self._builder = encoder.builder()
        self.rejected = RejectedRows(task.row_ranges)
        self._rows_in = self.rows_checked = 0
        self.labels: np.ndarray | None = None

    def gather(self) -> None:
        encoder, split = self._encoder, self._task.split

        def encode(batch: tuple[Rows, pa.RecordBatch]) -> tuple[Rows, pa.RecordBatch, Encoded]:
            rows, source = batch
            return rows, source, crosscheck.encode(encoder, rows, split=split)

        threads = self._threads if encoder.concurrent else 1
        for rows, source, encoded in ordered_map(encode, self._usable_batches(), threads=threads):
            indices = crosscheck.chosen(rows.numbers, seed=self._job.spec.seed)
            self.rows_checked += crosscheck.compare(encoder, rows, encoded, indices=indices, split=split)
            self._builder.add(encoded)
            if (labels := _unnamed_labels(encoded, self._job.spec.columns)) is not None:
                known = np.zeros(0, np.int64) if self.labels is None else self.labels
                self.labels = receipts.with_labels(known, labels)
            self._reject(source, encoded.reasons, rows.numbers, encoded.details)
            self.progress.add(rows=len(rows), tokens=encoded.num_tokens)

    def _usable_batches(self) -> Iterator[tuple[Rows, pa.RecordBatch]]:
        num_bytes = _BATCH_BYTES if self._encoder.reference is None else _FAST_BATCH_BYTES
        for numbers, batch in batches(self._job, self._task.split, self._task.located, num_bytes=num_bytes):
            self._rows_in += batch.num_rows
            rows, reasons = extract(batch, self._job.spec.columns, numbers=numbers, split=self._task.split)
            self._reject(batch, reasons, numbers, {})
            usable = np.flatnonzero(reasons == "")
            self.progress.add(rows=batch.num_rows - len(usable))
            # `take` is slow for nested values, and usually all rows are usable.
            yield rows, batch if len(usable) == batch.num_rows else batch.take(pa.array(usable))

    def _reject(
        self, batch: pa.RecordBatch, reasons: np.ndarray, numbers: np.ndarray, details: Mapping[int, str]
    ) -> None:
        self.rejected.add(batch, reasons, numbers, details)
        if self._job.strict and self.rejected.first:
            raise unusable_row(self.rejected.first[0], self._task)

    def write_shards(self, *, versions: Mapping[str, int], expected: tuple[Shard, ...] | None) -> tuple[Shard, ...]:
        """Write one shard per record length. Delete an earlier attempt's files for record lengths without rows."""
        task, job = self._task, self._job
        builders = self._builder.by_length()
        lengths = [builder.length for builder in builders]
        if expected is not None and (wanted := [shard.length for shard in expected]) != lengths:
            raise OutputError(
                f"{job.shard_name(task)}: made again, this task has records of the lengths {lengths}, expected "
                f"{wanted}; the files were not changed",
                remedy=shard_files.NOT_REPRODUCED_REMEDY,
            )
        shards = [
            shard_files.write(
                task,
                job,
                builder,
                shuffle_rng(job, task, length=builder.length),
                threads=self._threads,
                ledger=ledger,
                versions=versions,
                expected=expected[at] if expected else None,
                progress=self.progress,
            )
            for at, (builder, ledger) in enumerate(zip(builders, self._ledgers(builders), strict=True))
        ]
        for length in set(job.spec.layout.buckets) - set(lengths):
            shard_files.delete(job, job.shard_name(task, length=length), versions=versions)
        return tuple(shards)

    def _ledgers(self, builders: Sequence[Builder]) -> list[Ledger]:
        # The first shard's ledger includes all rejected and filtered rows.
        rejected, filtered = self.rejected.rejected, self.rejected.filtered
        num_unused = rejected.total() + filtered.total()
        usable = [self._rows_in - num_unused if builder.rows is None else len(builder.rows) for builder in builders]
        if (rows_in := sum(usable) + num_unused) != self._task.num_rows:
            raise LedgerError(
                f"{self._job.shard_name(self._task)}: the plan has {some(self._task.num_rows, 'row')}, but "
                f"{rows_in:,} were read, including {num_unused:,} rejected or filtered",
                remedy="please report this with the plan in .prep/",
            )
        first = Ledger(rows_in=usable[0] + num_unused, rows_used=0, rejected=dict(rejected), filtered=dict(filtered))
        return [first, *(Ledger(rows_in=rows, rows_used=0) for rows in usable[1:])]


def _unnamed_labels(encoded: Encoded, columns: ColumnPlan) -> np.ndarray | None:
    if columns.label is not None and columns.label.kind == "int":
        return encoded.arrays["label"][encoded.reasons == ""]
    if columns.tags is not None and columns.tags.kind == "int":  # the layout `tokens`, which has no label column
        tags, mask = encoded.ragged["tags"], encoded.ragged["tag_mask"]
        return tags.ids[(mask.ids > 0) & np.repeat(encoded.usable, tags.lengths)]
    return None
