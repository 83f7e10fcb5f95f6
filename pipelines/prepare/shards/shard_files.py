"""Encode rows as TFRecord bytes, and write each shard and its indexes atomically."""

import collections
import dataclasses
import hashlib
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import Builder
from pipelines.prepare.layouts.base import count_tokens
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import ordered_map
from tfrecord_io import records
from tfrecord_io.errors import LedgerError, OutputError
from tfrecord_io.examples import Payloads
from tfrecord_io.format.record_index import ShardIndexes
from tfrecord_io.manifest import Ledger, Shard
from tfrecord_io.schema import UNLABELLED
from tfrecord_io.shown import some

# More threads would only wait for layout, digest and writing, which are sequential.
_MOST_THREADS = 4

NOT_REPRODUCED_REMEDY = (
    "install the versions of the libraries that made the shard (see manifest.json), or build again with --overwrite"
)


def write(
    task: ShardTask,
    job: Job,
    builder: Builder,
    rng: np.random.Generator | None,
    *,
    threads: int,
    ledger: Ledger,
    versions: Mapping[str, int],
    expected: Shard | None,
    progress: Progress,
) -> Shard:
    """Write one shard, with the records of `builder`, and its indexes. Return its manifest entry.

    `rng`: shuffles the records; None keeps their order. `ledger`: counts of rows read, rejected and filtered.
    `versions`: result of `storage.versions`. `expected`: manifest entry of a shard that is made again, to compare; None
    for a new shard.

    Raises: OutputError if the file cannot be written, has no record, differs from `expected`, or was written by another
    job; LedgerError if the counts of rows do not add up. An existing file then stays unchanged.
    """
    name = job.shard_name(task, length=builder.length)
    counts = collections.Counter(num_bytes=0, num_examples=0, num_tokens=0, num_unlabelled=0)
    indexes, written = _indexes(job, name), []

    def pieces() -> Iterator[memoryview | bytes]:
        digest = hashlib.sha256()
        for piece in _pieces(job, builder, rng, counts, indexes, threads=threads):
            digest.update(piece)
            counts["num_bytes"] += len(piece)
            progress.add(num_bytes=len(piece))
            yield piece
        whole = dataclasses.replace(
            ledger, rows_used=builder.rows_used, tokens_cut=builder.tokens_cut, fim=dict(builder.fim)
        )
        number = None if builder.length is None else task.index
        shard = Shard(name=name, sha256=digest.hexdigest(), ledger=whole, length=builder.length, task=number, **counts)
        # An error here keeps the incomplete file from appearing.
        _check(shard, expected)
        written.append(shard)

    path = storage.join(job.root, name)
    storage.write_atomic(path, pieces(), inside=job.root, replacing=versions.get(path))
    for index, content in indexes.files().items():
        path = storage.join(job.root, index)
        storage.write_bytes(path, content, inside=job.root, replacing=versions.get(path))
    return written[0]


def _pieces(
    job: Job,
    builder: Builder,
    rng: np.random.Generator | None,
    counts: collections.Counter[str],
    indexes: ShardIndexes,
    *,
    threads: int,
) -> Iterator[memoryview | bytes]:
    schema = job.spec.schema_of(builder.length)
    label = schema.with_role("label") if job.spec.columns.label_names is not None else None

    def encode(columns: Mapping[str, np.ndarray]) -> tuple[Payloads, int, int]:
        no_label = label is not None and columns[label.name] == UNLABELLED
        num_tokens = int(count_tokens(columns, schema).sum())
        return records.encode_framed(columns, schema), num_tokens, int(np.count_nonzero(no_label))

    # wbits 31 writes a gzip header without name and time, so equal contents give equal bytes.
    packer = zlib.compressobj(wbits=31) if job.spec.compression == "gzip" else None
    encoded = ordered_map(encode, builder.chunks(rng), threads=min(threads, _MOST_THREADS))
    for frames, num_tokens, num_unlabelled in encoded:
        counts.update(num_examples=len(frames), num_tokens=num_tokens, num_unlabelled=num_unlabelled)
        indexes.add(np.diff(frames.offsets))
        yield packer.compress(frames.data.data) if packer else frames.data.data
    if packer:
        yield packer.flush()


def delete(job: Job, name: str, *, versions: Mapping[str, int]) -> None:
    """Delete the shard file `name` and its indexes, if they exist. `versions`: the result of `storage.versions`."""
    for path in paths(job, name):
        if versions.get(path) != 0:
            storage.delete(path, inside=job.root)


def paths(job: Job, name: str) -> tuple[str, ...]:
    """Return the paths of the shard file `name` and of its indexes."""
    return tuple(storage.join(job.root, file) for file in (name, *_indexes(job, name).names))


def _indexes(job: Job, name: str) -> ShardIndexes:
    return ShardIndexes(name, indexed=job.spec.index_stride is not None)


def _check(shard: Shard, expected: Shard | None) -> None:
    if not shard.num_examples:
        raise OutputError(
            f"{shard.name}: no row of this shard gives an example, expected at least one",
            remedy="give a larger --shard-size, or correct the rows that are rejected or too short",
        )
    ledger = shard.ledger
    if not ledger.balanced:
        raise LedgerError(
            f"{shard.name}: {some(ledger.rows_in, 'row')} read, but {ledger.rows_used:,} used, "
            f"{ledger.rows_rejected:,} rejected and {ledger.rows_filtered:,} filtered, expected their sum to be equal",
            remedy="please report this with the plan in .prep/",
        )
    if expected is not None and shard != expected:
        before, now = vars(expected), vars(shard)
        changed = [f"{name} {now[name]}, expected {before[name]}" for name in now if now[name] != before[name]]
        raise OutputError(
            f"{expected.name}: when this shard was made again, it had {'; '.join(changed)}; the file was not changed",
            remedy=NOT_REPRODUCED_REMEDY,
        )
