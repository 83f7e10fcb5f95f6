"""Read the records of a split in the order of a training run or an evaluation, from any record on.

training (endless)                                              evaluation (every example once)
epoch ─► shards in this epoch's order ─► interleave             shards in order
                                            │ records              │ records, then fill rows
                    windows of W records, each permuted            │
                                            └──► batch of B strings ◄┘
"""

import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.input_pipeline import host_plan, shard_reading
from tfrecord_io.input_pipeline.host_plan import Host, Shuffle
from tfrecord_io.input_pipeline.shard_reading import SplitShards, pieces, records_from
from tfrecord_io.manifest import Manifest
from tfrecord_io.mixing.mixing_plan import Stage
from tfrecord_io.schema import ROLES

# Keep the random streams of one seed apart.
_SHARD_ORDER, _WINDOW_ORDER, OBJECTIVE, MIXTURE_ORDER, BUCKET_ORDER = range(5)


def random_stream(seed: int, purpose: int, *positions: int | tf.Tensor) -> tf.Tensor:
    """Return a seed for stateless random operations, int64 [2], that depends on all arguments."""
    stream = tf.stack([tf.cast(seed, tf.int64), purpose])
    for position in positions:
        stream = tf.random.experimental.stateless_fold_in(stream, tf.cast(position, tf.int64))
    return stream


def evaluation_records(source: SplitShards, *, host: Host, first_row: int) -> tf.data.Dataset:
    first, last = host_plan.share(source.num_rows, host, epoch=0)
    columns = on_client(lambda: [column.numpy() for column in pieces(*source.columns, first + first_row, last)])
    read = functools.partial(
        records_from,
        compression=shard_reading.TYPES[source.compression],
        index_stride=source.index_stride or shard_reading.NO_INDEX,
    )
    records = tf.data.Dataset.from_tensor_slices(tuple(columns)).flat_map(read)
    return records.apply(tf.data.experimental.assert_cardinality(last - first - first_row))


def stream_settings(source: SplitShards, host: Host, shuffle: Shuffle) -> np.ndarray:
    """Return the seed, the host's index, and the numbers of hosts and of concurrently open shards, int64 [4]."""
    return np.array([source.seed, host.index, host.count, min(shuffle.cycle_length, len(source.paths))], np.int64)


def _begin(
    source: SplitShards, first_row: int, *, host: Host, shuffle: Shuffle
) -> tuple[int, tuple[Any, ...], list[int]]:
    # Returns how to start at a row of the endless stream: the first epoch that is read from its start; the rest of the
    # epoch before it, as from `pieces`; and [this epoch, first window, rows to skip in it and in the first block].
    epoch, row = host_plan.locate(first_row, source.num_rows, host)
    if not row:
        return epoch, (np.zeros(0, "S"), *np.zeros((3, 0), np.int64)), [epoch, 0, 0, 0]
    window, skip = divmod(row, shuffle.window)
    settings = stream_settings(source, host, shuffle)

    def whole() -> list[np.ndarray]:
        columns = epoch_pieces(*source.columns, tf.constant(settings), tf.constant(epoch, tf.int64))
        return [column.numpy() for column in columns]

    paths, rows, firsts, counts = on_client(whole)
    left, first_rows, skip_block = host_plan.resume(
        counts, cycle_length=int(settings[3]), block_length=shuffle.block_length, row=row - skip
    )
    rest = (paths[left], rows[left], firsts[left] + first_rows, counts[left] - first_rows)
    return epoch + 1, rest, [epoch, window, skip, skip_block]


