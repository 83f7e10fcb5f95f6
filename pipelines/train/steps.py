"""The mathematics of a step as functions of values, in `keras.ops`: what both backends compute for some rows.

The model is called without side effects: the weights come in as values, and what it would have assigned comes out. So a
graph is traced once whatever repeats it, XLA may compile it on any device, and seeds of dropout are functions of (seed,
step) instead of variables: a resumed training draws what an uninterrupted one would have.

The optimizer: AdamW (arXiv:1711.05101, algorithm 2) with warm-up, a schedule and clipping, as a function of values.

Keras' own optimizer follows another rule on TensorFlow (Keras 3.15.1). An embedding's gradient lists a row for each
token; Keras squares these rows one by one, without adding those of one id first: of ids [0, 0, 0, 1], whose gradients
are 3 and 1, the second moment of id 0 gets 3 x 1^2 where 3^2 is true. And each replica clips its own gradients before
they are summed, so what is learned depends on the number of replicas. Here gradients are dense and summed first, then
clipped. docs/how-to/read.md has the lines for a `fit` of your own; a test holds this rule against Keras'.

    t = step + 1    g: gradients, summed over the replicas, scaled so that their norm together is at most `clip_norm`
    m <- b1 m + (1 - b1) g            v <- b2 v + (1 - b2) g^2
    w <- w - rate (decay w + sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon))      no decay for what is no matrix
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from pipelines.train import models
from pipelines.train.config import Schedule
from pipelines.train.metrics import WEIGHT
from pipelines.train.models import BuiltModel
from pipelines.train.setup import TrainingSetup

# Inputs by name, labels, weights.
Batch = tuple[Mapping[str, Any], Any, Any]


class Learner(abc.ABC):
    """A model in training with its task and optimizer. `shares`: parts of a global batch whose losses are added, of
    which `gradients` takes `--accumulate` one after the other. What Keras has no function for, each backend adds.
    """

    flops = 0.0  # that one device has done in this process, 0 where they are not counted

    def __init__(self, built: BuiltModel, job: TrainingSetup, *, shares: int) -> None:
        config = job.config
        self.built = built
        self.model = built.model
        self.task = job.task
        self.optimizer = AdamW(
            rate=config.learning_rate,
            warmup=config.warmup,
            steps=config.total_steps,
            decay=config.weight_decay,
            clip_norm=config.clip_norm,
            schedule=config.schedule,
        )
        self._shares = shares
        self._accumulate = config.accumulate
        variables = self.model.non_trainable_variables
        self._seeds = [at for at, each in enumerate(variables) if each.name == "seed_generator_state"]
        # The state that a call may change for good.
        self._kept = [at for at, each in enumerate(variables) if at not in self._seeds and "float" in each.dtype]

    @property
    @abc.abstractmethod
    def step(self) -> int:
        """Steps taken, restored ones included."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.learning_rate(self.step))

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
        """Loss, gradients, and new values of the kept state, of these rows' share of the global batch.

        Weighted losses are sums, so the gradients of parts add up to those of the whole.
        """
        state = self._seeded(state, lambda index: self.fold_in(seed, index))
        if self._accumulate == 1:
            loss, gradients, new = self.differentiated(weights, state, batch, total)
            return loss, gradients, [new[index] for index in self._kept]
        parts = keras.tree.map_structure(self.cut, batch)

        def add(number: Any, carried: Any) -> Any:
            loss, gradients, kept = carried
            given = self._seeded(state, lambda index: self.fold_in(state[index], number))
            for index, value in zip(self._kept, kept, strict=True):
                given[index] = value
            part = keras.tree.map_structure(lambda values: values[number], parts)
            more, changes, new = self.differentiated(weights, given, part, total)
            summed = [one + other for one, other in zip(gradients, changes, strict=True)]
            return loss + more, summed, [new[index] for index in self._kept]

        first = (ops.zeros([]), [ops.zeros_like(each) for each in weights], [state[index] for index in self._kept])
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW:
    """The numbers of the rule. `rate` is the highest learning rate, reached after `warmup` of `steps` steps; `schedule`
    is what it does then.
    """

    rate: float
    warmup: int
    steps: int
    decay: float
    clip_norm: float
    schedule: Schedule = "cosine"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def learning_rate(self, step: Any) -> Any:
        """float32 []: linear from rate / (warmup + 1) up to `rate`, then a cosine or a line down to 0 at `steps`, or
        constant.
        """
        done = ops.cast(step, "float32")
        rising = (done + 1.0) / (self.warmup + 1.0)
        share = ops.clip((done - self.warmup) / max(1, self.steps - self.warmup), 0.0, 1.0)
        if self.schedule == "cosine":
            falling = 0.5 * (1.0 + ops.cos(math.pi * share))
        else:
            falling = 1.0 - share if self.schedule == "linear" else ops.ones_like(share)
        return self.rate * ops.where(done < self.warmup, rising, falling)

    def update(
        self,
        step: Any,
        weights: Sequence[Any],
        gradients: Sequence[Any],
        means: Sequence[Any],
        squares: Sequence[Any],
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """New weights, means and squares. `step` counts the steps taken before."""
        norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in gradients))
        shrunk = self.clip_norm / ops.maximum(norm, self.clip_norm)
        rate, time = self.learning_rate(step), ops.cast(step, "float32") + 1.0
        # expm1: in float32, 1 - 0.999**t keeps 4 digits of the first steps' correction.
        first, second = (-ops.expm1(time * math.log(beta)) for beta in (self.beta_1, self.beta_2))
        scale = rate * ops.sqrt(second) / first
        found = []
        for weight, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
            gradient = gradient * shrunk
            new_mean = self.beta_1 * mean + (1.0 - self.beta_1) * gradient
            new_square = self.beta_2 * square + (1.0 - self.beta_2) * ops.square(gradient)
            kept = weight * (1.0 - rate * self.decay) if len(weight.shape) > 1 else weight
            found.append((kept - scale * new_mean / (ops.sqrt(new_square) + self.epsilon), new_mean, new_square))
        new_weights, new_means, new_squares = zip(*found, strict=True)
        return list(new_weights), list(new_means), list(new_squares)
