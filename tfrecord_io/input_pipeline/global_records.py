"""Training records in the global order: each host reads its columns of every global batch.

    window number ─► rows of this host ─► which blocks ─► one read each, many at a time ─► the rows in them
                     (global_order)       each once       TFRecordDataset from a byte      one gather

Each host reads only its part of every window. The graph contains the byte where each block begins: 8 bytes for each
block of 64 records, so 12.5 MB for 100 million. A split of up to 64 MB is instead read once as a whole and kept as
serialized records; each of its epochs is a full permutation.

CPU time for a row of a batch, in microseconds, with rows of 512 tokens from a local disk, on one of H hosts:

    global batch 256       H = 1    2    4    8        global batch 2,048     H = 8
    order of hosts        10.4 11.2 12.4 14.7                                10.9
    global order          11.4 11.8 16.1 20.7                                12.4

The time grows with H because each host searches the whole window for its rows. It reads at most two blocks in each
window more than its part of the records.

By default TensorFlow's client for gs:// requests 64 MiB wherever it begins to read, whatever the buffer: for 45 MB in
blocks of 90 kB it requests 35 GB. With GCS_READ_CACHE_BLOCK_SIZE_MB=0 it requests the blocks alone.
"""

import concurrent.futures
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import input_source
from tfrecord_io.input_pipeline.input_source import InputRequest, SplitShards
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.ordering.global_order import GCS_BLOCK_SIZE, GlobalOrder, fits_in_memory

# Concurrent reads for one window; two windows are read at the same time. An object store takes 30 ms for a read.
_READS = 16
_WINDOWS = 2
_LEAST_BUFFER_BYTES = 4096
# An object store takes 20 to 50 ms for each request, and serves many at a time.
_REQUESTS = 32


