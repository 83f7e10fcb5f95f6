"""Read training records in the global order: each host reads its columns of every global batch.

The graph contains the byte offset of each block of 64 records, 12.5 MB for 100 million records. A split of up to 64 MB
is read once and kept as serialized records instead.

CPU microseconds per row of 512 tokens from a local disk, on one of H hosts. Each host searches the whole window:

    global batch 256       H = 1    2    4    8        global batch 2,048     H = 8
    order of hosts        10.4 11.2 12.4 14.7                                10.9
    global order          11.4 11.8 16.1 20.7                                12.4
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
from tfrecord_io.input_pipeline import shard_reading
from tfrecord_io.input_pipeline.record_order import in_stages
from tfrecord_io.input_pipeline.shard_reading import InputRequest, SplitShards
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.mixing.mixing_plan import ENDLESS, Stage
from tfrecord_io.ordering.global_order import GCS_BLOCK_SIZE, GlobalOrder, fits_in_memory

# Concurrent reads per window, and concurrent windows. A read from an object store takes 30 ms.
_READS, _WINDOWS = 16, 2
_LEAST_BUFFER_BYTES = 4096
_INDEX_REQUESTS = 32


def training(request: InputRequest, columns: range) -> tf.data.Dataset:
    """Return an endless dataset of serialized records, string [n] with varying n, from the request's first step on."""
    schedule = mixing_plan.schedule(request.rates, rows=request.global_batch_size)
    blocks = [_block_bytes(source, length=request.shuffle.block_length) for source in request.sources]
    alone = len(blocks) == 1

    def batches(stage: Stage) -> tf.data.Dataset:
        first_step = max(stage.first, request.start_step)
        streams = []
        for part, (source, bytes_G) in enumerate(zip(request.sources, blocks, strict=True)):
            order = GlobalOrder.of(
                source.shards,
                compression=source.compression,
                seed=source.seed,
                shuffle=request.shuffle,
                schedule=schedule,
                stage=stage,
                part=part,
            )
            windows = _stream(source, order, bytes_G, columns=columns, first_step=first_step)
            counts_P = np.roll(
                order.counts(columns.start, columns.stop), -(first_step - stage.first) % order.num_elements
            )
            streams.append(windows if alone else windows.rebatch(counts_P, drop_remainder=True))
        if alone:
            return streams[0].map(lambda serialized, _: serialized)
        mixed = tf.data.Dataset.zip(tuple(streams)).map(_in_columns, num_parallel_calls=tf.data.AUTOTUNE)
        return mixed.take(stage.last - first_step)

    return in_stages(batches, [stage for stage in schedule if stage.last > request.start_step])


