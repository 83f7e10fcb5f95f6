"""Read training records in the global order.

The graph contains the byte offset of each block of 64 records, 12.5 MB for 100 million records. Splits of up to 64 MB
are kept in memory instead, as serialized records.

CPU microseconds per row of 512 tokens in the order of hosts and in the global order: 10.4 and 11.4 with one host and
batches of 256, 14.7 and 20.7 with 8 hosts.
"""

import concurrent.futures
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import shard_reading
from tfrecord_io.input_pipeline.record_order import PerStream, in_stages
from tfrecord_io.input_pipeline.shard_reading import InputRequest, SplitShards
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.mixing.mixing_plan import ENDLESS
from tfrecord_io.ordering.global_order import GCS_BLOCK_SIZE, GlobalOrder, fits_in_memory

# Concurrent reads per window, and concurrent windows. A read from an object store takes 30 ms.
_READS, _WINDOWS = 16, 2
_LEAST_BUFFER_BYTES = 4096
_INDEX_REQUESTS = 32


def training(request: InputRequest, columns: range) -> tf.data.Dataset:
    """Return a host's endless training records, string [n], n varies. `columns`: its positions in global batches."""
    schedule = mixing_plan.schedule(request.rates, rows=request.global_batch_size)
    stages = [stage for stage in schedule if stage.last > request.start_step]
    groups: dict[bool, list[int]] = {}
    for part, source in enumerate(request.sources):
        groups.setdefault(fits_in_memory(source.shards, compression=source.compression), []).append(part)

    def order(part: int, stage: mixing_plan.Stage) -> GlobalOrder:
        source = request.sources[part]
        options: Any = {"compression": source.compression, "seed": source.seed, "shuffle": request.shuffle}
        return GlobalOrder.of(source.shards, **options, schedule=schedule, stage=stage, part=part)

    streams = [
        _Streams(
            sources=[request.sources[part] for part in parts],
            orders=[order(part, stage) for stage in stages for part in parts],
            columns=columns,
            start_step=request.start_step,
        )
        for parts in groups.values()
    ]
    if len(request.sources) == 1:
        return in_stages(lambda at: streams[0].stream(at).map(lambda serialized, _: serialized), len(stages))
    steps = tf.constant([stage.last - max(stage.first, request.start_step) for stage in stages])

    def batches(at: tf.Tensor) -> tf.data.Dataset:
        parts = tuple(group.batches(at) for group in streams)
        return tf.data.Dataset.zip(parts).map(_in_columns, num_parallel_calls=tf.data.AUTOTUNE).take(steps[at])

    return in_stages(batches, len(stages))