def training(request: InputRequest, columns: range) -> tf.data.Dataset:
    """Return an endless dataset of serialized records, string [n] with varying n, from the request's first step on.

    Raises: ReaderError if records are to be read in the middle of shards that have no index, or an index is missing.
        CorruptRecordError if one is damaged.
    """
    cycle = mixing_plan.cycle(
        tuple((source.name, source.rate) for source in request.sources), rows=request.global_batch_size
    )
    streams = []
    for part, source in enumerate(request.sources):
        order = GlobalOrder.of(
            source.shards,
            compression=source.compression,
            seed=source.seed,
            shuffle=request.shuffle,
            cycle=cycle,
            part=part,
        )
        rows = _rows(source, order, columns, step=request.start_step)
        if len(request.sources) == 1:
            return rows.map(lambda serialized, _: serialized)
        counts_P = order.counts(columns.start, columns.stop)
        streams.append(rows.rebatch(np.roll(counts_P, -(request.start_step % len(counts_P))), drop_remainder=True))

    def mixed(*parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        serialized, column = (tf.concat(each, axis=0) for each in zip(*parts, strict=True))
        return tf.gather(serialized, tf.argsort(column))

    return tf.data.Dataset.zip(tuple(streams)).map(mixed, num_parallel_calls=tf.data.AUTOTUNE)


# AutoGraph would take 3 s here and has nothing to rewrite.
@tf.autograph.experimental.do_not_convert
def _rows(source: SplitShards, order: GlobalOrder, columns: range, *, step: int) -> tf.data.Dataset:
    """Return one dataset's records in some columns of all batches, and the column of each: string [n] and int64 [n].

    They are endless, in order of steps, then columns. Raises: as `training`.
    """

    def plan(window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        _, found, rows = order.of_window(window, columns.start, columns.stop, TENSORS)
        return found, rows

    def windows() -> tf.data.Dataset:
        """Return the columns and the split's rows window by window, int64 [n] twice."""
        first, begun = order.begin(order.rows_before(step), first=columns.start, last=columns.stop)
        found = tf.data.Dataset.counter(first).map(plan, num_parallel_calls=_WINDOWS)
        if begun:
            found = found.enumerate().map(
                lambda at, window: tuple(each[tf.where(tf.equal(at, 0), begun, 0) :] for each in window)
            )
        # In a window that ends an epoch, there may be no rows for a host.
        return found.filter(lambda _, rows: tf.size(rows) > 0)

    if fits_in_memory(source.shards, compression=source.compression):
        compression, size = input_source.TYPES[source.compression], input_source.READ_BYTES
        records = tf.data.TFRecordDataset(tf.constant(source.paths), compression, buffer_size=size)
        whole = records.apply(tf.data.experimental.assert_cardinality(order.num_rows)).batch(order.num_rows)
        return whole.flat_map(
            lambda serialized_N: windows().map(
                lambda columns, rows: (tf.gather(serialized_N, rows), columns), num_parallel_calls=_WINDOWS
            )
        )
    if source.index_stride is None:
        why = "are compressed" if source.compression == "gzip" else "have no index"
        raise ReaderError(
            f"{source.root}: order is 'global', and its shards {why}: expected an index, since rows are read from the "
            "middle of shards",
            remedy="build the dataset without --compression gzip, or read it with order='hosts'",
        )
    if source.root.startswith("gs://") and GCS_BLOCK_SIZE not in os.environ:
        warnings.warn(
            f"{source.root}: order is 'global', and TensorFlow asks gs:// for 64 MiB wherever a block of rows begins; "
            f"set {GCS_BLOCK_SIZE}=0 in the environment before it is imported, copy the dataset to a local disk, or "
            "read it with order='hosts'",
            RuntimeWarning,
            stacklevel=2,
        )
    with concurrent.futures.ThreadPoolExecutor(_REQUESTS) as pool:
        starts = pool.map(functools.partial(source.block_bytes, length=order.block), range(len(source.shards)))
        read = functools.partial(_read_blocks, source, length=order.block, bytes_G=np.concatenate(list(starts)))
    return windows().map(lambda columns, rows: (read(rows), columns), num_parallel_calls=_WINDOWS)


class TENSORS:
    """The operations of `ordering.permutation.NUMPY` on tensors."""

    count, gather = staticmethod(tf.math.count_nonzero), staticmethod(tf.gather)
    constant = staticmethod(lambda values: tf.constant(values, tf.int64))
    arange = staticmethod(lambda start, stop: tf.range(tf.cast(start, tf.int64), tf.cast(stop, tf.int64)))
    shifted = staticmethod(lambda values, bits: tf.bitwise.right_shift(values, tf.constant(bits, tf.int64)))
    minimum = staticmethod(lambda one, other: tf.minimum(tf.cast(one, tf.int64), tf.cast(other, tf.int64)))
    where = staticmethod(lambda chosen, a, b: tf.where(chosen, tf.cast(a, tf.int64), tf.cast(b, tf.int64)))
    indices = staticmethod(lambda chosen: tf.where(chosen)[:, 0])
    order = staticmethod(lambda keys: tf.cast(tf.argsort(keys, stable=True), tf.int64))
    total = staticmethod(lambda values: tf.reduce_sum(values, axis=1))
    search = staticmethod(lambda ends, values: tf.searchsorted(ends, values, side="right", out_type=tf.int64))

    @staticmethod
    def changed(turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        # A loop in the graph: its operations are built once, not once for each turn.
        def next_turn(turn: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return turn + 1, *change(turn, left, right)

        begin = (tf.zeros([], tf.int64), left, right)
        return tf.while_loop(lambda turn, *_: turn < turns, next_turn, begin)[1:]

    @staticmethod
    def changed_below(limit: int, change: Callable[[tf.Tensor], tf.Tensor], values: tf.Tensor) -> tf.Tensor:
        def unfinished(pending: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            return tf.reduce_any(pending)

        def changed(pending: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            values = tf.where(pending, change(values), values)
            return values >= limit, values

        _, found = tf.while_loop(unfinished, changed, [tf.ones_like(values, tf.bool), values])
        return found


def _read_blocks(source: SplitShards, rows: tf.Tensor, *, length: int, bytes_G: np.ndarray) -> tf.Tensor:
    """Read the serialized records, string [n], of some rows of the split, int64 [n] with n of at least 1.

    length: the number of records in a block. bytes_G: the byte to read each block of all shards from, int64.
    """
    # About the size of a block: bytes read beyond it are wasted.
    of_record = sum(shard.num_bytes for shard in source.shards) / sum(source.rows)
    buffer_size = max(_LEAST_BUFFER_BYTES, int(of_record * length * 1.1))

    def read_one(path: tf.Tensor, byte: tf.Tensor, count: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
        records = input_source.records_at(
            path, byte, count, skip, count, compression=input_source.TYPES[source.compression], buffer_size=buffer_size
        )
        return records.batch(length).get_single_element()

    rows_S = np.array(source.rows, np.int64)
    ends_S, blocks_S = np.cumsum(rows_S), -(-rows_S // length)
    shards = TENSORS.search(tf.constant(ends_S), rows)
    records = rows - tf.gather(tf.constant(ends_S - rows_S), shards)
    first_blocks_S = tf.constant(np.cumsum(blocks_S) - blocks_S)
    blocks, block = tf.unique(tf.gather(first_blocks_S, shards) + records // length, tf.int64)

    shards = TENSORS.search(tf.constant(np.cumsum(blocks_S)), blocks)
    first_records = (blocks - tf.gather(first_blocks_S, shards)) * length
    counts = TENSORS.minimum(length, tf.gather(tf.constant(rows_S), shards) - first_records)
    reads = (
        tf.gather(tf.constant(source.paths), shards),
        tf.gather(tf.constant(bytes_G), blocks),
        counts,
        first_records % (source.index_stride or 1),
    )
    places = tf.gather(tf.cumsum(counts, exclusive=True), block) + records % length
    serialized = (
        tf.data.Dataset.from_tensor_slices(reads)
        .map(read_one, num_parallel_calls=_READS, deterministic=True)
        .rebatch(tf.reduce_sum(counts))
        .get_single_element()
    )
    return tf.gather(serialized, places)
