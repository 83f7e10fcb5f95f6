"""Training step as pure functions in `keras.ops`, for both backends: loss, gradients and AdamW.

Dropout's seeds are functions of (seed, step), so a resumed run draws the same numbers as an uninterrupted one.

The optimizer is AdamW (arXiv:1711.05101, algorithm 2) with warm-up, a schedule and clipping, because Keras' AdamW
(3.15.1) differs on TensorFlow: it squares an embedding's gradient token by token instead of summing it by id first, and
each replica clips its own gradients, so the result depends on the number of replicas.

    t = step + 1    g: gradients, summed over the replicas, scaled so that their global norm is at most `clip_norm`
    m <- b1 m + (1 - b1) g            v <- b2 v + (1 - b2) g^2
    w <- w - rate (decay w + m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon))        no decay of biases and norms

`torch.optim.AdamW` and `optax.adamw` have the same rule and epsilon. Keras adds its epsilon to the uncorrected root.
"""

import abc
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from pipelines.train import models
from pipelines.train.config import Schedule
from pipelines.train.metrics import WEIGHT
from pipelines.train.models import BuiltModel
from pipelines.train.setup import TrainingSetup
from pipelines.train.tasks.kinds import Batch

# Names of biases and of norms' factors and offsets in Keras and KerasHub.
_UNDECAYED = re.compile(r"bias|\A(beta|gamma|scale)\Z")


