"""The mathematics of a step as functions of values, in `keras.ops`: what both backends compute for some rows.

The model is called without side effects: the weights come in as values, and what it would have assigned comes out. So a
graph is traced once whatever repeats it, XLA may compile it on any device, and seeds of dropout are functions of (seed,
step) instead of variables: a resumed training draws what an uninterrupted one would have.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from pipelines.train import models
from pipelines.train.metrics.evaluation import WEIGHT
from pipelines.train.models import Built
from pipelines.train.tasks import BoundTask

__all__ = ["Batch", "PureStep", "answering"]

# Inputs by name, labels, weights.
Batch = tuple[Mapping[str, Any], Any, Any]


class PureStep(abc.ABC):
    """A model with its task. `shares`: parts of a global batch whose losses are added; `accumulate`: how many of them
    `gradients` takes one after the other. What Keras has no function for, each backend adds.
    """

    def __init__(self, built: Built, task: BoundTask, *, shares: int, accumulate: int) -> None:
        self.model = built.model
        self.task = task
        self._shares = shares
        self._accumulate = accumulate
        variables = self.model.non_trainable_variables
        self._seeds = [at for at, each in enumerate(variables) if each.name == "seed_generator_state"]
        # The state that a call may change for good.
        self.kept = [at for at, each in enumerate(variables) if at not in self._seeds and "float" in each.dtype]

    @abc.abstractmethod
    def differentiated(self, weights: list[Any], state: list[Any], batch: Batch, total: Any) -> tuple[Any, Any, Any]:
        """`loss`, its gradients by the weights, and all new state."""

    @abc.abstractmethod
    def fold_in(self, seed: Any, number: Any) -> Any:
        """Another seed, which follows from this one and a number."""

    @abc.abstractmethod
    def cut(self, values: Any) -> Any:
        """Cut [B, ...] into `accumulate` parts: [N, B / N, ...]."""

    def gradients(
        self, weights: list[Any], state: list[Any], batch: Batch, total: Any, seed: Any
    ) -> tuple[Any, list[Any], list[Any]]:
        """Loss, gradients, and new values of the `kept` state, of these rows' share of the global batch.

        Weighted losses are sums, so the gradients of parts add up to those of the whole.
        """
        state = self._seeded(state, lambda index: self.fold_in(seed, index))
        if self._accumulate == 1:
            loss, gradients, new = self.differentiated(weights, state, batch, total)
            return loss, gradients, [new[index] for index in self.kept]
        parts = keras.tree.map_structure(self.cut, batch)

        def add(number: Any, carried: Any) -> Any:
            loss, gradients, kept = carried
            given = self._seeded(state, lambda index: self.fold_in(state[index], number))
            for index, value in zip(self.kept, kept, strict=True):
                given[index] = value
            part = keras.tree.map_structure(lambda values: values[number], parts)
            more, changes, new = self.differentiated(weights, given, part, total)
            summed = [one + other for one, other in zip(gradients, changes, strict=True)]
            return loss + more, summed, [new[index] for index in self.kept]

        first = (ops.zeros([]), [ops.zeros_like(each) for each in weights], [state[index] for index in self.kept])
        return ops.fori_loop(0, self._accumulate, add, first)

    def _seeded(self, state: list[Any], seed_of: Any) -> list[Any]:
        given = list(state)
        for index in self._seeds:
            given[index] = ops.cast(seed_of(index), state[index].dtype)
        return given

    def loss(self, weights: list[Any], state: list[Any], batch: Batch, total: Any) -> tuple[Any, list[Any]]:
        """The share of these rows in the loss of a global batch with weights of the sum `total`, and all new state."""
        inputs, labels, example_weights = batch
        example_weights = self.task.weights(labels, example_weights)
        logits, new_state, penalties = self._called(weights, state, inputs, training=True)
        losses = self.task.losses(logits, labels, smoothing=True)
        loss = ops.divide_no_nan(ops.sum(losses * example_weights), total)
        # A model's own regularizers: each part of a global batch adds its share.
        return loss + sum(ops.cast(each, "float32") for each in penalties) / self._shares, new_state

    def sums(self, weights: list[Any], state: list[Any], batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """The task's sums of an evaluation, and what it needs of each row."""
        inputs, labels, example_weights = batch
        logits, _, _ = self._called(weights, state, inputs, training=False)
        example_weights = self.task.weights(labels, example_weights)
        rows = self.task.rows(logits, labels, inputs)
        return self.task.sums(logits, labels, example_weights), {**rows, WEIGHT: example_weights} if rows else {}

    def _called(
        self, weights: list[Any], state: list[Any], inputs: Mapping[str, Any], *, training: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        """Logits where there are labels, new state, penalties."""
        features = models.taken(self.model, inputs)
        logits, state, penalties = self.model.stateless_call(
            weights, state, features, training=training, return_losses=True
        )
        return self.task.aligned(logits, inputs, taken=features), state, penalties


def answering(model: keras.Model, outputs: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of weights, state and features that gives a prediction's `outputs(call, features)`."""

    def pure(weights: Any, state: Any, features: Mapping[str, Any]) -> Any:
        def call(features: Mapping[str, Any]) -> Any:
            return model.stateless_call(weights, state, models.taken(model, features), training=False)[0]

        return outputs(call, features)

    return pure