def _in_columns(*parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    serialized, column = (tf.concat(tensors, axis=0) for tensors in zip(*parts, strict=True))
    return tf.gather(serialized, tf.argsort(column))


def _block_bytes(source: SplitShards, *, length: int) -> tf.Tensor:
    if fits_in_memory(source.shards, compression=source.compression):
        return tf.zeros([0], tf.int64)
    if source.index_stride is None:
        is_gzip = source.compression == "gzip"
        problem, build = ("are compressed", "without --compression gzip") if is_gzip else ("have no index", "again")
        raise ReaderError(
            f"{source.root}: the shards {problem}, but order='global' needs an index to read from the middle of shards",
            remedy=f"build the dataset {build}, or read it with order='hosts'",
        )
    if source.root.startswith("gs://") and GCS_BLOCK_SIZE not in os.environ:
        warnings.warn(
            f"{source.root}: with order='global', TensorFlow downloads 64 MiB from gs:// for each block of rows; set "
            f"{GCS_BLOCK_SIZE}=0 in the environment before importing TensorFlow, copy the dataset to a local disk, or "
            "read it with order='hosts'",
            RuntimeWarning,
            stacklevel=2,
        )
    with concurrent.futures.ThreadPoolExecutor(_INDEX_REQUESTS) as pool:
        starts = pool.map(functools.partial(source.block_bytes, length=length), range(len(source.shards)))
        return tf.constant(np.concatenate(list(starts)))


def _stream(
    source: SplitShards, order: GlobalOrder, bytes_G: tf.Tensor, *, columns: range, first_step: int
) -> tf.data.Dataset:
    """Return the windows of one dataset in one stage: serialized records and their columns, by step, then column."""
    first, begun = order.begin(order.rows_before(first_step), first=columns.start, last=columns.stop)
    # The last window of a stage, if the stage ends.
    end = order.begin(order.end_row - 1)[0] + 1 if order.end_row < ENDLESS else ENDLESS

    def plan(window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        _, columns_N, rows_N = order.of_window(window, columns.start, columns.stop, TENSORS)
        skip = tf.where(tf.equal(window, first), begun, 0)
        return columns_N[skip:], rows_N[skip:]

    def windows() -> tf.data.Dataset:
        planned = tf.data.Dataset.range(first, end).map(plan, num_parallel_calls=_WINDOWS)
        # The last window of an epoch may have no rows for this host.
        return planned.filter(lambda _, rows_N: tf.size(rows_N) > 0)

    kind = shard_reading.TYPES[source.compression]
    if order.block == 1:
        records = tf.data.TFRecordDataset(source.paths, kind, buffer_size=shard_reading.READ_BYTES)
        whole = records.apply(tf.data.experimental.assert_cardinality(order.num_rows)).batch(order.num_rows)
        return whole.flat_map(
            lambda serialized_N: windows().map(
                lambda columns_N, rows_N: (tf.gather(serialized_N, rows_N), columns_N), num_parallel_calls=_WINDOWS
            )
        )
    num_bytes = sum(shard.num_bytes for shard in source.shards) / source.num_rows * order.block
    # About the size of a block, since bytes read after the block are wasted.
    buffer_size = max(_LEAST_BUFFER_BYTES, int(num_bytes * 1.1))
    read = functools.partial(_read_blocks, source=source, bytes_G=bytes_G, length=order.block, buffer_size=buffer_size)
    return windows().map(lambda columns_N, rows_N: (read(rows_N), columns_N), num_parallel_calls=_WINDOWS)


class TENSORS:
    """`ordering.permutation.NUMPY` on tensors."""

    count, gather = staticmethod(tf.math.count_nonzero), staticmethod(tf.gather)
    constant = staticmethod(lambda values: tf.convert_to_tensor(values, tf.int64))
    arange = staticmethod(lambda start, stop: tf.range(tf.cast(start, tf.int64), tf.cast(stop, tf.int64)))
    shifted = staticmethod(lambda values, bits: tf.bitwise.right_shift(values, tf.constant(bits, tf.int64)))
    minimum = staticmethod(lambda one, other: tf.minimum(tf.cast(one, tf.int64), tf.cast(other, tf.int64)))
    maximum = staticmethod(lambda one, other: tf.maximum(tf.cast(one, tf.int64), tf.cast(other, tf.int64)))
    where = staticmethod(lambda chosen, a, b: tf.where(chosen, tf.cast(a, tf.int64), tf.cast(b, tf.int64)))
    indices = staticmethod(lambda chosen: tf.where(chosen)[:, 0])
    order = staticmethod(lambda keys: tf.cast(tf.argsort(keys, stable=True), tf.int64))
    total = staticmethod(lambda values: tf.reduce_sum(values, axis=1))
    search = staticmethod(lambda ends, values: tf.searchsorted(ends, values, side="right", out_type=tf.int64))

    @staticmethod
    def changed(turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        # A loop in the graph builds its operations once.
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

        return tf.while_loop(unfinished, changed, [tf.ones_like(values, tf.bool), values])[1]


def _read_blocks(
    rows: tf.Tensor, *, source: SplitShards, bytes_G: tf.Tensor, length: int, buffer_size: int
) -> tf.Tensor:
    """Read records `rows` of the split, at least one. `length`: records per block."""
    paths_S, rows_S = source.columns

    def read_one(path: tf.Tensor, byte: tf.Tensor, count: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
        kind = shard_reading.TYPES[source.compression]
        records = shard_reading.records_at(path, byte, count, skip, count, compression=kind, buffer_size=buffer_size)
        return records.batch(length).get_single_element()

    ends_S, blocks_S = tf.cumsum(rows_S), -(-rows_S // length)
    shards = TENSORS.search(ends_S, rows)
    records = rows - tf.gather(ends_S - rows_S, shards)
    first_blocks_S = tf.cumsum(blocks_S, exclusive=True)
    blocks, block = tf.unique(tf.gather(first_blocks_S, shards) + records // length, tf.int64)

    shards = TENSORS.search(tf.cumsum(blocks_S), blocks)
    first_records = (blocks - tf.gather(first_blocks_S, shards)) * length
    counts = TENSORS.minimum(length, tf.gather(rows_S, shards) - first_records)
    reads = (
        tf.gather(paths_S, shards),
        tf.gather(bytes_G, blocks),
        counts,
        first_records % source.index_stride,
    )
    places = tf.gather(tf.cumsum(counts, exclusive=True), block) + records % length
    serialized = (
        tf.data.Dataset.from_tensor_slices(reads)
        .map(read_one, num_parallel_calls=_READS, deterministic=True)
        .rebatch(tf.reduce_sum(counts))
        .get_single_element()
    )
    return tf.gather(serialized, places)
