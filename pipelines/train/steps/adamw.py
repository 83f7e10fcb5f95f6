"""AdamW (arXiv:1711.05101, algorithm 2) with warm-up, a schedule and clipping, as a function of values.

Keras' own optimizer follows another rule on TensorFlow (Keras 3.15.1). An embedding's gradient lists a row for each
token; Keras squares these rows one by one, without adding those of one id first: of ids [0, 0, 0, 1], whose gradients
are 3 and 1, the second moment of id 0 gets 3 x 1^2 where 3^2 is true. And each replica clips its own gradients before
they are summed, so what is learned depends on the number of replicas. Here gradients are dense and summed first, then
clipped. docs/how-to/read.md has the lines for a `fit` of your own; a test holds this rule against Keras'.

    t = step + 1    g: gradients, summed over the replicas, scaled so that their norm together is at most `clip_norm`
    m <- b1 m + (1 - b1) g            v <- b2 v + (1 - b2) g^2
    w <- w - rate (decay w + sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon))      no decay for what is no matrix
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from pipelines.train.config import Schedule

__all__ = ["AdamW"]


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
