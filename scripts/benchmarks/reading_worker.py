"""Measure one reader in a separate process: warm up, then count examples for some seconds. Prints the result.

    python -m scripts.benchmarks.reading_worker CONTENDER DATASET_FOLDER SECONDS   ->   {"examples_per_second": ...}

Hand-written input functions know facts that our reader has to look up: the files, the features and their shapes.

    per_record      map(parse_single_example), cast ─► shuffle ─► batch       the code of most tutorials
    bare            batch ─► map(parse_example)                               the minimum for any reader
    bare_objective  shuffle ─► batch ─► map(parse_example), cast ─► objective

The warm-up starts with the first batch, so shuffle buffers are full and tf.data's autotuning has settled.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrecord_io import objectives, reader
from tfrecord_io.manifest import Manifest

BATCH_SIZE = 256
SHUFFLE_ROWS = 10_000
_WARM_UP_SHARE = 0.5


def main() -> None:
    contender, root, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    data = reader.open(root)
    batches = iter(CONTENDERS[contender](data).prefetch(tf.data.AUTOTUNE))
    next(batches)
    consume(batches, seconds * _WARM_UP_SHARE)
    json.dump({"examples_per_second": consume(batches, seconds)}, sys.stdout)


def consume(batches: Iterator[Any], seconds: float) -> float:
    """Take batches for `seconds`; return examples per second."""
    started, taken = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        next(batches)
        taken += 1
    return taken * BATCH_SIZE / elapsed


def ours(data: reader.Data, objective: Any = None) -> Any:
    """Return the batches of our reader."""
    return data.dataset(_split(data), global_batch_size=BATCH_SIZE, seed=0, objective=objective, training=True)


def per_record(data: reader.Data) -> Any:
    """Parse one record at a time, on all cores."""
    spec = _spec(data.manifest)
    records = _records(data).map(
        lambda record: _cast(tf.io.parse_single_example(record, spec)), num_parallel_calls=tf.data.AUTOTUNE
    )
    return records.shuffle(SHUFFLE_ROWS).batch(BATCH_SIZE, drop_remainder=True)


def bare(data: reader.Data) -> Any:
    """Return batches of parsed int64 in the order of the files."""
    spec = _spec(data.manifest)
    batches = _records(data).batch(BATCH_SIZE, drop_remainder=True)
    return batches.map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=tf.data.AUTOTUNE)


def bare_objective(data: reader.Data) -> Any:
    """Return shuffled batches of int32 with the objective: a careful hand-written input function."""
    spec, bound = _spec(data.manifest), objectives.masked_lm().bind(data.manifest)
    weights = tf.ones([BATCH_SIZE], tf.float32)

    def finish(records: Any) -> Any:
        features = {**_cast(tf.io.parse_example(records, spec)), "example_weight": weights}
        return bound(features, seed=tf.random.uniform([2], maxval=2**62, dtype=tf.int64))

    batches = _records(data).shuffle(SHUFFLE_ROWS).batch(BATCH_SIZE, drop_remainder=True)
    return batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE)


def _split(data: reader.Data) -> str:
    """Return the largest split, the only one of a dataset built from plain files."""
    return max(data.splits, key=lambda name: data.splits[name].num_examples)


def _records(data: reader.Data) -> Any:
    files = [f"{data.root}/{shard.name}" for shard in data.splits[_split(data)].shards]
    return tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).repeat()


def _spec(manifest: Manifest) -> dict[str, Any]:
    features = manifest.schema.features
    return {feature.name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype)) for feature in features}


def _cast(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tf.cast(tensor, tf.int32) for name, tensor in tensors.items()}


CONTENDERS: dict[str, Callable[[reader.Data], Any]] = {
    "ours": ours,
    "bare": bare,
    "per_record": per_record,
    "ours_objective": lambda data: ours(data, objectives.masked_lm()),
    "bare_objective": bare_objective,
}

if __name__ == "__main__":
    main()
