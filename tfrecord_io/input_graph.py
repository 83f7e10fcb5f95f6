"""The graph behind `tfrecord_io.reader`: from shards to batches of features, in `tf.data` operations alone.

    training (endless)                                              evaluation (every example once)
    epoch ─► shards in this epoch's order ─► interleave             shards in order
                                                │ records              │ records, then fill rows
                        windows of W records, each permuted            │
                                                └──► batch of B strings ◄┘
                                                            │ one parse for all of them
                                                  dict of [B, *shape] ─► objective ─► (inputs, labels, weights)

Records are shuffled and batched as strings: these are a quarter of the size of parsed rows, and one call parses them
all. Every random choice is a stateless function of (seed, purpose, host, epoch or batch), so the same seed gives the
same batches, and what a batch holds depends on nothing that was read before its epoch.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import tensorflow as tf

from tfrecord_io import input_plan
from tfrecord_io.errors import ReaderError
from tfrecord_io.input_plan import Host, Shuffle
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import BoundObjective
from tfrecord_io.schema import Feature

__all__ = ["Request", "build"]

# Large sequential reads: an object store answers a request for 8 MiB about as fast as one for 256 KiB.
_READ_BYTES = 8 * 1024 * 1024
# Keep the random streams of one seed apart.
_SHARD_ORDER, _WINDOW_ORDER, _OBJECTIVE = range(3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be read, already checked, the same on every host. Shard j has `rows[j]` records in `paths[j]`."""

    manifest: Manifest
    split: str
    paths: tuple[str, ...]
    rows: tuple[int, ...]
    global_batch_size: int
    seed: int
    objective: BoundObjective | None
    training: bool
    shuffle: Shuffle
    deterministic: bool


def build(request: Request, host: Host) -> tf.data.Dataset:
    """One host's input: elements of one replica's rows each.

    Raises: ReaderError if the global batch cannot be divided by the replicas, or there is no example for some host.
    """
    batch_rows = input_plan.element_rows(request.global_batch_size, host)
    if request.training:
        real_rows = None
        batches = _training_batches(request, batch_rows, host=host)
    else:
        share = input_plan.evaluation_share(request.rows, global_batch_size=request.global_batch_size, host=host)
        real_rows = share.rows
        batches = _evaluation_batches(request, batch_rows, share=share, host=host)

    def finish(index: tf.Tensor, serialized_B: tf.Tensor) -> Any:
        features = _parse(serialized_B, request.manifest)
        features[input_plan.WEIGHT] = _weights(index, batch_rows, real_rows=real_rows)
        if request.objective is None:
            return features
        return request.objective(features, seed=_stream(request.seed, _OBJECTIVE, host.index, index))

    options = tf.data.Options()
    options.deterministic = request.deterministic
    # A strategy that is handed this dataset deals out batches; it cannot deal out files that it does not see.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    elements = batches.enumerate().map(finish, num_parallel_calls=tf.data.AUTOTUNE)
    return elements.prefetch(tf.data.AUTOTUNE).with_options(options)


def _training_batches(request: Request, batch_rows: int, *, host: Host) -> tf.data.Dataset:
    """Serialized records, string [B], without end. Batches may cross epochs; windows never do."""
    if sum(request.rows) < host.count:
        raise ReaderError(
            f"split {request.split!r} has {sum(request.rows)} examples, expected at least one for each of the "
            f"{host.count} hosts",
            remedy="train on fewer hosts",
        )
    windows = tf.data.Dataset.counter().flat_map(lambda epoch: _epoch_windows(request, epoch, host=host))
    batches = windows.rebatch(batch_rows, drop_remainder=True)
    return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _epoch_windows(request: Request, epoch: tf.Tensor, *, host: Host) -> tf.data.Dataset:
    """One pass over the host's records as windows, string [at most W], each permuted."""

    def permute(index: tf.Tensor, serialized_W: tf.Tensor) -> tf.Tensor:
        return _permuted(serialized_W, _stream(request.seed, _WINDOW_ORDER, host.index, epoch, index))

    windows = _epoch_blocks(request, epoch, host=host).rebatch(request.shuffle.window)
    return windows.enumerate().map(permute, num_parallel_calls=tf.data.AUTOTUNE)


