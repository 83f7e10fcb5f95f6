"""A task whose rows have several classes each, or none."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from pipelines.train.metrics import class_counts
from pipelines.train.metrics.evaluation import Evaluated
from pipelines.train.tasks.base import BoundTask

__all__ = ["SeveralClassesTask"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralClassesTask(BoundTask):
    """Multi-label classification: logits [B, C], labels int32 [B, C] of 0 and 1. A class with a positive logit is
    predicted. The loss of a row is the mean of the sigmoid cross-entropies of its classes.
    """

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "micro_f1", "macro_f1")

    def weights(self, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        del labels  # a row without a class is one to learn from
        return weights

    def losses(self, logits: tf.Tensor, labels: tf.Tensor, *, smoothing: bool) -> tf.Tensor:
        targets = tf.cast(labels, tf.float32)
        if smoothing:
            targets += self.label_smoothing * (0.5 - targets)
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=tf.cast(logits, tf.float32))
        return tf.reduce_mean(each, axis=-1)

    def sums(self, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        losses = self.losses(logits, labels, smoothing=False)
        predicted, actual = tf.cast(logits > 0, tf.float32), tf.cast(labels, tf.float32)
        counts = [tf.linalg.matvec(each, weights, transpose_a=True) for each in (predicted * actual, predicted, actual)]
        loss = tf.reduce_sum(tf.math.multiply_no_nan(losses, weights))
        return {"loss": loss, "weight": tf.reduce_sum(weights), "counts": tf.stack(counts)}

    def metrics(self, found: Evaluated) -> dict[str, float]:
        counts = found.sums["counts"]
        every = [class_counts.f1(counts, positive=each) for each in range(self.num_outputs)]
        return {
            "loss": found.mean("loss"),
            "micro_f1": class_counts.micro_f1(counts),
            "macro_f1": float(np.mean(every)),
        }
