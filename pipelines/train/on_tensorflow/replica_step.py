"""One step of training and one of evaluation, as every replica of a strategy takes it, whatever loop repeats it.

    each replica                                     all replicas     each replica
    rows ─► logits ─► weighted losses, gradients ─►  sum           ─► clip, AdamW ─► assigned to its copy of the weights
            └──── a pure function, traced once ───┘                   └─ another ─┘

The pure functions are those of `pure_step`; seeds of dropout follow from the replica's number too, so that replicas
differ. Batches of another length are another graph, traced and compiled once; the update is the same for all. With
`accumulate` N, a replica takes its rows in N parts, one after the other, in a loop on the device: weighted losses are
sums, so the gradients of the parts add up to those of the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipelines.train.models import Built
from pipelines.train.steps.adamw import AdamW
from pipelines.train.steps.pure_step import Batch, PureStep
from pipelines.train.tasks import BoundTask

__all__ = ["ReplicaStep", "specs_of", "traced_once", "values_of"]

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class ReplicaStep:
    """A model, its optimizer's state and its task, with the steps on one replica's part of a batch."""

    def __init__(
        self,
        built: Built,
        *,
        task: BoundTask,
        optimizer: AdamW,
        seed: int,
        batch_specs: Sequence[Any],
        jit_compile: bool,
        accumulate: int = 1,
    ) -> None:
        """Call it inside the strategy's scope. `batch_specs`: of one replica's part, one for each length of rows, see
        `tf.data.Dataset.element_spec`. `jit_compile`: XLA for the pure functions. The exchange between replicas stays
        outside, where XLA cannot go.
        """
        self.built = built
        self.flops = 0.0
        self.model = model = built.model
        self.optimizer = optimizer
        self.task = task
        self._seed = seed
        shares = tf.distribute.get_strategy().num_replicas_in_sync * accumulate
        self._pure = PureStep(built, task, shares=shares)
        self._weights = [variable.value for variable in model.trainable_variables]
        self._means, self._squares = (
            [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in self._weights] for _ in range(2)
        )
        self._step = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._accumulate = accumulate
        self._moving: frozenset[int] = frozenset()
        self._gradients: dict[Any, Callable[..., Any]] = {}
        self._sums: dict[Any, Callable[..., Any]] = {}
        for spec in batch_specs:
            self._trace(spec, jit=jit_compile)
        weights, step = specs_of(self._weights), tf.TensorSpec([], tf.int64)
        self._update = traced_once(self.optimizer.update, (step, weights, weights, weights, weights), jit=jit_compile)

    def _trace(self, batch_spec: Any, *, jit: bool) -> None:
        weights, state = specs_of(self._weights), specs_of(self.model.non_trainable_variables)
        traced = functools.partial(traced_once, jit=jit)
        key, total = _shapes(batch_spec), tf.TensorSpec([], tf.float32)
        self._gradients[key] = traced(self._loss_and_gradients, (weights, state, batch_spec, total))
        self._sums[key] = traced(self._pure.sums, (weights, state, batch_spec))

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
        counted = self.task.weights(batch[1], batch[2])
        total = replica.all_reduce(_SUM, tf.reduce_sum(counted))
        weights, step = values_of(self._weights), tf.convert_to_tensor(self._step)
        gradients_of = self._gradients[_shapes(batch)]
        loss, gradients, state = gradients_of(weights, self._state(step), _plain(batch), total)
        loss, *gradients = replica.all_reduce(_SUM, [loss, *gradients])
        updated = self._update(step, weights, gradients, values_of(self._means), values_of(self._squares))
        variables, values = [*self._weights, *self._means, *self._squares], [each for part in updated for each in part]
        for variable, value in self._changed(state):
            variables.append(variable)
            values.append(replica.all_reduce(_MEAN, value))
        replica.merge_call(_assign, args=([*variables, self._step], [*values, step + 1]))
        return loss

    def evaluate(self, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """One batch, in a replica's context. Returns the task's sums over all replicas, and what it needs of each row,
        of all replicas, see `tasks.BoundTask`.
        """
        state = values_of([variable.value for variable in self.model.non_trainable_variables])
        sums, rows = self._sums[_shapes(batch)](values_of(self._weights), state, _plain(batch))
        replica = tf.distribute.get_replica_context()
        sums = {name: replica.all_reduce(_SUM, each) for name, each in sums.items()}
        return sums, {name: replica.all_gather(each, axis=0) for name, each in rows.items()}

    def _loss_and_gradients(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch, total: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Loss, gradients, and new values of the state that moves: all for this replica's rows."""
        if self._accumulate == 1:
            loss, gradients, new_state = self._part_of_step(weights, state, batch, total)
            return loss, gradients, [new_state[index] for index in sorted(self._moving)]
        parts = tf.nest.map_structure(self._in_parts, _plain(batch))

        def add(number: tf.Tensor, loss: tf.Tensor, gradients: Any, carried: Any) -> Any:
            part = tf.nest.map_structure(lambda values: values[number], parts)
            more = self._part_of_step(weights, self._state_of_part(state, carried, number), part, total)
            summed = [one + other for one, other in zip(gradients, more[1], strict=True)]
            return number + 1, loss + more[0], summed, [more[2][index] for index in self._pure.kept]

        # What does not change passes through the loop untouched: which that is, is known once a part was traced.
        first = (tf.constant(0), tf.zeros([]), [tf.zeros_like(each) for each in weights])
        carried = [state[index] for index in self._pure.kept]
        found = tf.while_loop(lambda number, *_: number < self._accumulate, add, (*first, carried))
        _, loss, gradients, carried = found
        moved = [value for index, value in zip(self._pure.kept, carried, strict=True) if index in self._moving]
        return loss, gradients, moved

    def _part_of_step(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch, total: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Loss, gradients, and all of the state, of these rows' share of the global batch."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss, new_state = self._pure.loss(weights, state, batch, total)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Neither the weights of frozen layers, which come back as the very tensors that went in, nor seeds.
        self._moving = frozenset(index for index in self._pure.kept if new_state[index] is not state[index])
        # An embedding's gradient is sparse; XLA and the sum over replicas want it dense.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], new_state

    def _state_of_part(self, state: list[tf.Tensor], carried: list[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
        """The state that part `number` of a replica's rows meets: its own seeds, and what the part before it left."""
        values = list(state)
        for index in self._pure.seeds:
            seed = tf.random.experimental.stateless_fold_in(tf.cast(state[index], tf.int32), number)
            values[index] = tf.cast(seed, state[index].dtype)
        for index, value in zip(self._pure.kept, carried, strict=True):
            values[index] = value
        return values

    def _in_parts(self, values: tf.Tensor) -> tf.Tensor:
        """[B, ...] as [N, B / N, ...]."""
        shape = values.shape.as_list()
        return tf.reshape(values, [self._accumulate, shape[0] // self._accumulate, *shape[1:]])

    def _state(self, step: tf.Tensor) -> list[tf.Tensor]:
        """The values of what the model changes without training it; seeds are made, not read."""
        replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.constant([self._seed % 2**31, self._seed // 2**31 % 2**31], tf.int32)
        for number in (step, replica_id):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int32))
        values = values_of([variable.value for variable in self.model.non_trainable_variables])
        for index in self._pure.seeds:
            values[index] = tf.cast(tf.random.experimental.stateless_fold_in(seed, index), values[index].dtype)
        return values

    def _changed(self, moved: list[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """What is averaged over the replicas and kept, such as running means."""
        variables = self.model.non_trainable_variables
        return [(variables[index].value, value) for index, value in zip(sorted(self._moving), moved, strict=True)]


def traced_once(function: Callable[..., Any], specs: Any, *, jit: bool) -> Callable[..., Any]:
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


def specs_of(variables: list[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(each.shape, each.dtype) for each in variables]


def values_of(variables: list[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(each) for each in variables]


def _plain(batch: Batch) -> Batch:
    inputs, labels, weights = batch
    return dict(inputs), labels, weights


def _shapes(batch: Any) -> tuple[tuple[int, ...], ...]:
    """What a graph is traced for: the static shapes of a batch, or of its specification."""
    return tuple(tuple(each.shape.as_list()) for each in tf.nest.flatten(_plain(batch)))
