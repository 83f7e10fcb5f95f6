"""Records in the global order, in the graph: each host's part of every window is read by itself, in blocks.

    window number ─► rows of this host ─► which blocks ─► one read each, many at a time ─► the rows among them
                     (global_order)       each once       TFRecordDataset from a byte        one gather

Where blocks begin is part of the graph: 8 bytes for each block of 64 records, so 12.5 MB for 100 million. A split of up
to 64 MB is instead read once as a whole and kept as serialized records; each of its epochs is a full permutation.

CPU time for a row of a batch, in microseconds, on rows of 512 tokens from a local disk, on one of H hosts:

    global batch 256       H = 1    2    4    8        global batch 2,048     H = 8
    order of hosts        10.4 11.2 12.4 14.7                                10.9
    global order          11.4 11.8 16.1 20.7                                12.4

TensorFlow's client for gs:// by default asks for 64 MiB wherever it begins to read, whatever the buffer: for 45 MB in
blocks of 90 kB it asks for 35 GB. With GCS_READ_CACHE_BLOCK_SIZE_MB=0 it asks for the blocks alone.

What grows with H is that each host looks for its rows among those of the whole window. It reads at most two blocks in
each window more than its part of the records.
"""

from __future__ import annotations

import dataclasses
import os
import warnings

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline.input_source import Source, in_parallel
from tfrecord_io.input_pipeline.tensor_ops import TENSORS
from tfrecord_io.ordering.global_order import GlobalOrder
from tfrecord_io.ordering.settings import GCS_BLOCK_SIZE

__all__ = ["Stream", "require_index", "warn_of_large_ranges"]

# Of one window; two windows are read at the same time. An object store takes 30 ms for each.
_READS = 16
_WINDOWS = 2
_LEAST_BUFFER_BYTES = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """What the columns [first, last) of all batches get of one dataset, from a step on."""

    source: Source
    order: GlobalOrder
    in_memory: bool
    first: int
    last: int

    # Nothing here is for autograph to rewrite, which would take 3 s.
    @tf.autograph.experimental.do_not_convert
    def rows(self, step: int) -> tf.data.Dataset:
        """Serialized records with their columns, (string [n], int64 [n]) without end, in order of steps, then columns.

        Raises: ReaderError if an index is missing, CorruptRecordError if it is damaged.
        """
        if self.in_memory:
            return self._all_records().flat_map(
                lambda serialized_N: self._windows(step).map(
                    lambda columns, rows: (tf.gather(serialized_N, rows), columns), num_parallel_calls=_WINDOWS
                )
            )
        blocks = _Blocks.of(self.source, length=self.order.block)
        return self._windows(step).map(lambda columns, rows: (blocks.read(rows), columns), num_parallel_calls=_WINDOWS)

    def _windows(self, step: int) -> tf.data.Dataset:
        """Columns and rows of the split, window by window, int64 [n] twice."""
        begun = self.order.begin(self.order.batches.rows_before(step), first=self.first, last=self.last)
        windows = tf.data.Dataset.counter(begun.window).map(self._plan, num_parallel_calls=_WINDOWS)
        if begun.rows:
            windows = windows.enumerate().map(
                lambda at, window: tuple(each[tf.where(tf.equal(at, 0), begun.rows, 0) :] for each in window)
            )
        # Of a window in which an epoch ends, a host may get nothing.
        return windows.filter(lambda columns, rows: tf.size(rows) > 0)

    def _plan(self, window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        placed = self.order.of_window(window, self.first, self.last, TENSORS)
        return placed.columns, placed.rows

    def _all_records(self) -> tf.data.Dataset:
        """One element: all records of the split, string [N]."""
        return self.source.records(self.source.paths, self.order.num_rows).batch(self.order.num_rows)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Blocks:
    """The blocks of a split's shards, `length` records each, the last one of a shard fewer.

    bytes_G: where each block is read from, int64; blocks are numbered through all shards.
    """

    source: Source
    length: int
    bytes_G: np.ndarray

    @classmethod
    def of(cls, source: Source, *, length: int) -> _Blocks:
        """Read the indexes. Raises: ReaderError if one is missing, CorruptRecordError if it is damaged."""
        found = in_parallel(lambda shard: source.block_bytes(shard, length=length), range(len(source.shards)))
        return cls(source=source, length=length, bytes_G=np.concatenate(found))

    def read(self, rows: tf.Tensor) -> tf.Tensor:
        """Serialized records, string [n], of rows of the split, int64 [n], of which there is at least one."""
        ends_S = np.cumsum(self.source.rows, dtype=np.int64)
        blocks_S = -(-np.array(self.source.rows, np.int64) // self.length)
        shards = TENSORS.search(tf.constant(ends_S), rows)
        records = rows - tf.gather(tf.constant(ends_S - self.source.rows), shards)
        first_blocks_S = tf.constant(np.cumsum(blocks_S) - blocks_S)
        blocks, block = tf.unique(tf.gather(first_blocks_S, shards) + records // self.length, tf.int64)

        shards = TENSORS.search(tf.constant(np.cumsum(blocks_S)), blocks)
        first_records = (blocks - tf.gather(first_blocks_S, shards)) * self.length
        counts = TENSORS.minimum(
            self.length, tf.gather(tf.constant(self.source.rows, tf.int64), shards) - first_records
        )
        reads = (
            tf.gather(tf.constant(self.source.paths), shards),
            tf.gather(tf.constant(self.bytes_G), blocks),
            counts,
            first_records % (self.source.index_stride or 1),
        )
        places = tf.gather(tf.cumsum(counts, exclusive=True), block) + records % self.length
        serialized = (
            tf.data.Dataset.from_tensor_slices(reads)
            .map(self._read_one, num_parallel_calls=_READS, deterministic=True)
            .rebatch(tf.reduce_sum(counts))
            .get_single_element()
        )
        return tf.gather(serialized, places)

    def _read_one(self, path: tf.Tensor, byte: tf.Tensor, count: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
        records = self.source.block(path, byte, count, skip, buffer_size=self._buffer_bytes)
        return records.batch(self.length).get_single_element()

    @property
    def _buffer_bytes(self) -> int:
        """About as much as a block has: what is read beyond it is read in vain."""
        of_record = sum(shard.num_bytes for shard in self.source.shards) / sum(self.source.rows)
        return max(_LEAST_BUFFER_BYTES, int(of_record * self.length * 1.1))


def require_index(source: Source) -> None:
    """Raises: ReaderError if records in the middle of shards cannot be read."""
    if source.index_stride is None:
        why = "are compressed" if source.compression == "gzip" else "have no index"
        raise ReaderError(
            f"{source.root}: order is 'global', and its shards {why}: expected an index, since rows are read from the "
            "middle of shards",
            remedy="build the dataset without --compression gzip, or read it with order='hosts'",
        )


def warn_of_large_ranges(source: Source) -> None:
    """Warn if TensorFlow would ask gs:// for far more than it reads."""
    if source.root.startswith("gs://") and GCS_BLOCK_SIZE not in os.environ:
        warnings.warn(
            f"{source.root}: order is 'global', and TensorFlow asks gs:// for 64 MiB wherever a block of rows begins; "
            f"set {GCS_BLOCK_SIZE}=0 in the environment before it is imported, copy the dataset to a local disk, or "
            "read it with order='hosts'",
            RuntimeWarning,
            stacklevel=2,
        )
