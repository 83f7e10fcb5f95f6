"""One task, from rows to a finished shard: read, tokenize, lay out, encode, write, receipt.

    read batches ──► extract ──► encode (threads, in order) ──► gather ──► permute ──► Example bytes ──► frames ──► file

Everything random comes from (seed, split, shard), so the bytes are the same wherever and whenever this runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from pipelines.prepare import crosscheck, disproof, progress, receipts, storage, workspace
from pipelines.prepare.columns import Rows, extract, sizes_of
from pipelines.prepare.crosscheck import CrossCheck, EngineDisproved
from pipelines.prepare.job import Job
from pipelines.prepare.layouts import Builder, Encoded, Tools
from pipelines.prepare.overlap import ordered_map
from pipelines.prepare.planning import Segments, ShardTask, split_seed
from pipelines.prepare.receipts import Receipt
from pipelines.prepare.rejects import Rejects
from pipelines.prepare.timing import Stopwatch
from tfrecord_io import examples, record_index, records
from tfrecord_io.errors import LedgerError, OutputError
from tfrecord_io.manifest import Compression, Ledger, Shard
from tfrecord_io.schema import Role, Schema

__all__ = ["batches", "count_tokens", "generator", "write"]

# One call of the engine takes a batch: enough rows to fill the cores, few enough that what the Rust tokenizer keeps of
# them, about 100 bytes for each token, stays small.
_BATCH_BYTES = 1 << 19
# The threads of one task take all cores, and an engine in Python holds the GIL: gathering two shards at once would gain
# nothing and hold two shards' tokens. While one task lays out and writes, the next one gathers.
_gathering = threading.Lock()


def write(
    task: ShardTask, job: Job, tools: Tools, *, expected: Shard | None = None, clock: Stopwatch | None = None
) -> Receipt:
    """Makes one shard and its receipt. If it does not come out as `expected`, nothing is changed. `clock` is told of
    the stages read, tokenize and write.

    Raises: OutputError if the shard cannot be written, would be empty, or is not as expected; SourceError if the rows
        cannot be read.
    """
    workspace.require_own(job)
    clock = clock or Stopwatch()
    tools = _trusted(tools, job)
    try:
        gathered = _gather(task, job, tools, clock=clock)
    except EngineDisproved as found:
        disproof.leave(job, disproof.Disproof(engine=crosscheck.engine_of(tools), split=task.split, row=found.row))
        tools = _trusted(tools, job)
        gathered = _gather(task, job, tools, clock=clock)
    builder, rejects = gathered.builder, gathered.rejects
    rng = generator(job, task)
    stored = _Tally()
    name = job.shard_name(task)

    def ledger() -> Ledger:
        return Ledger(
            rows_in=gathered.rows_in,
            rows_used=builder.rows_used,
            rejected=rejects.by_reason,
            tokens_cut=builder.tokens_cut,
        )

    def pieces() -> Iterator[memoryview | bytes]:
        yield from stored.watch(_frames(job, builder, rng, stored), place=name)
        # What is raised here, before the file is complete, keeps it from ever appearing.
        _check(ledger(), task, place=name)
        if expected is not None:
            _check_same(stored.shard(name, ledger()), expected)

    with clock.stage("write"):
        storage.write_atomic(storage.join(job.root, name), pieces(), inside=job.root)
    if job.index_stride:
        place = storage.join(job.root, record_index.file_name(name))
        storage.write_bytes(place, stored.index.dump(), inside=job.root)
    rejects.write(job.rejected_path(task), inside=job.root)
    receipt = Receipt(
        fingerprint=job.fingerprint,
        split=task.split,
        index=task.index,
        shard=stored.shard(name, ledger()),
        engine=crosscheck.engine_of(tools),
        rows_checked=gathered.rows_checked,
        first_rejected=tuple(rejects.first),
    )
    workspace.require_own(job)
    storage.write_bytes(job.receipt_path(task), receipts.dump(receipt), inside=job.work_path())
    progress.add(shards=1)
    return receipt


def generator(job: Job, task: ShardTask) -> np.random.Generator | None:
    """What decides the order of a shard's rows; None where they stay as they are."""
    return np.random.default_rng([job.seed, split_seed(task.split), task.index]) if job.shuffle else None