def _epoch_blocks(request: Request, epoch: tf.Tensor, *, host: Host) -> tf.data.Dataset:
    """One pass over the host's records as blocks, string [at most block_length], in an order that the epoch decides."""
    by_shard = input_plan.dealt_by_shard(request.rows, host)
    order = _permuted(tf.range(len(request.paths)), _stream(request.seed, _SHARD_ORDER, epoch))
    if by_shard:
        # Dealt anew in each epoch: a host with fewer shards sees its examples sooner again, but not the same ones.
        order = order[host.index :: host.count]
    first_rows = list(itertools.accumulate(request.rows[:-1], initial=0))
    columns = (request.paths, request.rows, first_rows)
    shards = tuple(
        tf.gather(tf.constant(column, dtype), order)
        for column, dtype in zip(columns, (tf.string, tf.int64, tf.int64), strict=True)
    )

    def read(path: tf.Tensor, num_rows: tf.Tensor, first_row: tf.Tensor) -> tf.data.Dataset:
        records = _records(path, num_rows, request=request)
        if not by_shard:
            records = records.shard(host.count, (host.index - first_row) % host.count)
        # Interleaving blocks instead of records saves 2 of the 7 microseconds that a record takes up to its batch.
        return records.batch(request.shuffle.block_length)

    return tf.data.Dataset.from_tensor_slices(shards).interleave(
        read,
        cycle_length=min(request.shuffle.cycle_length, len(request.paths)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _evaluation_batches(request: Request, batch_rows: int, *, share: input_plan.Share, host: Host) -> tf.data.Dataset:
    """Serialized records, string [B]: the host's own in order, then fill rows."""
    by_shard = input_plan.dealt_by_shard(request.rows, host)
    mine = slice(host.index, None, host.count) if by_shard else slice(None)
    records = _records(request.paths[mine], sum(request.rows[mine]), request=request)
    if not by_shard:
        records = records.shard(host.count, host.index)
    fill = tf.data.Dataset.from_tensors(input_plan.filler(request.manifest)).repeat(share.fill_rows)
    return records.concatenate(fill).batch(batch_rows, drop_remainder=True)


def _records(paths: Any, num_rows: Any, *, request: Request) -> tf.data.Dataset:
    """Serialized records of the shards. Reading fails where there are more or fewer than the manifest says."""
    records = tf.data.TFRecordDataset(
        tf.constant(paths, tf.string) if isinstance(paths, tuple) else paths,
        compression_type="GZIP" if request.manifest.compression == "gzip" else "",
        buffer_size=_READ_BYTES,
    )
    return records.apply(tf.data.experimental.assert_cardinality(num_rows))


def _parse(serialized_B: tf.Tensor, manifest: Manifest) -> dict[str, tf.Tensor]:
    """Every feature as int32 or float32 [B, *shape], and a mask of the tokens if none is stored."""
    schema = manifest.schema
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype))
        for feature in schema.features
        if feature.constant is None
    }
    parsed = tf.io.parse_example(serialized_B, spec)
    features = {
        feature.name: _on_device(parsed[feature.name], feature)
        if feature.constant is None
        # Parsing costs as much for these as for any other feature: a third of the time for BERT's rows.
        else tf.fill([serialized_B.shape[0], *feature.shape], tf.constant(feature.constant, tf.int32))
        for feature in schema.features
    }
    mask_name = input_plan.mask_name(schema)
    if mask_name is not None and mask_name not in features:
        features[mask_name] = _mask(features, manifest)
    return features


def _on_device(values: tf.Tensor, feature: Feature) -> tf.Tensor:
    if feature.dtype == "float32":
        return values
    narrow = tf.cast(values, tf.int32)
    if feature.role != "column":
        return narrow
    # Ids, masks and labels are small by their meaning; a column of the source can hold anything.
    check = tf.debugging.assert_equal(
        tf.cast(narrow, tf.int64), values, f"column {feature.name}: a value does not fit into int32"
    )
    with tf.control_dependencies([check]):
        return tf.identity(narrow)


def _mask(features: dict[str, tf.Tensor], manifest: Manifest) -> tf.Tensor:
    """int32 [B, L], 1 on tokens: from their number, or all 1 where rows have no padding."""
    ids = manifest.schema.with_role("token_ids")
    assert ids is not None, "only asked for with token ids"
    like = tf.ones_like(features[ids.name])
    count = manifest.schema.with_role("num_tokens")
    if count is None:
        return like
    num_tokens_B1 = tf.reshape(features[count.name], [-1, 1])
    return like * tf.cast(tf.range(manifest.row_length) < num_tokens_B1, tf.int32)


def _weights(index: tf.Tensor, batch_rows: int, *, real_rows: int | None) -> tf.Tensor:
    """float32 [B]: 1 on real rows, which come before all fill rows, and 0 on these."""
    if real_rows is None:
        return tf.ones([batch_rows], tf.float32)
    row_B = index * batch_rows + tf.range(batch_rows, dtype=tf.int64)
    return tf.cast(row_B < real_rows, tf.float32)


def _stream(seed: int, purpose: int, *positions: int | tf.Tensor) -> tf.Tensor:
    """A stateless seed, int64 [2], distinct for each purpose and position."""
    state = tf.constant([seed, purpose], tf.int64)
    for position in positions:
        # The algorithm is named since the default may differ from device to device.
        state = tf.random.experimental.stateless_fold_in(state, tf.cast(position, tf.int64), alg="philox")
    return state


def _permuted(values: tf.Tensor, stream: tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_shuffle(values, stream, alg="philox")
