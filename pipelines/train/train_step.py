"""One step of training and one of evaluation, as every replica takes it, whatever loop repeats it.

    each replica                                     all replicas     each replica
    rows ─► logits ─► weighted losses, gradients ─►  sum           ─► clip, AdamW ─► assigned to its copy of the weights
            └──── a pure function, traced once ───┘                   └─ another ─┘

The model is called without side effects: the weights come in as values, and what it would have assigned comes out.
That has four uses. A graph is traced once for all replicas. XLA may compile it on any device. Both loops run the same.
And the seeds of dropout are functions of (seed, step, replica) instead of variables: replicas differ, and a resumed
training draws what an uninterrupted one would have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from pipelines.train import models
from pipelines.train.adamw import AdamW
from pipelines.train.tasks import BoundTask
from tfrecord_io.objectives import MASKED_POSITIONS

__all__ = ["ReplicaStep"]

Batch = tuple[Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor]
_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class ReplicaStep:
    """A model, its optimizer's state and its task, with the steps on one replica's part of a batch."""

    def __init__(
        self,
        built: models.Built,
        *,
        task: BoundTask,
        optimizer: AdamW,
        seed: int,
        batch_spec: Any,
        jit_compile: bool,
    ) -> None:
        """Call it inside the strategy's scope. `batch_spec`: of one replica's part, see `tf.data.Dataset.element_spec`.
        `jit_compile`: XLA for the pure functions. The exchange between replicas stays outside, where XLA cannot go.
        """
        self.built = built
        self.model = model = built.model
        self.optimizer = optimizer
        self._task = task
        self._seed = seed
        self._replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self._weights = [variable.value for variable in model.trainable_variables]
        self._means, self._squares = (
            [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in self._weights] for _ in range(2)
        )
        self._step = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._trace(batch_spec, jit=jit_compile)

    def _trace(self, batch_spec: Any, *, jit: bool) -> None:
        weights = _specs(self._weights)
        state = _specs(self.model.non_trainable_variables)
        total, step = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64)
        traced = functools.partial(_traced, jit=jit)
        self._gradients = traced(self._loss_and_gradients, (weights, state, batch_spec, total))
        self._sums = traced(self._evaluation_sums, (weights, state, batch_spec))
        self._update = traced(self.optimizer.update, (step, weights, weights, weights, weights))

    @property
    def step(self) -> int:
        """Steps taken, restored ones included."""
        return int(self._step.numpy())

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.learning_rate(self._step))

    @property
    def saved(self) -> dict[str, Any]:
        """All that decides what comes next, as lists of variables in a fixed order."""
        weights = [variable.value for variable in self.model.variables]
        return {"weights": weights, "means": self._means, "squares": self._squares, "step": self._step}

    def train(self, batch: Batch) -> tf.Tensor:
        """One step, in a replica's context. Returns the loss, the mean over the global batch, float32 []."""
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce(_SUM, tf.reduce_sum(batch[2]))
        weights, step = _values(self._weights), tf.convert_to_tensor(self._step)
        loss, gradients, state = self._gradients(weights, self._state(step), _plain(batch), total)
        loss, *gradients = replica.all_reduce(_SUM, [loss, *gradients])
        updated = self._update(step, weights, gradients, _values(self._means), _values(self._squares))
        variables, values = [*self._weights, *self._means, *self._squares], [each for part in updated for each in part]
        for variable, value in self._changed(state):
            variables.append(variable)
            values.append(replica.all_reduce(_MEAN, value))
        replica.merge_call(_assign, args=([*variables, self._step], [*values, step + 1]))
        return loss

    def evaluate(self, batch: Batch) -> tf.Tensor:
        """One batch, in a replica's context. Returns float32 [3]: losses, hits, weights, summed over all."""
        state = _values([variable.value for variable in self.model.non_trainable_variables])
        sums = self._sums(_values(self._weights), state, _plain(batch))
        return tf.distribute.get_replica_context().all_reduce(_SUM, sums)

    def _loss_and_gradients(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch, total: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        inputs, labels, example_weights = batch
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            logits, state, penalties = self._called(weights, state, inputs, training=True)
            losses = self._task.losses(logits, labels, smoothing=True)
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses * example_weights), total)
            # A model's own regularizers; each replica adds its share.
            loss += tf.cast(sum(penalties), tf.float32) / self._replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # An embedding's gradient is sparse; XLA and the sum over replicas want it dense.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], state

    def _evaluation_sums(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> tf.Tensor:
        inputs, labels, example_weights = batch
        logits, _, _ = self._called(weights, state, inputs, training=False)
        losses = self._task.losses(logits, labels, smoothing=False)
        hits = self._task.hits(logits, labels)
        # A row that fills up a batch has no token, of which a model may make 0 / 0: its weight 0 must win.
        counted = [tf.math.multiply_no_nan(each, example_weights) for each in (losses, hits)]
        return tf.stack([tf.reduce_sum(each) for each in (*counted, example_weights)])

    def _called(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], inputs: Mapping[str, tf.Tensor], *, training: bool
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Logits where there are labels, new state, penalties. A user's model may have computed more logits."""
        features = models.taken(self.model, inputs)
        logits, state, penalties = self.model.stateless_call(
            weights, state, features, training=training, return_losses=True
        )
        if MASKED_POSITIONS in inputs.keys() - features.keys():
            logits = tf.gather(logits, inputs[MASKED_POSITIONS], batch_dims=1)
        return logits, state, penalties

    def _state(self, step: tf.Tensor) -> list[tf.Tensor]:
        """The values of what the model changes without training it; seeds are made, not read."""
        replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.constant([self._seed % 2**31, self._seed // 2**31 % 2**31], tf.int32)
        for number in (step, replica_id):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int32))
        values = []
        for index, variable in enumerate(self.model.non_trainable_variables):
            if _is_seed(variable):
                values.append(tf.cast(tf.random.experimental.stateless_fold_in(seed, index), variable.dtype))
            else:
                values.append(tf.convert_to_tensor(variable.value))
        return values

    def _changed(self, state: list[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """What is averaged over the replicas and kept, such as running means; not seeds."""
        pairs = zip(self.model.non_trainable_variables, state, strict=True)
        return [(each.value, value) for each, value in pairs if not _is_seed(each) and "float" in each.dtype]


def _traced(function: Callable[..., Any], specs: Any, *, jit: bool) -> Callable[..., Any]:
    """The function traced once; each replica calls the same graph. Tracing a model for each of 8 replicas takes half a
    minute on 2 cores. A model that keeps variables from Keras is traced by each replica, which has its own.
    """
    compiled = tf.function(function, jit_compile=jit or None, autograph=False)
    concrete = compiled.get_concrete_function(*specs)
    captured = any(each.dtype == tf.resource for each in concrete.captured_inputs)
    return compiled if captured else concrete


def _assign(strategy: tf.distribute.Strategy, variables: list[Any], values: list[Any]) -> None:
    """Assign each replica's value to its copy of a variable, in the context of all replicas; the values are equal."""
    for variable, value in zip(variables, values, strict=True):
        strategy.extended.update(
            variable, lambda own, new: own.assign(new, read_value=False), args=(value,), group=False
        )


def _specs(variables: list[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(each.shape, each.dtype) for each in variables]


def _values(variables: list[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(each) for each in variables]


def _plain(batch: Batch) -> Batch:
    inputs, labels, weights = batch
    return dict(inputs), labels, weights


def _is_seed(variable: Any) -> bool:
    return bool(variable.name == "seed_generator_state")
