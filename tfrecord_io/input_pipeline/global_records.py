"""Training records in the global order: each host reads its columns of every global batch.

    window number ─► rows of this host ─► their blocks ─► one read each, many at a time ─► the rows in them
                     (global_order)       each once       TFRecordDataset from a byte      one gather

The graph contains the byte where each block begins: 8 bytes per block of 64 records, so 12.5 MB for 100 million
records. A split of up to 64 MB is instead read once and kept as serialized records.

CPU time per row of a batch, in microseconds, with rows of 512 tokens from a local disk, on one of H hosts:

    global batch 256       H = 1    2    4    8        global batch 2,048     H = 8
    order of hosts        10.4 11.2 12.4 14.7                                10.9
    global order          11.4 11.8 16.1 20.7                                12.4

The time grows with H because each host searches the whole window for its rows. In each window it reads at most two
blocks more than its part of the records.

By default TensorFlow's client for gs:// requests 64 MiB at each position: for 45 MB in blocks of 90 kB it requests
35 GB. With GCS_READ_CACHE_BLOCK_SIZE_MB=0 it requests only the blocks.
"""

import concurrent.futures
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import shard_reading
from tfrecord_io.input_pipeline.record_order import Ragged, one_after_the_other
from tfrecord_io.input_pipeline.shard_reading import InputRequest, SplitShards
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.ordering.global_order import ENDLESS, GCS_BLOCK_SIZE, GlobalOrder, fits_in_memory

# Concurrent reads per window; two windows are read at the same time. An object store takes 30 ms for a read.
_READS = 16
_WINDOWS = 2
_LEAST_BUFFER_BYTES = 4096
# An object store takes 20 to 50 ms per request, and serves many concurrently.
_REQUESTS = 32


def training(request: InputRequest, columns: range) -> tf.data.Dataset:
    """Return an endless dataset of serialized records, string [n] with varying n, from the request's first step on.

    Raises: ReaderError if shards to be read from their middle have no index, or an index is missing.
        CorruptRecordError if one is damaged.
    """
    schedule = mixing_plan.schedule(request.rates, rows=request.global_batch_size)
    block_bytes = {source.name: _block_bytes(source, length=request.shuffle.block_length) for source in request.sources}

    def batches_of(stage: mixing_plan.Stage) -> tf.data.Dataset:
        whole = schedule.stage_of(stage.first)
        orders = {
            part: GlobalOrder.of(
                source.shards,
                compression=source.compression,
                seed=source.seed,
                shuffle=request.shuffle,
                schedule=schedule,
                stage=whole,
                part=part,
            )
            for part, source in enumerate(request.sources)
            if part in whole.parts
        }
        # One group of splits in memory, one of splits in blocks.
        groups = [[part for part in orders if (orders[part].block == 1) == small] for small in (True, False)]
        streams = [
            _Streams(
                sources=[request.sources[part] for part in parts],
                orders=[orders[part] for part in parts],
                bytes_KG=[block_bytes[request.sources[part].name] for part in parts],
                columns=columns,
                step=stage.first,
            ).rows(alone=len(request.sources) == 1)
            for parts in groups
            if parts
        ]
        if len(request.sources) == 1:
            return streams[0].map(lambda serialized, _: serialized)
        return tf.data.Dataset.zip(tuple(streams)).map(_in_columns, num_parallel_calls=tf.data.AUTOTUNE)

    return one_after_the_other(schedule.remaining(request.start_step), batches_of)