def training_batches(
    sources: Sequence[SplitShards], *, host: Host, shuffle: Shuffle, stages: Sequence[Stage]
) -> tf.data.Dataset:
    """Return a host's endless batches of serialized records, string [B], from one or several datasets.

    One function makes the streams of all datasets: for 100 datasets, TensorFlow takes 5 CPU s instead of 18.
    """
    count = len(sources)
    firsts = [place for stage in stages for place in zip(sources, stage.before, strict=True)]
    begun = [_begin(source, row, host=host, shuffle=shuffle) for source, row in firsts]
    steps = [stage.last - stage.first for stage in stages]
    of_stage = PerStream(rows_PK=[stage.rows_PK for stage in stages], steps=steps)
    of_source = PerStream(
        settings=[stream_settings(source, host, shuffle) for source in sources],
        paths=[source.paths for source in sources],
        rows=[source.rows for source in sources],
        compression=[shard_reading.TYPES[source.compression] for source in sources],
        index_stride=[source.index_stride or shard_reading.NO_INDEX for source in sources],
    )
    of_stream = PerStream(
        epoch=[epoch for epoch, _, _ in begun],
        place=[place for _, _, place in begun],
        **{f"left{at}": [pieces[at] for _, pieces, _ in begun] for at in range(4)},
    )
    is_begun = any(len(pieces[0]) for _, pieces, _ in begun)
    buffer_size = max(shard_reading.LEAST_READ_BYTES, shard_reading.READ_BYTES // count)

    def batches(stage: tf.Tensor) -> tf.data.Dataset:
        counts_PK = of_stage[stage]["rows_PK"]

        def stream(k: tf.Tensor) -> tf.data.Dataset:
            source, begin = of_source[k], of_stream[stage * count + k]
            settings, options = source["settings"], {name: source[name] for name in ("compression", "index_stride")}
            read = functools.partial(records_from, buffer_size=buffer_size, **options)
            records = functools.partial(_windows, read=read, shuffle=shuffle, settings=settings)
            rows = tf.data.Dataset.counter(begin["epoch"]).flat_map(
                lambda epoch: records(epoch_pieces(source["paths"], source["rows"], settings, epoch), epoch=epoch)
            )
            if is_begun:
                epoch, first, skip, skip_block = tf.unstack(begin["place"])
                left = tuple(begin[f"left{at}"] for at in range(4))
                current = records(left, epoch=epoch, first=first, skip=skip_block)
                rows = _without_first(current, skip).concatenate(rows)
            return rows.rebatch(counts_PK[:, k], drop_remainder=True)

        mixed = tf.data.Dataset.range(count).interleave(stream, cycle_length=count, block_length=1)
        if count > 1:

            def joined(batch: tf.Tensor, parts_KN: tf.Tensor) -> tf.Tensor:
                counts_K = counts_PK[batch % tf.shape(counts_PK, tf.int64)[0]]
                return tf.boolean_mask(parts_KN, tf.sequence_mask(counts_K, tf.shape(parts_KN)[1]))

            # TensorFlow would log an error whenever `rebatch` slices a slice.
            mixed = mixed.padded_batch(count).enumerate().map(joined)
        return mixed.take(of_stage[stage]["steps"])

    return in_stages(batches, len(stages))


def in_stages(batches: Callable[[tf.Tensor], tf.data.Dataset], number: int) -> tf.data.Dataset:
    """Concatenate batches(0), batches(1), ... of `number` stages. The argument is a tensor, int64 []."""
    # AutoGraph would take seconds.
    batches = tf.autograph.experimental.do_not_convert(batches)
    return batches(tf.constant(0, tf.int64)) if number == 1 else tf.data.Dataset.range(number).flat_map(batches)


class PerStream:
    """Named values of several streams. Indexing by a stream's number, a tensor, returns its values as tensors."""

    def __init__(self, **values: Sequence[Any]) -> None:
        self._single, self._many, self._ends = {}, {}, {}
        for name, of_streams in values.items():
            arrays = list(map(np.asarray, of_streams))
            if len({array.shape for array in arrays}) == 1:
                self._single[name] = tf.constant(np.stack(arrays))
            else:
                self._many[name] = tf.constant(np.concatenate(arrays))
                self._ends[name] = tf.constant(np.cumsum([0, *map(len, arrays)]), tf.int64)

    def __getitem__(self, at: tf.Tensor) -> dict[str, tf.Tensor]:
        many = {name: values[self._ends[name][at] : self._ends[name][at + 1]] for name, values in self._many.items()}
        return {name: values[at] for name, values in self._single.items()} | many


def epoch_pieces(paths_S: tf.Tensor, rows_S: tf.Tensor, settings: tf.Tensor, epoch: tf.Tensor) -> tuple[tf.Tensor, ...]:
    seed, index, count = (settings[at] for at in range(3))
    stream = random_stream(seed, _SHARD_ORDER, epoch)
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(rows_S)), stream)
    first, last = host_plan.share(tf.reduce_sum(rows_S), Host(index=index, count=count), epoch=epoch)
    return pieces(tf.gather(paths_S, order), tf.gather(rows_S, order), first, last)


def _windows(
    pieces: Any,
    *,
    read: Callable[..., tf.data.Dataset],
    shuffle: Shuffle,
    settings: tf.Tensor,
    epoch: tf.Tensor,
    first: Any = 0,
    skip: Any = 0,
) -> tf.data.Dataset:
    # `first`: number of the first window. `skip`: rows to skip in the first block.

    def permute(at: tf.Tensor, serialized_W: tf.Tensor) -> tf.Tensor:
        stream = random_stream(settings[0], _WINDOW_ORDER, settings[1], epoch, at)
        return tf.random.experimental.stateless_shuffle(serialized_W, stream)

    # Interleaving blocks takes 5 us per record, interleaving records 7 us.
    blocks = tf.data.Dataset.from_tensor_slices(pieces).interleave(
        lambda *piece: read(*piece).batch(shuffle.block_length),
        cycle_length=settings[3],
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    windows = _without_first(blocks, skip).rebatch(shuffle.window).enumerate(start=first)
    return windows.map(permute, num_parallel_calls=tf.data.AUTOTUNE)


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
    """Return a serialized Example for fill rows: token ids are padding, other numbers 0, texts empty."""
    # TensorFlow encodes it, since a training host may lack Numba.
    example = tf.train.Example()
    for feature in manifest.schema.features:
        entry = example.features.feature[feature.name]
        if feature.is_bytes:
            entry.bytes_list.value.append(b"")
            continue
        value = manifest.tokenizer.pad_id if ROLES[feature.role].padding == "pad" else 0
        numbers = entry.int64_list if feature.dtype == "int64" else entry.float_list
        numbers.value.extend([value] * feature.num_values)
    serialized: bytes = example.SerializeToString()
    return serialized
