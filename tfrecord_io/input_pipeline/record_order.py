"""Order the records of a split, from shards to batches of serialized records, starting at any record.

    training (endless)                                              evaluation (every example once)
    epoch ─► shards in this epoch's order ─► interleave             shards in order
                                                │ records              │ records, then fill rows
                        windows of W records, each permuted            │
                                                └──► batch of B strings ◄┘

To start within an epoch, the client computes the position (`host_plan`). A separate graph reads the rest of that
epoch, from the start of a window. The ordinary epochs follow.
"""

import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfrecord_io.input_pipeline import host_plan, shard_reading
from tfrecord_io.input_pipeline.host_plan import Host, Shuffle
from tfrecord_io.input_pipeline.shard_reading import SplitShards, pieces
from tfrecord_io.manifest import Manifest
from tfrecord_io.mixing.mixing_plan import Stage
from tfrecord_io.schema import ROLES

# Keep the random streams of one seed apart.
_SHARD_ORDER, _WINDOW_ORDER, OBJECTIVE, MIXTURE_ORDER, BUCKET_ORDER = range(5)


def random_stream(seed: int, purpose: int, *positions: int | tf.Tensor) -> tf.Tensor:
    """Return a stateless seed, int64 [2], for a purpose and position."""
    stream = tf.stack([tf.cast(seed, tf.int64), purpose])
    for position in positions:
        stream = tf.random.experimental.stateless_fold_in(stream, tf.cast(position, tf.int64))
    return stream


def evaluation_records(source: SplitShards, *, host: Host, first_row: int) -> tf.data.Dataset:
    first, last = host_plan.share(source.num_rows, host, epoch=0)
    columns = on_client(lambda: [column.numpy() for column in pieces(*source.columns, first + first_row, last)])
    records = tf.data.Dataset.from_tensor_slices(tuple(columns)).flat_map(source.records)
    return records.apply(tf.data.experimental.assert_cardinality(last - first - first_row))


def training_batches(
    sources: Sequence[SplitShards], *, host: Host, shuffle: Shuffle, stages: Sequence[Stage]
) -> tf.data.Dataset:
    """Return batches of serialized records, string [B], from K sources, starting with the first stage."""
    buffer_size = max(shard_reading.LEAST_READ_BYTES, shard_reading.READ_BYTES // len(sources))  # for all sources

    def batches(stage: Stage) -> tf.data.Dataset:
        streams = [
            _stream(source, host=host, shuffle=shuffle, first_row=row, buffer_size=buffer_size).rebatch(
                counts_P, drop_remainder=True
            )
            for source, row, counts_P in zip(sources, stage.before, stage.rows_PK.T, strict=True)
        ]
        joined = streams[0] if len(streams) == 1 else tf.data.Dataset.zip(tuple(streams)).map(_joined)
        return joined.take(stage.last - stage.first)

    return in_stages(batches, stages)


def in_stages(batches: Callable[[Stage], tf.data.Dataset], stages: Sequence[Stage]) -> tf.data.Dataset:
    """Concatenate the elements of all stages."""
    # AutoGraph would take seconds.
    batches = tf.autograph.experimental.do_not_convert(batches)
    return functools.reduce(tf.data.Dataset.concatenate, map(batches, stages))


def _joined(*parts: tf.Tensor) -> tf.Tensor:
    return tf.concat(parts, axis=0)


def _stream(source: SplitShards, *, host: Host, shuffle: Shuffle, first_row: int, buffer_size: int) -> tf.data.Dataset:
    """Return the windows of an endless stream, from row `first_row` on. Windows never cross epochs."""
    first_epoch, row = host_plan.locate(first_row, source.num_rows, host)
    first_window, skip = divmod(row, shuffle.window)
    cycle_length = min(shuffle.cycle_length, len(source.paths))
    if row:
        columns = on_client(lambda: [column.numpy() for column in epoch_pieces(source, first_epoch, host=host)])
        sizes = {"cycle_length": cycle_length, "block_length": shuffle.block_length}
        left, first_rows, skip_block = host_plan.resume(columns[3], **sizes, row=row - skip)
        paths, rows, firsts, counts = (column[left] for column in columns)
        pieces_left = paths, rows, firsts + first_rows, counts - first_rows

    def windows(epoch: tf.Tensor) -> tf.data.Dataset:
        def permute(at: tf.Tensor, serialized_W: tf.Tensor) -> tf.Tensor:
            stream = random_stream(source.seed, _WINDOW_ORDER, host.index, epoch, at)
            return tf.random.experimental.stateless_shuffle(serialized_W, stream)

        pieces = epoch_pieces(source, epoch, host=host)
        begin: Sequence[Any] = (0, 0, 0)
        if row:
            is_first = tf.equal(epoch, first_epoch)
            pieces = tf.cond(is_first, lambda: pieces_left, lambda: pieces)
            begin = [tf.cast(is_first, tf.int64) * number for number in (skip_block, first_window, skip)]
        rows_of_block, window, rows_of_window = begin
        # Interleaving blocks takes 5 microseconds per record, interleaving records takes 7.
        blocks = tf.data.Dataset.from_tensor_slices(pieces).interleave(
            lambda *piece: source.records(*piece, buffer_size=buffer_size).batch(shuffle.block_length),
            cycle_length=cycle_length,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        numbered = _without_first(blocks, rows_of_block).rebatch(shuffle.window).enumerate(start=window)
        permuted = numbered.map(permute, num_parallel_calls=tf.data.AUTOTUNE)
        return _without_first(permuted, rows_of_window)

    return tf.data.Dataset.counter(first_epoch).flat_map(windows)


def epoch_pieces(source: SplitShards, epoch: int | tf.Tensor, *, host: Host) -> tuple[tf.Tensor, ...]:
    """Return this host's pieces of the shards, in the order of an epoch, as `shard_reading.pieces`."""
    paths_S, rows_S = source.columns
    stream = random_stream(source.seed, _SHARD_ORDER, epoch)
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(rows_S)), stream)
    first, last = host_plan.share(source.num_rows, host, epoch=epoch)
    return pieces(tf.gather(paths_S, order), tf.gather(rows_S, order), first, last)


def on_client(compute: Callable[[], Any]) -> Any:
    """Run `compute` eagerly on the CPU, even while a graph is built, and return its result."""

    def here() -> Any:
        with tf.device("CPU:0"):
            return compute()

    # A new thread does not inherit the graph or the device.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(here).result()


def _without_first(batches: tf.data.Dataset, num_rows: int | tf.Tensor) -> tf.data.Dataset:
    if isinstance(num_rows, int) and not num_rows:
        return batches
    # `index == 0` would compare identities in a graph without functions.
    return batches.enumerate().map(lambda index, rows: rows[tf.where(tf.equal(index, 0), num_rows, 0) :])


def filler(manifest: Manifest) -> bytes:
    """Return the record of a fill row: token ids are padding, other numbers 0, texts empty.

    TensorFlow encodes it, since a training host may lack Numba.
    """
    features = {}
    for feature in manifest.schema.features:
        value = manifest.tokenizer.pad_id if ROLES[feature.role].padding == "pad" else 0
        values = [value] * feature.num_values
        if feature.is_bytes:
            features[feature.name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b""]))
        elif feature.dtype == "int64":
            features[feature.name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            features[feature.name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    example: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return example
