"""Repeating the step: a custom loop and Keras `fit`, over the same batches, with the same losses.

    custom   for each call: one tf.function runs `steps_per_call` steps in a tf.range loop on the devices
    keras    `fit` with steps_per_execution = steps_per_call, over the same distributed batches

A dataset with rows of several lengths is for the custom loop alone: a call is then cut where the length changes, and
each length is traced and compiled once.

Both call `after_call(step, loss)` in Python after each call, where logging, evaluation and saving happen, and end early
when it says so. The custom loop is the one to change; `fit` is there for Keras callbacks and habits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train.engines import AfterCall, Feed, TrainingSpan
from pipelines.train.metrics.evaluation import Evaluated, real_rows
from pipelines.train.on_tensorflow.replica_step import ReplicaStep

__all__ = ["custom", "evaluate", "fit"]

# Steps of an evaluation that are summed on the devices, in float32, which stops counting at 2**24.
_SUMMED_STEPS = 100


def custom(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, *, feed: Feed, span: TrainingSpan) -> None:
    """The loop to change."""

    @tf.function
    def call(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        loss = tf.zeros([], tf.float32)
        for _ in tf.range(num_steps):
            # Every replica has the same, the global batch's.
            loss = strategy.experimental_local_results(
                strategy.run(_as_written(replica_step.train), args=(next(iterator),))
            )[0]
        return loss

    iterators, step = {length: iter(stream) for length, stream in feed.streams.items()}, replica_step.step
    while step < span.until:
        num_steps = min(span.steps_per_call, span.until - step)
        for length, count in _runs(itertools.islice(feed.schedule, num_steps), most=num_steps):
            loss = call(iterators[length], tf.constant(count))  # a tensor: another number is no new compilation
        step += num_steps
        if not span.after_call(step, float(loss.numpy())):
            return


def fit(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, *, feed: Feed, span: TrainingSpan) -> None:
    """Run the steps of `custom` by Keras `fit`. The steps that are left must be a multiple of `steps_per_call`, and
    rows of one length.
    """
    [batches] = feed.streams.values()
    start = replica_step.step
    if start >= span.until:
        return
    with strategy.scope():
        model = _FitModel(replica_step)
        # Keras asks for an optimizer before it calls a model compiled; the replica step has the one that is used.
        model.compile(optimizer="sgd", steps_per_execution=span.steps_per_call, jit_compile=False)
    watcher = _Watcher(span.after_call, start=start)
    model.fit(batches, steps_per_epoch=span.until - start, epochs=1, verbose=0, shuffle=False, callbacks=[watcher])


def evaluate(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, feed: Feed) -> Evaluated:
    """One pass over all that the feed has: the task's sums, and what it needs of each row."""

    task = replica_step.task

    def one_step(iterator: Any) -> Any:
        found = strategy.run(_as_written(replica_step.evaluate), args=(next(iterator),))
        return tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], found)

    @tf.function
    def summed(iterator: Any, num_steps: tf.Tensor) -> Any:
        sums = {name: tf.zeros(shape) for name, shape in task.sum_shapes.items()}
        for _ in tf.range(num_steps):
            more, _ = one_step(iterator)
            sums = {name: sums[name] + more[name] for name in sums}
        return sums, {}

    # Rows are fetched after each step: how many there will be is no static shape.
    call, most = (
        (tf.function(lambda iterator, _: one_step(iterator)), 1) if task.needs_rows else (summed, _SUMMED_STEPS)
    )
    iterators = {length: iter(stream) for length, stream in feed.streams.items()}
    total, rows = {name: np.zeros(shape) for name, shape in task.sum_shapes.items()}, []
    for length, count in _runs(feed.schedule, most=most):
        sums, some = call(iterators[length], tf.constant(count))
        total = {name: values + sums[name].numpy() for name, values in total.items()}
        if some:
            rows.append({name: values.numpy() for name, values in some.items()})
    return Evaluated(sums=total, rows=real_rows(rows))


def _runs(schedule: Iterable[int], *, most: int) -> Iterator[tuple[int, int]]:
    """Lengths, and how many steps in a row have each, at most `most`."""
    for length, steps in itertools.groupby(schedule):
        while count := len(list(itertools.islice(steps, most))):
            yield length, count


# The step has no Python loop or condition on tensors; rewriting Keras for autograph would only take time.
_as_written = tf.autograph.experimental.do_not_convert


class _FitModel(keras.Model):
    """A replica step as `fit` wants it: a model with a step of its own."""

    def __init__(self, replica_step: ReplicaStep) -> None:
        super().__init__(name="fitted")
        self.replica_step = replica_step
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.replica_step.model(inputs, training=training)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        return {"loss": self.replica_step.train(data)}


class _Watcher(keras.callbacks.Callback):
    """Hands each call's last loss over, and stops `fit` when told to."""

    def __init__(self, after_call: AfterCall, *, start: int) -> None:
        super().__init__()
        self._after_call = after_call
        self._start = start

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """`batch` is the last one of the call, counted from 0."""
        if not self._after_call(self._start + batch + 1, float((logs or {})["loss"])):
            self.model.stop_training = True
