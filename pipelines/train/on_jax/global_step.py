"""Training step of all devices as one program, partitioned by XLA according to the sharding of batch and state.

Sums are over the global batch, dropout seeds depend on (seed, step), and a dropout mask is an array over all devices.
So the result does not depend on the number of devices.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pipelines.train.models import BuiltModel
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import Learner
from pipelines.train.tasks.kinds import Batch

AXIS = "batch"
State = dict[str, Any]


class GlobalStep(Learner):
    """A model in training, with its state on the devices of a mesh."""

    step = 0

    def __init__(self, built: BuiltModel, job: TrainingSetup, *, mesh: Mesh, abstract: bool = False) -> None:
        """Place the model's state on a mesh or, if `abstract`, keep only its shapes, to compile for another machine."""
        super().__init__(built, job, shares=job.config.accumulate)
        seed = job.config.seed
        self._key = jax.random.fold_in(jax.random.PRNGKey(seed % 2**32), seed // 2**32)
        self._mesh = mesh
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.by_row = NamedSharding(mesh, PartitionSpec(AXIS))
        self._shard = job.config.shard_model

        def placed(values: np.ndarray) -> Any:
            sharding = self._place(values)
            if abstract:
                return jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)
            return jax.device_put(values, sharding)

        weights = [np.asarray(variable.value) for variable in built.model.trainable_variables]
        others = [*(np.asarray(variable.value) for variable in built.model.non_trainable_variables), *built.reference]
        zeros = list(map(np.zeros_like, weights))
        first = {"weights": weights, "others": others, "means": zeros, "squares": zeros, "step": np.int32(0)}
        self.state: State = jax.tree.map(placed, first)
        shardings = jax.tree.map(lambda array: array.sharding, self.state)
        self._train = jax.jit(self._taken, donate_argnums=0, out_shardings=(shardings, self.replicated))
        self._sums = jax.jit(self.sums, out_shardings=self.replicated)
        self._compiled: dict[Any, Any] = {}

    @property
    def reference(self) -> list[Any]:
        """Weights of the reference model for dpo; empty for other tasks."""
        return self.state["others"][self._own :]

    def differentiated(self, weights: list[Any], state: list[Any], batch: Batch, total: Any) -> tuple[Any, Any, Any]:
        (loss, new), gradients = jax.value_and_grad(self.loss, has_aux=True)(weights, state, batch, total)
        return loss, gradients, new

    def fold_in(self, seed: Any, number: Any) -> Any:
        return jax.random.fold_in(seed.astype("uint32"), number)

    def cut(self, values: jax.Array) -> jax.Array:
        devices, parts = self._mesh.size, self._accumulate  # each device splits its own rows
        rows, *rest = values.shape
        split = jnp.moveaxis(values.reshape(devices, parts, rows // devices // parts, *rest), 1, 0)
        joined = split.reshape(parts, rows // parts, *rest)
        return jax.lax.with_sharding_constraint(joined, NamedSharding(self._mesh, PartitionSpec(None, AXIS)))

    def take(self, batch: Batch) -> jax.Array:
        """Take a training step. Return the mean loss of the global batch, float32 [], without waiting for its value."""
        program, flops = self.program(batch)
        self.state, loss = program(self.state, batch)
        self.step, self.flops = self.step + 1, self.flops + flops
        return loss

    def evaluate(self, batch: Batch) -> Any:
        """Return the result of `sums` for a global batch."""
        return self._sums(self.state["weights"], self.state["others"], batch)

    def program(self, batch: Batch) -> tuple[Any, float]:
        """Return the training step, compiled for the batch's shapes (and cached), and its FLOPs per device."""
        shapes = tuple(array.shape for array in jax.tree.leaves(batch))
        if shapes not in self._compiled:
            compiled = self._train.lower(self.state, batch).compile()
            costs = compiled.cost_analysis() or {}
            # XLA counts a loop's body once.
            self._compiled[shapes] = compiled, float(costs.get("flops", 0.0)) * self._accumulate
        return self._compiled[shapes]

    def _place(self, values: np.ndarray) -> NamedSharding:
        sizes = [size if size % self._mesh.size == 0 else 0 for size in values.shape]
        if not self._shard or values.ndim < 2 or not max(sizes):
            return self.replicated
        # As in ZeRO's third stage (arXiv:1910.02054), XLA gathers a divided weight when it is needed.
        axes = [AXIS if at == int(np.argmax(sizes)) else None for at in range(values.ndim)]
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    def _taken(self, state: State, batch: Batch) -> tuple[State, jax.Array]:
        weights, step = state["weights"], state["step"]
        total = jnp.sum(self.task.weights(batch[1], batch[2]))
        seed, others = self.fold_in(self._key, step), list(state["others"])
        loss, gradients, kept = self.gradients(weights, others, batch, total, seed)
        for index, value in zip(self._kept, kept, strict=True):
            others[index] = value
        updated = self.optimizer.update(step, weights, gradients, state["means"], state["squares"])
        new = dict(zip(("weights", "means", "squares"), updated, strict=True))
        return {**new, "others": others, "step": step + 1}, loss