def batches(job: Job, split: str, segments: Segments) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row number, record batch) of a split's rows, in batches of about half a megabyte of text, or of one
    row.
    """
    for first, batch in job.splits[split].read(segments, job.columns.names, in_parts=True):
        part = np.cumsum(sizes_of(batch, job.columns.content)) // _BATCH_BYTES
        edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), batch.num_rows]
        for start, stop in itertools.pairwise(edges):
            yield first + start, batch.slice(start, stop - start)


def count_tokens(columns: Mapping[str, np.ndarray], schema: Schema) -> np.ndarray:
    """Tokens of each record of a chunk that are not padding, int64 [n]: what the schema's masks, segments or counts
    say.
    """
    marking: tuple[Role, ...] = ("attention_mask", "segment_ids", "target_mask")
    marks = [feature for role in marking if (feature := schema.with_role(role)) is not None]
    counts = [np.count_nonzero(columns[feature.name], axis=1) for feature in marks]
    if (feature := schema.with_role("num_tokens")) is not None:
        counts.append(columns[feature.name].astype(np.int64))
    return np.sum(counts, axis=0)


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


def _trusted(tools: Tools, job: Job) -> Tools:
    """The tools, or those of the reference if a worker of this job has disproved a faster engine."""
    return tools if tools.reference is None or disproof.read(job) is None else tools.reference


def _gather(task: ShardTask, job: Job, tools: Tools, *, clock: Stopwatch) -> _Gathered:
    """Reads, tokenizes and collects the task's rows, rejecting those that cannot be used."""
    gathered = _Gathered(builder=tools.builder(), rejects=Rejects(task.segments))
    checks = CrossCheck(tools)

    def encode(batch: _Batch) -> tuple[_Batch, Encoded]:
        with clock.stage("tokenize"):
            return batch, tools.encode(batch.rows)

    threads = len(os.sched_getaffinity(0)) if tools.concurrent else 1
    with _gathering:
        usable = _usable(task, job, tools, gathered, clock=clock)
        for batch, encoded in ordered_map(encode, usable, threads=threads):
            with clock.stage("check"):
                which = crosscheck.chosen(batch.numbers, seed=job.seed)
                checks.add(batch.rows, encoded, numbers=batch.numbers, which=which)
            gathered.builder.add(encoded)
            if batch.source is not None:
                gathered.rejects.add(batch.source, encoded.reasons, batch.numbers, details=encoded.details)
            progress.add(rows=len(batch.numbers), tokens=encoded.num_tokens)
        checks.finish()
    gathered.rows_checked = checks.rows_checked
    return gathered


def _usable(task: ShardTask, job: Job, tools: Tools, gathered: _Gathered, *, clock: Stopwatch) -> Iterator[_Batch]:
    for first, batch in clock.waiting("read", batches(job, task.split, task.segments)):
        gathered.rows_in += batch.num_rows
        rows, reasons = extract(batch, job.columns, first=first)
        gathered.rejects.add(batch, reasons, np.arange(first, first + batch.num_rows))
        unused = np.flatnonzero(reasons == "")
        source = _rows_of(batch, unused) if tools.may_reject else None
        progress.add(rows=batch.num_rows - len(unused))
        yield _Batch(rows=rows, numbers=first + unused, source=source)


def _rows_of(batch: pa.RecordBatch, which: np.ndarray) -> pa.RecordBatch:
    # Mostly they are all of them, and what is nested in rows takes long to copy.
    return batch if len(which) == batch.num_rows else batch.take(pa.array(which))


def _check(ledger: Ledger, task: ShardTask, *, place: str) -> None:
    """Each number was counted at a place of its own: read, laid out, rejected. Raises: LedgerError if they disagree."""
    if not ledger.balanced or ledger.rows_in != task.num_rows:
        raise LedgerError(
            f"{place}: {task.num_rows} rows were planned, {ledger.rows_in} read, {ledger.rows_used} used and "
            f"{ledger.rows_rejected} rejected, expected every row to be used or rejected",
            remedy="please report this with the plan in .prep/",
        )


def _check_same(made: Shard, expected: Shard) -> None:
    if made != expected:
        changed = [
            f"{field.name} {getattr(made, field.name)}, expected {getattr(expected, field.name)}"
            for field in dataclasses.fields(Shard)
            if getattr(made, field.name) != getattr(expected, field.name)
        ]
        raise OutputError(
            f"{expected.name}: made again it has {'; '.join(changed)}; the shard was left as it is",
            remedy="install the versions of the libraries that made it (see the manifest), or build anew with "
            "--overwrite",
        )


def _frames(job: Job, builder: Builder, rng: np.random.Generator | None, tally: _Tally) -> Iterator[memoryview | bytes]:
    """The shard's bytes, piece by piece."""

    def framed() -> Iterator[memoryview]:
        for columns in builder.chunks(rng):
            payloads = examples.encode(columns, job.schema)
            tally.num_examples += len(payloads)
            tally.num_tokens += int(count_tokens(columns, job.schema).sum())
            tally.index.add(np.diff(payloads.offsets) + records.FRAME_BYTES)
            yield records.frame(payloads).data

    return _compressed(framed(), job.compression)


def _compressed(pieces: Iterator[memoryview], compression: Compression) -> Iterator[memoryview | bytes]:
    if compression == "none":
        yield from pieces
        return
    # wbits 31 writes a gzip header with no name and no time in it, so equal contents stay equal bytes.
    packer = zlib.compressobj(wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


class _Tally:
    """Counts and digests a shard's bytes on their way into the file."""

    def __init__(self) -> None:
        self.num_examples = 0
        self.num_tokens = 0
        self.index = record_index.IndexBuilder()
        self._num_bytes = 0
        self._digest = hashlib.sha256()

    def watch(self, pieces: Iterator[memoryview | bytes], *, place: str) -> Iterator[memoryview | bytes]:
        """Passes the pieces on. Raises: OutputError at the end if there was no example in them."""
        for piece in pieces:
            self._digest.update(piece)
            self._num_bytes += len(piece)
            progress.add(num_bytes=len(piece))
            yield piece
        if not self.num_examples:
            raise OutputError(
                f"{place}: no row of this shard gives an example, expected at least one",
                remedy="look at why rows are rejected or too short, or choose a larger --shard-size",
            )

    def shard(self, name: str, ledger: Ledger) -> Shard:
        """The finished shard's entry."""
        return Shard(
            name=name,
            num_bytes=self._num_bytes,
            num_examples=self.num_examples,
            num_tokens=self.num_tokens,
            sha256=self._digest.hexdigest(),
            ledger=ledger,
        )
