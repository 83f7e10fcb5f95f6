"""TensorFlow's engine: a `tf.distribute` strategy, with a replica for each core of a TPU, GPU, or part of the CPU.

For each call of a training, one tf.function runs `steps_per_call` steps in a tf.range loop on the devices. Where rows
have several lengths, a call is cut where the length changes, and each length is traced and compiled once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train import feeds
from pipelines.train.checkpoints import damaged, unwritten
from pipelines.train.engines import AfterCall, Feed, built, optimizer
from pipelines.train.metrics import Evaluated, collected
from pipelines.train.models import Built
from pipelines.train.on_tensorflow import strategies
from pipelines.train.on_tensorflow.replica_step import ReplicaStep, specs_of, traced_once, values_of
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import answering
from pipelines.train.targets import Target
from tfrecord_io.errors import ConfigError

__all__ = ["TensorFlowEngine"]


class TensorFlowSaves:
    """Checkpoints of `tf.train` in a folder: ckpt-120.*. The file `checkpoint` names the last finished one, and is
    replaced when a checkpoint's own files are complete: a kill in between leaves the one before it in force.
    """

    def __init__(self, learner: ReplicaStep, folder: str, *, keep: int) -> None:
        self._learner = learner
        self._folder = folder
        # Lists, by position: Keras' names change with what else was built in a process.
        self._state = tf.train.Checkpoint(**learner.saved)
        self._manager = tf.train.CheckpointManager(self._state, folder, max_to_keep=keep)

    @property
    def last_step(self) -> int | None:
        path = self._manager.latest_checkpoint
        return None if path is None else int(path.rpartition("-")[2])

    def save(self) -> None:
        try:
            self._manager.save(checkpoint_number=self._learner.step)
        except tf.errors.OpError as error:
            raise unwritten(self._folder, error) from error

    def restore(self) -> None:
        path = self._manager.latest_checkpoint
        try:
            self._state.restore(path).assert_consumed()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:  # one for each way to be damaged
            raise damaged(path, error) from error

    def close(self) -> None:
        """Do nothing: all writes have finished already."""


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
        specs = feeds.element_specs(job.data, config, job.task, replicas=self.replicas)
        with self._strategy.scope():
            return ReplicaStep(
                built(job),
                task=job.task,
                optimizer=optimizer(config),
                seed=config.seed,
                batch_specs=specs,
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

    def train(
        self, learner: ReplicaStep, feed: Feed, *, until: int, steps_per_call: int, after_call: AfterCall
    ) -> None:
        @tf.function
        def call(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
            loss = tf.zeros([], keras.config.floatx())
            for _ in tf.range(num_steps):
                losses = self._strategy.run(_as_written(learner.train), args=(next(iterator),))
                loss = self._strategy.experimental_local_results(losses)[0]  # the global batch's, on every replica
            return loss

        iterators, step = {length: iter(stream) for length, stream in feed.streams.items()}, learner.step
        while step < until:
            num_steps = min(steps_per_call, until - step)
            for length, steps in itertools.groupby(itertools.islice(feed.schedule, num_steps)):
                # A tensor: another number is no new compilation.
                loss = call(iterators[length], tf.constant(len(list(steps))))
            step += num_steps
            if not after_call(step, float(loss.numpy())):
                return

    def evaluate(self, learner: ReplicaStep, feed: Feed) -> Evaluated:
        @tf.function
        def call(iterator: Any) -> Any:
            found = self._strategy.run(_as_written(learner.evaluate), args=(next(iterator),))
            return tf.nest.map_structure(lambda each: self._strategy.experimental_local_results(each)[0], found)

        iterators = {length: iter(stream) for length, stream in feed.streams.items()}
        steps = (call(iterators[length]) for length in feed.schedule)
        return collected(steps, lambda found: tf.nest.map_structure(lambda each: each.numpy(), found))

    def place_model(self, load: Callable[[], Built]) -> keras.Model:
        with self._strategy.scope():
            return load().model

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        weights = [variable.value for variable in model.trainable_variables]
        state = [variable.value for variable in model.non_trainable_variables]

        parts = {name: each[: len(each) // self.replicas] for name, each in like.items()}
        own = {name: tf.TensorSpec(each.shape, each.dtype) for name, each in parts.items()}
        traced = traced_once(answering(model, outputs), (specs_of(weights), specs_of(state), own))

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


# The step has no Python loop or condition on tensors; rewriting Keras for autograph would only take time.
_as_written = tf.autograph.experimental.do_not_convert