def _in_columns(*parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    serialized, column = (tf.concat(each, axis=0) for each in zip(*parts, strict=True))
    return tf.gather(serialized, tf.argsort(column))


def _block_bytes(source: SplitShards, *, length: int) -> np.ndarray:
    """Return the byte to read each block from, int64 [G]; empty for a split in memory. Raises: as `training`."""
    if fits_in_memory(source.shards, compression=source.compression):
        return np.empty(0, np.int64)
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
        starts = pool.map(functools.partial(source.block_bytes, length=length), range(len(source.shards)))
        return np.concatenate(list(starts))


@dataclasses.dataclass(kw_only=True)
class _Streams:
    """Records of K datasets in one stage, all in memory or all in blocks, in some columns of all batches from `step`.

    One function makes all streams, since TensorFlow prepares each function of a dataset separately: with one per
    dataset, a mixture of 50 needed 35 CPU s before its first batch.
    """

    sources: Sequence[SplitShards]
    orders: Sequence[GlobalOrder]
    bytes_KG: Sequence[np.ndarray]
    columns: range
    step: int

    def __post_init__(self) -> None:
        columns, orders, sources = self.columns, self.orders, self.sources
        begun = [order.begin(order.rows_before(self.step), first=columns.start, last=columns.stop) for order in orders]
        # A stage that ends has no later windows.
        ends = [order.begin(order.end_row - 1)[0] + 1 if order.end_row < ENDLESS else ENDLESS for order in orders]
        counts_KP = np.stack([order.counts(columns.start, columns.stop) for order in orders])
        self._counts_KP = np.roll(counts_KP, -((self.step - orders[0].first_step) % counts_KP.shape[1]), axis=1)
        of_record = [sum(shard.num_bytes for shard in source.shards) / source.num_rows for source in sources]
        self._values = {
            "first": np.array([first for first, _ in begun]),
            "begun": np.array([rows for _, rows in begun]),
            "windows": np.array([end - first for end, (first, _) in zip(ends, begun, strict=True)]),
            "counts_P": self._counts_KP,
            "compression": np.array([shard_reading.TYPES[source.compression] for source in sources], object),
            "stride": np.array([source.index_stride or 1 for source in sources]),
            # About the size of a block: bytes read beyond it are wasted.
            "buffer": np.array([max(_LEAST_BUFFER_BYTES, int(each * orders[0].block * 1.1)) for each in of_record]),
        }
        self._values = {name: tf.constant(value) for name, value in self._values.items()}
        self._numbers = {
            name: tf.constant(np.stack([np.array(getattr(order, name), np.int64) for order in orders]))
            for name in GlobalOrder.NUMBERS
        }
        self._shard_parts = Ragged([order._shard_parts for order in orders], [tf.int64] * 4)
        self._free_slots = Ragged([(order.free_slots,) for order in orders], [tf.int64])
        self._shards = Ragged([(source.paths, source.rows) for source in sources], [tf.string, tf.int64])
        self._bytes = Ragged([(each,) for each in self.bytes_KG], [tf.int64])

    def rows(self, *, alone: bool) -> tf.data.Dataset:
        """Return serialized records and their columns: string [n] and int64 [n], batch by batch unless `alone`.

        They are in order of steps, then columns, and endless unless the stage ends.
        """
        if alone:
            return self._stream(tf.constant(0), whole_batches=False)
        count = len(self.sources)
        streams = tf.data.Dataset.range(count).interleave(self._stream, cycle_length=count, block_length=1)
        counts_PK = tf.constant(self._counts_KP.T)

        def joined(batch: tf.Tensor, parts: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            counts_K = counts_PK[batch % tf.shape(counts_PK, tf.int64)[0]]
            mask_KN = tf.sequence_mask(counts_K, tf.shape(parts[0])[1])
            return tuple(tf.boolean_mask(part, mask_KN) for part in parts)

        return streams.padded_batch(count).enumerate().map(joined)

    # AutoGraph would take 3 s here and has nothing to rewrite.
    @tf.autograph.experimental.do_not_convert
    def _stream(self, k: tf.Tensor, *, whole_batches: bool = True) -> tf.data.Dataset:
        values = {name: value[k] for name, value in self._values.items()}
        numbers = {name: value[k] for name, value in self._numbers.items()}
        (free_slots,) = self._free_slots[k]
        order = self.orders[0].with_numbers(numbers, shard_parts=self._shard_parts[k], free_slots=free_slots)
        paths_S, rows_S = self._shards[k]

        def plan(window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            _, found, rows = order.of_window(window, self.columns.start, self.columns.stop, TENSORS)
            return found, rows

        def windows() -> tf.data.Dataset:
            numbered = tf.data.Dataset.counter(values["first"]).take(values["windows"])
            found = numbered.map(plan, num_parallel_calls=_WINDOWS).enumerate()
            found = found.map(
                lambda at, window: tuple(each[tf.where(tf.equal(at, 0), values["begun"], 0) :] for each in window)
            )
            # A window that ends an epoch may have no rows for a host.
            return found.filter(lambda _, rows: tf.size(rows) > 0)

        if order.block == 1:
            size, num_rows = shard_reading.READ_BYTES, order.num_rows
            records = tf.data.TFRecordDataset(paths_S, values["compression"], buffer_size=size)
            whole = records.apply(tf.data.experimental.assert_cardinality(num_rows)).batch(num_rows)
            found = whole.flat_map(
                lambda serialized_N: windows().map(
                    lambda columns, rows: (tf.gather(serialized_N, rows), columns), num_parallel_calls=_WINDOWS
                )
            )
        else:
            read = functools.partial(
                _read_blocks,
                paths_S=paths_S,
                rows_S=rows_S,
                bytes_G=self._bytes[k][0],
                length=order.block,
                index_stride=values["stride"],
                compression=values["compression"],
                buffer_size=values["buffer"],
            )
            found = windows().map(lambda columns, rows: (read(rows), columns), num_parallel_calls=_WINDOWS)
        return found.rebatch(values["counts_P"], drop_remainder=True) if whole_batches else found


class TENSORS:
    """The operations of `ordering.permutation.NUMPY` on tensors."""

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
        # A loop in the graph: its operations are built once, not once per turn.
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


def _read_blocks(
    rows: tf.Tensor,
    *,
    paths_S: tf.Tensor,
    rows_S: tf.Tensor,
    bytes_G: tf.Tensor,
    length: int,
    index_stride: tf.Tensor,
    compression: tf.Tensor,
    buffer_size: tf.Tensor,
) -> tf.Tensor:
    """Read the serialized records, string [n], of some rows of the split, int64 [n], n at least 1.

    length: records per block. bytes_G: the byte to read each block of all shards from, int64.
    """

    def read_one(path: tf.Tensor, byte: tf.Tensor, count: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
        records = shard_reading.records_at(
            path, byte, count, skip, count, compression=compression, buffer_size=buffer_size
        )
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
        first_records % index_stride,
    )
    places = tf.gather(tf.cumsum(counts, exclusive=True), block) + records % length
    serialized = (
        tf.data.Dataset.from_tensor_slices(reads)
        .map(read_one, num_parallel_calls=_READS, deterministic=True)
        .rebatch(tf.reduce_sum(counts))
        .get_single_element()
    )
    return tf.gather(serialized, places)
