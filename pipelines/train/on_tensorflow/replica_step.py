"""Training and evaluation steps that run in each replica of a strategy.

Each replica clips the sum of all replicas' gradients, and updates its copy of the weights. Dropout seeds depend on the
seed, the step and the replica.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipelines.train.models import BuiltModel
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import Learner
from pipelines.train.tasks.kinds import Batch

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class ReplicaStep(Learner):
    """A model in training, in each replica of a strategy."""

    # Indices of kept state that a step changes.
    _moving: frozenset[int] = frozenset()

    def __init__(self, built: BuiltModel, job: TrainingSetup, *, batch_specs: Sequence[Any]) -> None:
        """Create the state and trace the steps, inside the strategy's scope.

        `batch_specs`: result of `device_backend.element_specs`.
        """
        super().__init__(built, job, shares=tf.distribute.get_strategy().num_replicas_in_sync * job.config.accumulate)
        self._seed = job.config.seed
        self._weights = [variable.value for variable in self.model.trainable_variables]
        self._means, self._squares = (
            [tf.Variable(tf.zeros(weight.shape, weight.dtype), trainable=False) for weight in self._weights]
            for _ in range(2)
        )
        self._step = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self.reference = [tf.Variable(weight, trainable=False) for weight in built.reference]
        self._others = [*(variable.value for variable in self.model.non_trainable_variables), *self.reference]
        self._gradients: dict[Any, Callable[..., Any]] = {}
        self._sums: dict[Any, Callable[..., Any]] = {}
        weights, state = specs_of(self._weights), specs_of(self._others)
        total, seed_spec = tf.TensorSpec([], keras.config.floatx()), tf.TensorSpec([2], tf.int32)
        for spec in batch_specs:
            key = _shapes(spec)
            self._gradients[key] = traced_once(self.gradients, (weights, state, spec, total, seed_spec))
            self._sums[key] = traced_once(self.sums, (weights, state, spec))
        step = tf.TensorSpec([], tf.int64)
        self._update = traced_once(self.optimizer.update, (step, weights, weights, weights, weights))

    @property
    def step(self) -> int:
        return int(self._step.numpy())

    @property
    def saved(self) -> dict[str, Any]:
        """Variables that a checkpoint contains, by name, in a fixed order."""
        weights = [variable.value for variable in self.model.variables]
        state = {"weights": weights, "means": self._means, "squares": self._squares, "step": self._step}
        return {**state, "reference": self.reference} if self.reference else state

    def differentiated(self, weights: list[Any], state: list[Any], batch: Batch, total: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss, new = self.loss(weights, state, batch, total)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self._moving = frozenset(index for index in self._kept if new[index] is not state[index])
        # XLA and the sum over replicas need an embedding's sparse gradient in dense form.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], new

    def fold_in(self, seed: Any, number: Any) -> Any:
        return tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int32), tf.cast(number, tf.int32))

    def cut(self, values: tf.Tensor) -> tf.Tensor:
        rows, *rest = values.shape.as_list()
        return tf.reshape(values, [self._accumulate, rows // self._accumulate, *rest])

    def train(self, batch: Batch) -> tf.Tensor:
        """Take a training step, in a replica's context. Return the mean loss of the global batch, float32 []."""
        replica = tf.distribute.get_replica_context()
        counted = self.task.weights(batch[1], batch[2])
        total = replica.all_reduce(_SUM, tf.reduce_sum(counted))
        weights, step = values_of(self._weights), tf.convert_to_tensor(self._step)
        seed = tf.constant([self._seed % 2**31, self._seed // 2**31 % 2**31], tf.int32)
        for number in (step, replica.replica_id_in_sync_group):
            seed = self.fold_in(seed, number)
        gradients_of = self._gradients[_shapes(batch)]
        loss, gradients, kept = gradients_of(weights, values_of(self._others), _plain(batch), total, seed)
        loss, *gradients = replica.all_reduce(_SUM, [loss, *gradients])
        updated = self._update(step, weights, gradients, values_of(self._means), values_of(self._squares))
        variables, values = [*self._weights, *self._means, *self._squares], [*itertools.chain(*updated)]
        for index, value in zip(self._kept, kept, strict=True):
            if index in self._moving:  # such as running means, which are averaged over the replicas
                variables.append(self._others[index])
                values.append(replica.all_reduce(_MEAN, value))
        replica.merge_call(_assign, args=([*variables, self._step], [*values, step + 1]))
        return loss

    def evaluate(self, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Return the results of `sums` over all replicas, in a replica's context."""
        sums, rows = self._sums[_shapes(batch)](values_of(self._weights), values_of(self._others), _plain(batch))
        replica = tf.distribute.get_replica_context()
        sums = {name: replica.all_reduce(_SUM, value) for name, value in sums.items()}
        return sums, {name: replica.all_gather(values, axis=0) for name, values in rows.items()}


def traced_once(function: Callable[..., Any], specs: Any) -> Callable[..., Any]:
    """Return a tf.function that is traced once for all replicas, because tracing is slow.

    `specs`: TensorSpecs of the arguments. If `function` captures variables, each replica traces it again, because each
    has its own copies.
    """
    compiled = tf.function(function, autograph=False)
    concrete = compiled.get_concrete_function(*specs)
    captured = any(tensor.dtype == tf.resource for tensor in concrete.captured_inputs)
    return compiled if captured else concrete


def _assign(strategy: tf.distribute.Strategy, variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):  # the values are equal in all replicas
        strategy.extended.update(
            variable, lambda own, new: own.assign(new, read_value=False), args=(value,), group=False
        )


def specs_of(variables: list[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]


def values_of(variables: list[Any]) -> list[tf.Tensor]:
    return list(map(tf.convert_to_tensor, variables))


def _plain(batch: Batch) -> Batch:
    inputs, labels, weights = batch
    return dict(inputs), labels, weights


def _shapes(batch: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape.as_list()) for tensor in tf.nest.flatten(_plain(batch)))