class Learner(abc.ABC):
    """A model in training, with its task and optimizer. Each backend has a subclass.

    `shares`: number of parts of a global batch. Their losses are added.
    """

    flops = 0.0  # of one device, 0 if not counted

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
            decayed=tuple(map(is_decayed, self.model.trainable_variables)),
            clip_norm=config.clip_norm,
            schedule=config.schedule,
        )
        self._shares = shares
        self._accumulate = config.accumulate
        variables = self.model.non_trainable_variables
        self._own = len(variables)
        self._seeds = [at for at, variable in enumerate(variables) if variable.name == "seed_generator_state"]
        # State that outlives a call, such as running means.
        self._kept = [
            at for at, variable in enumerate(variables) if at not in self._seeds and "float" in variable.dtype
        ]

    @property
    @abc.abstractmethod
    def step(self) -> int:
        """Number of steps taken, in earlier runs too."""

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.learning_rate(self.step))

    @abc.abstractmethod
    def differentiated(self, weights: list[Any], state: list[Any], batch: Batch, total: Any) -> tuple[Any, Any, Any]:
        """Return the loss, its gradients for `weights`, and the new state. Arguments: as for `loss`."""

    @abc.abstractmethod
    def fold_in(self, seed: Any, number: Any) -> Any:
        """Derive a new seed from a seed and a number."""

    @abc.abstractmethod
    def cut(self, values: Any) -> Any:
        """Cut an array [B, ...] into N = `accumulate` equal parts: [N, B / N, ...]."""

    def gradients(
        self, weights: list[Any], state: list[Any], batch: Batch, total: Any, seed: Any
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return the loss, its gradients, and the state that outlives the step, for one part of the global batch.

        `seed`: for dropout. Other arguments: as for `loss`.
        """
        state = self._seeded(state, lambda index: self.fold_in(seed, index))
        if self._accumulate == 1:
            loss, gradients, new = self.differentiated(weights, state, batch, total)
            return loss, gradients, [new[index] for index in self._kept]
        parts = keras.tree.map_structure(self.cut, batch)

        def add(number: Any, carried: Any) -> Any:
            loss, gradients, kept = carried
            seeded = self._seeded(state, lambda index: self.fold_in(state[index], number))
            for index, value in zip(self._kept, kept, strict=True):
                seeded[index] = value
            part = keras.tree.map_structure(lambda values: values[number], parts)
            more, changes, new = self.differentiated(weights, seeded, part, total)
            summed = [former + change for former, change in zip(gradients, changes, strict=True)]
            return loss + more, summed, [new[index] for index in self._kept]

        first = (ops.zeros([]), list(map(ops.zeros_like, weights)), [state[index] for index in self._kept])
        return ops.fori_loop(0, self._accumulate, add, first)

    def _seeded(self, state: list[Any], seed_of: Any) -> list[Any]:
        seeded = list(state)
        for index in self._seeds:
            seeded[index] = ops.cast(seed_of(index), state[index].dtype)
        return seeded

    def loss(self, weights: list[Any], state: list[Any], batch: Batch, total: Any) -> tuple[Any, list[Any]]:
        """Return what `batch`, a part of the global batch, contributes to the loss, and the new state.

        `weights`, `state`: values of the model's trainable and other variables. `total`: sum of the weights of all
        labels in the global batch.
        """
        _, labels, example_weights = batch
        example_weights = self.task.weights(labels, example_weights)
        logits, new_state, penalties = self._called(weights, state, batch, training=True)
        losses = self.task.losses(logits, labels, smoothing=True)
        loss = ops.divide_no_nan(ops.sum(losses * example_weights), total)
        # Each part of a global batch adds its share of the model's regularization.
        return loss + sum(ops.cast(penalty, "float32") for penalty in penalties) / self._shares, new_state

    def sums(self, weights: list[Any], state: list[Any], batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two dicts for the task's metrics: sums over a batch, and values per row. Arguments: see `loss`."""
        inputs, labels, example_weights = batch
        logits, _, _ = self._called(weights, state, batch, training=False)
        example_weights = self.task.weights(labels, example_weights)
        rows = self.task.rows(logits, labels, inputs)
        return self.task.sums(logits, labels, example_weights), {**rows, WEIGHT: example_weights} if rows else {}

    def _called(
        self, weights: list[Any], state: list[Any], batch: Batch, *, training: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        features = models.taken(self.model, self.task.features(batch[0]))
        own, reference = state[: self._own], state[self._own :]
        logits, new, penalties = self.model.stateless_call(
            weights, own, features, training=training, return_losses=True
        )
        aligned = self.task.aligned(logits, batch, taken=features)
        if reference:
            logits = self.model.stateless_call(reference, own, features, training=False)[0]
            aligned = aligned - self.task.aligned(logits, batch, taken=features)
        return aligned, [*new, *reference], penalties


def answering(model: keras.Model, outputs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pure function from (weights, state, features) to `outputs(call, features)`.

    `call` maps features to the model's logits, with these values of its trainable and other variables.
    """

    def pure(weights: Any, state: Any, features: Mapping[str, Any]) -> Any:
        def call(features: Mapping[str, Any]) -> Any:
            return model.stateless_call(weights, state, models.taken(model, features), training=False)[0]

        return outputs(call, features)

    return pure


def is_decayed(variable: Any) -> bool:
    return len(variable.shape) > 1 and not _UNDECAYED.search(variable.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW:
    """The AdamW optimizer. The caller keeps its state.

    `rate`: the learning rate after the warm-up. `decayed`: for each weight array, whether weight `decay` applies.
    """

    rate: float
    warmup: int
    steps: int
    decay: float
    decayed: tuple[bool, ...]
    clip_norm: float
    schedule: Schedule = "cosine"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    def learning_rate(self, step: Any) -> Any:
        """Return a step's learning rate: linear warm-up to `rate`, then constant, or linear or cosine decay to 0."""
        done = ops.cast(step, "float32")
        rising = (done + 1.0) / (self.warmup + 1.0)
        share = ops.clip((done - self.warmup) / max(1, self.steps - self.warmup), 0.0, 1.0)
        if self.schedule == "cosine":
            falling = 0.5 * (1.0 + ops.cos(math.pi * share))
        else:
            falling = 1.0 - share if self.schedule == "linear" else ops.ones_like(share)
        return self.rate * ops.where(done < self.warmup, rising, falling)

    def update(
        self, step: Any, weights: Sequence[Any], gradients: Sequence[Any], means: Sequence[Any], squares: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the new weights, means of gradients, and means of squared gradients.

        `step`: the number of earlier steps. `means`, `squares`: the results of the previous step, 0 at the start.
        """
        norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
        scale = self.clip_norm / ops.maximum(norm, self.clip_norm)
        rate, time = self.learning_rate(step), ops.cast(step, "float32") + 1.0
        # 1 - 0.999**t would have only 4 correct digits in float32.
        first, second = (-ops.expm1(time * math.log(beta)) for beta in (self.beta_1, self.beta_2))
        updated = []
        for weight, gradient, mean, square, decays in zip(
            weights, gradients, means, squares, self.decayed, strict=True
        ):
            gradient = gradient * scale
            new_mean = self.beta_1 * mean + (1.0 - self.beta_1) * gradient
            new_square = self.beta_2 * square + (1.0 - self.beta_2) * ops.square(gradient)
            kept = weight * (1.0 - rate * self.decay) if decays else weight
            change = new_mean / first / (ops.sqrt(new_square / second) + self.epsilon)
            updated.append((kept - rate * change, new_mean, new_square))
        new_weights, new_means, new_squares = zip(*updated, strict=True)
        return list(new_weights), list(new_means), list(new_squares)
