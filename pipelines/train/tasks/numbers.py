"""A task whose labels are numbers, one for each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from pipelines.train.metrics import agreement
from pipelines.train.metrics.evaluation import Evaluated
from pipelines.train.tasks.base import BoundTask

__all__ = ["NumberTask"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberTask(BoundTask):
    """Regression: logits [B, 1], labels float32 [B], the loss is the squared error."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "mae", "pearson", "spearman")

    @property
    def needs_rows(self) -> bool:
        return True

    @property
    def sum_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"loss": (), "weight": ()}

    def losses(self, logits: tf.Tensor, labels: tf.Tensor, *, smoothing: bool) -> tf.Tensor:
        del smoothing  # numbers have no other classes to share with
        return tf.square(tf.cast(logits[..., 0], tf.float32) - labels)

    def sums(self, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        losses = self.losses(logits, labels, smoothing=False)
        loss = tf.reduce_sum(tf.math.multiply_no_nan(losses, weights))
        return {"loss": loss, "weight": tf.reduce_sum(weights)}

    def rows(self, logits: tf.Tensor, labels: tf.Tensor, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        del inputs
        return {"predicted": tf.cast(logits[..., 0], tf.float32), "label": labels}

    def metrics(self, found: Evaluated) -> dict[str, float]:
        pair = [found.rows[name].astype(np.float64) for name in ("predicted", "label")]
        return {
            "loss": found.mean("loss"),
            "mae": agreement.mae(*pair),
            "pearson": agreement.pearson(*pair),
            "spearman": agreement.spearman(*pair),
        }
