"""Hand-written input functions over the same shards that our reader is measured against. They know what our reader
has to find out: the files, the features and their shapes.

    per_record      map(parse_single_example), cast ─► shuffle ─► batch       what most tutorials show
    bare            batch ─► map(parse_example)                               the least that any reader must do
    bare_objective  shuffle ─► batch ─► map(parse_example), cast ─► objective
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrecord_io import manifest
from tfrecord_io.manifest import Manifest

SHUFFLE_ROWS = 10_000
Tensors = Mapping[str, Any]


def read_manifest(root: pathlib.Path) -> Manifest:
    """The dataset's manifest."""
    return manifest.parse((root / manifest.FILE_NAME).read_bytes())


def split_name(root: pathlib.Path) -> str:
    """The largest split: the only one of a dataset that was built from plain files."""
    splits = read_manifest(root).splits
    return max(splits, key=lambda name: splits[name].num_examples)


def per_record(root: pathlib.Path, *, batch_size: int) -> Any:
    """One parse per record, on all cores."""
    spec = _spec(root)
    return (
        _records(root)
        .map(lambda record: _cast(tf.io.parse_single_example(record, spec)), num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(SHUFFLE_ROWS)
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def bare(root: pathlib.Path, *, batch_size: int) -> Any:
    """Batches of parsed int64 in the order of the files."""
    spec = _spec(root)
    return (
        _records(root)
        .batch(batch_size, drop_remainder=True)
        .map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def bare_objective(root: pathlib.Path, *, batch_size: int, objective: Any) -> Any:
    """Shuffled batches of int32 with the objective, what a careful person writes by hand."""
    spec = _spec(root)
    weights = tf.ones([batch_size], tf.float32)
    bound = objective.bind(read_manifest(root))

    def finish(records: Any) -> Any:
        features = {**_cast(tf.io.parse_example(records, spec)), "example_weight": weights}
        return bound(features, seed=tf.random.uniform([2], maxval=2**62, dtype=tf.int64))

    return (
        _records(root)
        .shuffle(SHUFFLE_ROWS)
        .batch(batch_size, drop_remainder=True)
        .map(finish, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def _records(root: pathlib.Path) -> Any:
    files = [str(root / shard.name) for shard in read_manifest(root).splits[split_name(root)].shards]
    return tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).repeat()


def _spec(root: pathlib.Path) -> dict[str, Any]:
    features = read_manifest(root).schema.features
    return {feature.name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype)) for feature in features}


def _cast(tensors: Tensors) -> dict[str, Any]:
    return {name: tf.cast(tensor, tf.int32) for name, tensor in tensors.items()}
