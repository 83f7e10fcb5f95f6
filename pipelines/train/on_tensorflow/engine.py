"""TensorFlow's engine: a `tf.distribute` strategy, with a replica for each core of a TPU, GPU, or part of the CPU.

For each call of a training, one tf.function runs `steps_per_call` steps in a tf.range loop on the devices. Where rows
have several lengths, a call is cut where the length changes, and each length is traced and compiled once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train import models
from pipelines.train.engines import Feed, TrainingSpan, built, optimizer
from pipelines.train.metrics.evaluation import Evaluated, real_rows
from pipelines.train.models import Built
from pipelines.train.on_tensorflow import strategies
from pipelines.train.on_tensorflow.replica_step import ReplicaStep, specs_of, traced_once, values_of
from pipelines.train.on_tensorflow.saves import TensorFlowSaves
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import feeds
from pipelines.train.targets import Target
from tfrecord_io.errors import ConfigError

__all__ = ["TensorFlowEngine"]

# Steps of an evaluation that are summed on the devices, in float32, which stops counting at 2**24.
_SUMMED_STEPS = 100


class TensorFlowEngine:
    """The strategy of a target, see `engines.Engine`."""

    is_first = True
    input_parts = 0
    peak_flops = 0.0

    def __init__(
        self, target: Target, *, replicas: int | None = None, zone: str | None = None, project: str | None = None
    ) -> None:
        self._strategy = strategies.connect(target, replicas=replicas, zone=zone, project=project)
        self.replicas = self._strategy.num_replicas_in_sync
        self.hardware = strategies.hardware(self._strategy)

    def learner(self, job: TrainingSetup) -> ReplicaStep:
        if job.config.shard_model:
            raise ConfigError("--shard-model with --backend tensorflow, expected jax", remedy="give --backend jax")
        config = job.config
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
        specs = feeds.element_specs(job.data, config, job.task, replicas=self.replicas)
        with self._strategy.scope():
            return ReplicaStep(
                built(job),
                task=job.task,
                optimizer=optimizer(config),
                seed=config.seed,
                batch_specs=specs,
                # A TPU's programs are compiled by XLA anyway, and refuse to be told so again.
                jit_compile=config.jit_compile and not job.target.is_tpu,
                accumulate=config.accumulate,
            )

    def current(self, learner: ReplicaStep) -> keras.Model:
        return learner.built.model

    def saves(self, learner: ReplicaStep, folder: str, *, keep: int) -> TensorFlowSaves:
        return TensorFlowSaves(learner, folder, keep=keep)

    def feed(self, input_fns: Mapping[int, Any], schedule: Iterator[int]) -> Feed:
        distribute = self._strategy.distribute_datasets_from_function
        return Feed(streams={length: distribute(each) for length, each in input_fns.items()}, schedule=schedule)

    @functools.cached_property
    def hosts(self) -> int:
        """Hosts that read; strategies say it only to input functions."""
        found = []

        def note(context: tf.distribute.InputContext) -> tf.data.Dataset:
            found.append(context.num_input_pipelines)
            return tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()

        self._strategy.distribute_datasets_from_function(note)
        return int(found[0])

    def train(self, learner: ReplicaStep, feed: Feed, span: TrainingSpan) -> None:
        _train(learner, self._strategy, feed=feed, span=span)

    def evaluate(self, learner: ReplicaStep, feed: Feed) -> Evaluated:
        return _evaluate(learner, self._strategy, feed)

    def place_model(self, load: Callable[[], Built]) -> keras.Model:
        with self._strategy.scope():
            return load().model

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        weights = [variable.value for variable in model.trainable_variables]
        state = [variable.value for variable in model.non_trainable_variables]

        def pure(weights: list[tf.Tensor], state: list[tf.Tensor], features: dict[str, tf.Tensor]) -> Any:
            def call(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
                return model.stateless_call(weights, state, models.taken(model, features), training=False)[0]

            return outputs(call, features)

        parts = {name: each[: len(each) // self.replicas] for name, each in like.items()}
        own = {name: tf.TensorSpec(each.shape, each.dtype) for name, each in parts.items()}
        traced = traced_once(pure, (specs_of(weights), specs_of(state), own), jit=False)

        def on_replica(features: dict[str, tf.Tensor]) -> Any:
            return traced(values_of(weights), values_of(state), features)

        @tf.function(autograph=False)
        def step(features: dict[str, Any]) -> Any:
            return self._strategy.run(on_replica, args=(features,))

        def run(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            given = {name: self._in_parts(np.split(each, self.replicas)) for name, each in batch.items()}
            found, local = step(given), self._strategy.experimental_local_results
            return {name: np.concatenate([each.numpy() for each in local(values)]) for name, values in found.items()}

        return run

    def _in_parts(self, parts: list[np.ndarray]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def anywhere(self, here: bool) -> bool:
        return here  # one process drives all hosts

    def start_profile(self, folder: str) -> None:
        tf.profiler.experimental.start(folder)

    def stop_profile(self) -> None:
        tf.profiler.experimental.stop()


def _train(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, *, feed: Feed, span: TrainingSpan) -> None:
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


def _evaluate(replica_step: ReplicaStep, strategy: tf.distribute.Strategy, feed: Feed) -> Evaluated:
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