def _in_columns(*parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    serialized, column = (tf.concat(tensors, axis=0) for tensors in zip(*parts, strict=True))
    return tf.gather(serialized, tf.argsort(column))


def _block_bytes(source: SplitShards, *, length: int) -> np.ndarray:
    if fits_in_memory(source.shards, compression=source.compression):
        return np.empty(0, np.int64)
    if source.index_stride is None:
        problem = "are compressed" if source.compression == "gzip" else "have no index"
        raise ReaderError(
            f"{source.root}: the shards {problem}, but order='global' needs an index to read from the middle of shards",
            remedy="build the dataset without --compression gzip, or read it with order='hosts'",
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
        return np.concatenate(list(starts))


class _Streams:
    def __init__(
        self, *, sources: Sequence[SplitShards], orders: Sequence[GlobalOrder], columns: range, start_step: int
    ) -> None:
        # `orders` has the orders of all datasets in the first stage, then in the second, and so on. All datasets are
        # held in memory, or none is. One function makes all streams, as in `record_order.training_batches`.
        self._columns, self._num_sources = columns, len(sources)
        # The graph for a stage that begins within a window also serves other stages.
        self._order = next((order for order in orders if order.earlier is not None), orders[0])
        values: dict[str, list[Any]] = {name: [getattr(order, name) for order in orders] for name in GlobalOrder.VALUES}
        for order in orders:
            step = max(order.stage.first, start_step)
            window, begun = order.begin(order.rows_before(step), first=columns.start, last=columns.stop)
            end = order.begin(order.end_row - 1)[0] + 1 if order.end_row < ENDLESS else ENDLESS
            counts_P = order.counts(columns.start, columns.stop)
            counts_P = np.roll(counts_P, -((step - order.stage.first) % len(counts_P)))
            begin = {"first": window, "begun": begun, "windows": end - window, "counts_P": counts_P}
            for name, value in begin.items():
                values.setdefault(name, []).append(value)
        self._of_stream = PerStream(**values)
        self._of_stage = PerStream(rows_PK=[order.rows_PK for order in orders[:: len(sources)]])
        of_record = [sum(shard.num_bytes for shard in source.shards) / source.num_rows for source in sources]
        block = self._order.block
        self._of_source = PerStream(
            paths_S=[source.paths for source in sources],
            rows_S=[source.rows for source in sources],
            bytes_G=[_block_bytes(source, length=block) for source in sources],
            compression=[shard_reading.TYPES[source.compression] for source in sources],
            index_stride=[source.index_stride or 1 for source in sources],
            # About the size of a block, since bytes read after the block are wasted.
            buffer_size=[max(_LEAST_BUFFER_BYTES, int(num_bytes * block * 1.1)) for num_bytes in of_record],
        )

    def batches(self, stage: tf.Tensor) -> tf.data.Dataset:
        count = self._num_sources
        streams = tf.data.Dataset.range(stage * count, (stage + 1) * count).interleave(
            functools.partial(self.stream, whole_batches=True),
            cycle_length=count,
            block_length=1,
        )

        def joined(serialized_KN: tf.Tensor, columns_KN: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tuple(tf.boolean_mask(values, columns_KN >= 0) for values in (serialized_KN, columns_KN))

        padding = tf.constant(""), tf.constant(-1, tf.int64)
        return streams.padded_batch(count, padding_values=padding).map(joined)

    def stream(self, at: tf.Tensor, *, whole_batches: bool = False) -> tf.data.Dataset:
        # Records are sorted by step, then column. An element is a window or, with `whole_batches`, a batch.
        values, source = self._of_stream[at], self._of_source[at % self._num_sources]
        order = self._order.with_values({**values, **self._of_stage[at // self._num_sources]})

        def plan(window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            _, columns, rows = order.of_window(window, self._columns.start, self._columns.stop, TENSORS)
            return columns, rows

        def windows() -> tf.data.Dataset:
            numbered = tf.data.Dataset.counter(values["first"]).take(values["windows"])
            planned = numbered.map(plan, num_parallel_calls=_WINDOWS).enumerate()
            planned = planned.map(
                lambda at, window: tuple(array[tf.where(tf.equal(at, 0), values["begun"], 0) :] for array in window)
            )
            # The last window of an epoch may have no rows for this host.
            return planned.filter(lambda _, rows: tf.size(rows) > 0)

        if order.block == 1:
            size, num_rows = shard_reading.READ_BYTES, order.num_rows
            records = tf.data.TFRecordDataset(source["paths_S"], source["compression"], buffer_size=size)
            whole = records.apply(tf.data.experimental.assert_cardinality(num_rows)).batch(num_rows)
            records = whole.flat_map(
                lambda serialized_N: windows().map(
                    lambda columns, rows: (tf.gather(serialized_N, rows), columns), num_parallel_calls=_WINDOWS
                )
            )
        else:
            read: Any = functools.partial(_read_blocks, length=order.block, **source)
            records = windows().map(lambda columns, rows: (read(rows), columns), num_parallel_calls=_WINDOWS)
        return records.rebatch(values["counts_P"], drop_remainder=True) if whole_batches else records


class TENSORS:
    """Operations of `ordering.permutation.NUMPY`, on tensors."""

    count, gather = staticmethod(tf.math.count_nonzero), staticmethod(tf.gather)
    constant = staticmethod(lambda values: tf.convert_to_tensor(values, tf.int64))
    arange = staticmethod(lambda start, stop: tf.range(tf.cast(start, tf.int64), tf.cast(stop, tf.int64)))
    shifted = staticmethod(lambda values, bits: tf.bitwise.right_shift(values, tf.constant(bits, tf.int64)))
    minimum = staticmethod(lambda a, b: tf.minimum(tf.cast(a, tf.int64), tf.cast(b, tf.int64)))
    maximum = staticmethod(lambda a, b: tf.maximum(tf.cast(a, tf.int64), tf.cast(b, tf.int64)))
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
    def read_one(path: tf.Tensor, byte: tf.Tensor, count: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
        records = shard_reading.records_at(
            path, byte, count, skip, count, compression=compression, buffer_size=buffer_size
        )
        return records.batch(length).get_single_element()

    # `rows` are numbers in the split. `length` is the number of records per block.
    ends_S, blocks_S = tf.cumsum(rows_S), -(-rows_S // length)
    shards = TENSORS.search(ends_S, rows)
    records = rows - tf.gather(ends_S - rows_S, shards)
    first_blocks_S = tf.cumsum(blocks_S, exclusive=True)
    blocks, block = tf.unique(tf.gather(first_blocks_S, shards) + records // length, tf.int64)

    shards = TENSORS.search(tf.cumsum(blocks_S), blocks)
    first_records = (blocks - tf.gather(first_blocks_S, shards)) * length
    counts = TENSORS.minimum(length, tf.gather(rows_S, shards) - first_records)
    reads = (tf.gather(paths_S, shards), tf.gather(bytes_G, blocks), counts, first_records % index_stride)
    places = tf.gather(tf.cumsum(counts, exclusive=True), block) + records % length
    serialized = (
        tf.data.Dataset.from_tensor_slices(reads)
        .map(read_one, num_parallel_calls=_READS, deterministic=True)
        .rebatch(tf.reduce_sum(counts))
        .get_single_element()
    )
    return tf.gather(serialized, places)
