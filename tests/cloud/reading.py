"""Read a dataset like a trainer, as a program. It needs no part of the preparing library.

    python -m tests.cloud.reading gs://BUCKET LOCAL_COPY_OF_OUT PART ...

The bucket has a dataset as out/, and damaged copies of it as missing/ and short/. Writes JSON: digests of the data it
read, by part.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfrecord_io import reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.ordering import global_order

BATCH = 32
STEPS = 25  # of training: more than two epochs
START = 13  # in the middle of the second
WRITTEN = b"\r\n".join([b"checkpoint"] * 100_000)


def digests(elements: Iterable[Any]) -> list[str]:
    return [_digest(element) for element in elements]


def _digest(element: dict[str, tf.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(element.items()):
        array = tensor.numpy()
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def batches(root: str) -> dict[str, list[str]]:
    """Training from its beginning, from a step on, and as a host among two; evaluation."""
    data = reader.open(root)
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=2)
    host = data.input_fn("train", global_batch_size=BATCH, seed=7)(context)
    whole, rest = (data.dataset("train", global_batch_size=BATCH, seed=7, start_step=step) for step in (0, START))
    return {
        "training": digests(whole.take(STEPS)),
        "continued": digests(rest.take(STEPS - START)),
        "training of one host": digests(host.take(STEPS)),
        "evaluation": digests(data.dataset("validation", global_batch_size=BATCH)),
    }


def batches_in_global_order(root: str, *, steps: int) -> list[str]:
    """Training in the global order, by blocks, as of a split that is too large for memory."""
    global_order._MEMORY_BYTES = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches_read = digests(
            reader.open(root).dataset("train", global_batch_size=BATCH, seed=7, order="global").take(steps)
        )
    return [*batches_read, *(str(warning.message) for warning in caught if warning.category is RuntimeWarning)]


def records(root: str) -> dict[str, list[str]]:
    """The records of each shard, as TensorFlow reads them by itself."""
    names = [name for name in sorted(tf.io.gfile.listdir(root)) if name.endswith(".tfrecord")]
    read = {name: tf.data.TFRecordDataset(f"{root}/{name}").as_numpy_iterator() for name in names}
    return {name: [hashlib.sha256(record).hexdigest() for record in records] for name, records in read.items()}


def refusal(root: str) -> str:
    """What opening a damaged dataset says."""
    try:
        reader.open(root)
    except ReaderError as error:
        return str(error)
    return "nothing"


def write(path: str) -> None:
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(WRITTEN)


def main(bucket: str, local: str, *parts: str) -> None:
    """Reads and writes, and reports."""
    out = f"{bucket}/out"
    make: dict[str, Callable[[], Any]] = {
        "written": lambda: write(f"{bucket}/written"),
        "records": lambda: {"gs": records(out), "local": records(local)},
        "batches": lambda: {"gs": batches(out), "local": batches(local)},
        "global": lambda: {
            name: batches_in_global_order(root, steps=4) for name, root in (("gs", out), ("local", local))
        },
        "a global batch": lambda: batches_in_global_order(out, steps=1),
        "refusals": lambda: {name: refusal(f"{bucket}/{name}") for name in ("missing", "short", "absent")},
        "missing": lambda: sorted(name for name, module in sys.modules.items() if module is None),
    }
    print(json.dumps({part: make[part]() for part in parts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
