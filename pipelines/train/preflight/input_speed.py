"""How fast the reader is on this machine: the trainer's own input, read for a few seconds and thrown away."""

from __future__ import annotations

import time

import tensorflow as tf

from pipelines.train.setup import TrainingSetup
from tfrecord_io.errors import ReaderError

__all__ = ["examples_per_s"]

_WARM_UP = 2


def examples_per_s(job: TrainingSetup, *, replicas: int, seconds: float) -> float:
    """Examples that the training split gives per second, with the task's objective, as one host would read them.

    Raises: ReaderError if the data cannot be read.
    """
    batch = job.config.batch_rows
    input_fn = job.data.input_fn(
        job.config.train_split, global_batch_size=batch, objective=job.task.objective, training=True
    )
    batches = iter(input_fn(tf.distribute.InputContext(num_replicas_in_sync=replicas)))
    try:
        for _ in range(_WARM_UP):
            next(batches)
        began, count = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            next(batches)
            count += batch // replicas
    except tf.errors.OpError as error:
        raise ReaderError(
            f"{job.data.root}: {str(error.message).partition(chr(10))[0][:300]}",
            remedy=f"run `prep-tfrecords verify {job.data.root}`, which finds damaged data",
        ) from error
    return count / passed
