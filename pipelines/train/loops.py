"""Repeating the step: a custom loop and Keras `fit`, over the same batches, with the same losses.

    custom   for each call: one tf.function runs `steps_per_call` steps in a tf.range loop on the devices
    keras    `fit` with steps_per_execution = steps_per_call, over the same distributed batches

Both call `after_call(step, loss)` in Python after each call, where logging, evaluation and saving happen, and end early
when it says so. The custom loop is the one to change; `fit` is there for Keras callbacks and habits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train.train_step import ReplicaStep

__all__ = ["AfterCall", "TrainingSpan", "custom", "evaluate", "fit"]

# (steps taken, loss of the last of them) -> whether to go on
AfterCall = Callable[[int, float], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpan:
    """How far a training goes: until step `until`, in calls of `steps_per_call` steps, unless `after_call` ends it."""

    until: int
    steps_per_call: int
    after_call: AfterCall


def custom(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, *, batches: Any, span: TrainingSpan) -> None:
    """The loop to change. `batches` is what `strategy.distribute_datasets_from_function` gave."""

    @tf.function
    def call(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        loss = tf.zeros([], tf.float32)
        for _ in tf.range(num_steps):
            # Every replica has the same, the global batch's.
            loss = strategy.experimental_local_results(
                strategy.run(_as_written(replica_step.train), args=(next(iterator),))
            )[0]
        return loss

    iterator, step = iter(batches), replica_step.step
    while step < span.until:
        num_steps = min(span.steps_per_call, span.until - step)
        loss = call(iterator, tf.constant(num_steps))  # a tensor, so that another number is no new compilation
        step += num_steps
        if not span.after_call(step, float(loss.numpy())):
            return


def fit(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, *, batches: Any, span: TrainingSpan) -> None:
    """Run the steps of `custom` by Keras `fit`. The steps that are left must be a multiple of `steps_per_call`."""
    start = replica_step.step
    if start >= span.until:
        return
    with strategy.scope():
        model = _FitModel(replica_step)
        # Keras asks for an optimizer before it calls a model compiled; the replica step has the one that is used.
        model.compile(optimizer="sgd", steps_per_execution=span.steps_per_call, jit_compile=False)
    watcher = _Watcher(span.after_call, start=start)
    model.fit(batches, steps_per_epoch=span.until - start, epochs=1, verbose=0, shuffle=False, callbacks=[watcher])


def evaluate(
    replica_step: ReplicaStep, strategy: tf.distribute.Strategy, batches: Any, *, steps: int, steps_per_call: int
) -> np.ndarray:
    """float64 [3]: the sums of losses, hits and weights over `steps` global batches."""

    @tf.function
    def call(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        sums = tf.zeros([3], tf.float32)
        for _ in tf.range(num_steps):
            sums += strategy.experimental_local_results(
                strategy.run(_as_written(replica_step.evaluate), args=(next(iterator),))
            )[0]
        return sums

    iterator = iter(batches)
    total = np.zeros(3)
    for first in range(0, steps, steps_per_call):
        # Sums of few batches in the graph, of many here: float32 would stop counting at 2**24.
        total += call(iterator, tf.constant(min(steps_per_call, steps - first))).numpy()
    return total


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
