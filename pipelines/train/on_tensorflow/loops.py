"""Repeating the step: for each call, one tf.function runs `steps_per_call` steps in a tf.range loop on the devices.

Where rows have several lengths, a call is cut where the length changes, and each length is traced and compiled once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.train.engines import Feed, TrainingSpan
from pipelines.train.metrics.evaluation import Evaluated, real_rows
from pipelines.train.on_tensorflow.replica_step import ReplicaStep

__all__ = ["evaluate", "train"]

# Steps of an evaluation that are summed on the devices, in float32, which stops counting at 2**24.
_SUMMED_STEPS = 100


def train(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, *, feed: Feed, span: TrainingSpan) -> None:
    """Take steps until the span ends; `after_call(step, loss)` runs in Python after each call."""

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
