"""One file of records: laid out, encoded, framed, and written whole or not at all, with its index beside it.

permuted rows ──► [n, L] ──► Example bytes ──► frames ──► gzip? ──► file        counted and digested on the way
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import Builder
from pipelines.prepare.layouts.token_counts import count_tokens
from pipelines.prepare.process import progress
from pipelines.prepare.process.threads import ordered_map
from tfrecord_io import records
from tfrecord_io.errors import LedgerError, OutputError
from tfrecord_io.format import record_index
from tfrecord_io.manifest import Compression, Ledger, Shard
from tfrecord_io.schema import Schema

__all__ = ["OTHERWISE", "ShardFile", "delete", "paths", "write"]

# Laying out, digesting and writing go one piece after the other; more threads would wait for those.
_MOST_THREADS = 4

OTHERWISE = "install the versions of the libraries that made it (see the manifest), or build anew with --overwrite"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardFile:
    """Which file: `length` and `task` as the manifest has them of a shard."""

    name: str
    length: int | None = None
    task: int | None = None


def write(
    file: ShardFile,
    job: Job,
    builder: Builder,
    rng: np.random.Generator | None,
    *,
    rows_in: int,
    rejected: Mapping[str, int],
    seen: Mapping[str, int],
    expected: Shard | None = None,
) -> Shard:
    """Writes all that a builder has gathered. `rows_in` and `rejected` are what the file accounts for, `seen` the
    generations of what it replaces.

    Raises: OutputError if it cannot be written, has no record, is not as expected or was written by another job;
        LedgerError if its rows do not add up. Then the file is as it was.
    """
    path, index_path = paths(job, file.name)
    stored = _Tally()

    def ledger() -> Ledger:
        return Ledger(
            rows_in=rows_in, rows_used=builder.rows_used, rejected=dict(rejected), tokens_cut=builder.tokens_cut
        )

    def pieces() -> Iterator[memoryview | bytes]:
        yield from stored.watch(_frames(job, job.spec.schema_of(file.length), builder, rng, stored), place=file.name)
        # What is raised here, before the file is complete, keeps it from ever appearing.
        _check(ledger(), place=file.name)
        if expected is not None:
            _check_same(stored.shard(file, ledger()), expected)

    storage.write_atomic(path, pieces(), inside=job.root, replacing=seen.get(path))
    if job.spec.index_stride:
        storage.write_bytes(index_path, stored.index.dump(), inside=job.root, replacing=seen.get(index_path))
    return stored.shard(file, ledger())


def delete(job: Job, name: str, *, seen: Mapping[str, int]) -> None:
    """Removes a file that an earlier try may have left, and its index; `seen` says what was there at the start."""
    path, index_path = paths(job, name)
    if seen.get(path) != 0:
        storage.delete(path, inside=job.root)
    if job.spec.index_stride and seen.get(index_path) != 0:
        storage.delete(index_path, inside=job.root)


def paths(job: Job, name: str) -> tuple[str, str]:
    """Where a file and its index go."""
    return storage.join(job.root, name), storage.join(job.root, record_index.file_name(name))


def _check(ledger: Ledger, *, place: str) -> None:
    """Each number was counted at a place of its own: read, laid out, rejected. Raises: LedgerError if they disagree."""
    if not ledger.balanced:
        raise LedgerError(
            f"{place}: {ledger.rows_in} rows were read, {ledger.rows_used} used and {ledger.rows_rejected} rejected, "
            "expected every row to be used or rejected",
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
            remedy=OTHERWISE,
        )


def _frames(
    job: Job, schema: Schema, builder: Builder, rng: np.random.Generator | None, tally: _Tally
) -> Iterator[memoryview | bytes]:
    """The shard's bytes, piece by piece; the next pieces are made while one is digested and written."""

    def made(columns: Mapping[str, np.ndarray]) -> tuple[records.Frames, int]:
        return records.encode_framed(columns, schema), int(count_tokens(columns, schema).sum())

    def framed() -> Iterator[memoryview]:
        threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
        for frames, num_tokens in ordered_map(made, builder.chunks(rng), threads=threads):
            tally.num_examples += len(frames)
            tally.num_tokens += num_tokens
            tally.index.add(np.diff(frames.offsets))
            yield frames.data.data

    return _compressed(framed(), job.spec.compression)


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

    def shard(self, file: ShardFile, ledger: Ledger) -> Shard:
        """The finished shard's entry."""
        return Shard(
            name=file.name,
            num_bytes=self._num_bytes,
            num_examples=self.num_examples,
            num_tokens=self.num_tokens,
            sha256=self._digest.hexdigest(),
            ledger=ledger,
            length=file.length,
            task=file.task,
        )
