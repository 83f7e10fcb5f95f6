"""Compare our reader with hand-written input functions on the same shards, in turns.

    python -m scripts.benchmarks.reading CONTENDER DATASET_FOLDER SECONDS   ->   examples per second of one

Each turn runs in its own process. The warm-up starts with the first batch, so shuffle buffers are full and tf.data's
autotuning has settled. Hand-written input functions know facts that our reader has to look up: the files, the features
and their shapes.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from scripts.benchmarks import figures, measure, preparing
from scripts.benchmarks.figures import median, number, spread
from tfrecord_io import objectives, reader

BATCH_SIZE = 256
SHUFFLE_ROWS = 10_000
_WARM_UP_SHARE = 0.5


def report(settings: preparing.Settings) -> str:
    """Measure each contender in new processes, in turns; return a Markdown table of examples per second."""
    root = settings.workdir / "built" / "reader"
    shutil.rmtree(root, ignore_errors=True)
    folder, tokenizer = settings.corpus("large"), settings.tokenizer("wordpiece")
    measure.run(preparing.build_command("pad", folder=folder, tokenizer=tokenizer, output=root))
    measure.warm_pages(root)
    speeds: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    for _ in range(max(3, settings.runs)):
        for contender, measured in speeds.items():
            words = ["-m", "scripts.benchmarks.reading", contender, str(root), str(settings.reader_seconds)]
            run = measure.run([sys.executable, *words], env={"TF_CPP_MIN_LOG_LEVEL": "3"})
            measured.append(float(run.stdout))
            print(f"  reader {contender}: {number(measured[-1])} examples/s", file=sys.stderr, flush=True)
    bare = median(speeds["bare"])
    rows = [[CONTENDERS[name][0], spread(speed), number(median(speed) / bare)] for name, speed in speeds.items()]
    return figures.table(["reader", "examples/s", "of the bare graph"], rows)


def main() -> None:
    """Read with the contender named on the command line, and print its examples per second."""
    contender, root, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    batches = iter(CONTENDERS[contender][1](reader.open(root)).prefetch(tf.data.AUTOTUNE))
    next(batches)
    _consume(batches, seconds * _WARM_UP_SHARE)
    print(_consume(batches, seconds))


def _consume(batches: Iterator[Any], seconds: float) -> float:
    """Take batches for this number of seconds; return the examples per second."""
    started, taken = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        next(batches)
        taken += 1
    return taken * BATCH_SIZE / elapsed


def _ours(data: reader.Data, objective: Any = None) -> Any:
    return data.dataset("train", global_batch_size=BATCH_SIZE, seed=0, objective=objective, training=True)


def _per_record(data: reader.Data) -> Any:
    """Parse one record at a time, on all cores, like the code of most tutorials."""
    records, spec = _records(data)
    examples = records.map(
        lambda record: _cast(tf.io.parse_single_example(record, spec)), num_parallel_calls=tf.data.AUTOTUNE
    )
    return examples.shuffle(SHUFFLE_ROWS).batch(BATCH_SIZE, drop_remainder=True)


def _bare(data: reader.Data) -> Any:
    """Return batches of parsed int64 in the order of the files: the minimum for any reader."""
    records, spec = _records(data)
    batches = records.batch(BATCH_SIZE, drop_remainder=True)
    return batches.map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=tf.data.AUTOTUNE)


def _bare_objective(data: reader.Data) -> Any:
    """Return shuffled batches of int32 with the objective: a careful hand-written input function."""
    (records, spec), bound = _records(data), objectives.masked_lm().bind(data.manifest)
    weights = tf.ones([BATCH_SIZE], tf.float32)

    def finish(records: Any) -> Any:
        features = {**_cast(tf.io.parse_example(records, spec)), "example_weight": weights}
        return bound(features, seed=tf.random.uniform([2], maxval=2**62, dtype=tf.int64))

    batches = records.shuffle(SHUFFLE_ROWS).batch(BATCH_SIZE, drop_remainder=True)
    return batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE)


def _records(data: reader.Data) -> tuple[Any, dict[str, Any]]:
    """Return the endlessly repeated records of all files, and the specification to parse them."""
    files = [f"{data.root}/{shard.name}" for shard in data.splits["train"].shards]
    features = data.manifest.schema.features
    spec = {feature.name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype)) for feature in features}
    return tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).repeat(), spec


def _cast(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tf.cast(tensor, tf.int32) for name, tensor in tensors.items()}


CONTENDERS: dict[str, tuple[str, Callable[[reader.Data], Any]]] = {
    "ours": ("our reader: three-level shuffle, int32", _ours),
    "bare": ("batch, map(parse_example): no shuffle, int64", _bare),
    "per_record": ("map(parse_single_example), cast, shuffle, batch", _per_record),
    "ours_objective": ("our reader with the masked-LM objective", lambda data: _ours(data, objectives.masked_lm())),
    "bare_objective": ("shuffle, batch, map(parse_example), cast, masked-LM objective", _bare_objective),
}

if __name__ == "__main__":
    main()
