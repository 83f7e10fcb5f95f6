"""Tasks whose labels are a number for each row, or several classes of it, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from pipelines.train.metrics import scores
from pipelines.train.metrics.evaluation import Evaluated
from pipelines.train.tasks.base import BoundTask, weighted_sum

__all__ = ["NumberTask", "SeveralClassesTask"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberTask(BoundTask):
    """Regression: logits [B, 1], labels float32 [B], the loss is the squared error."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "mae", "pearson", "spearman")

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        del smoothing  # numbers have no other classes to share with
        return ops.square(ops.cast(logits[..., 0], "float32") - labels)

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        losses = self.losses(logits, labels, smoothing=False)
        return {"loss": weighted_sum(losses, weights), "weight": ops.sum(weights)}

    def rows(self, logits: Any, labels: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        del inputs
        return {"predicted": ops.cast(logits[..., 0], "float32"), "label": labels}

    def metrics(self, found: Evaluated) -> dict[str, float]:
        pair = [found.rows[name].astype(np.float64) for name in ("predicted", "label")]
        return {
            "loss": found.mean("loss"),
            "mae": scores.mae(*pair),
            "pearson": scores.pearson(*pair),
            "spearman": scores.spearman(*pair),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralClassesTask(BoundTask):
    """Multi-label classification: logits [B, C], labels int32 [B, C] of 0 and 1. A class with a positive logit is
    predicted. The loss of a row is the mean of the sigmoid cross-entropies of its classes.
    """

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "micro_f1", "macro_f1")

    def weights(self, labels: Any, weights: Any) -> Any:
        del labels  # a row without a class is one to learn from
        return weights

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        targets = ops.cast(labels, "float32")
        if smoothing:
            targets += self.label_smoothing * (0.5 - targets)
        each = ops.binary_crossentropy(targets, ops.cast(logits, "float32"), from_logits=True)
        return ops.mean(each, axis=-1)

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        losses = self.losses(logits, labels, smoothing=False)
        predicted, actual = ops.cast(logits > 0, "float32"), ops.cast(labels, "float32")
        counts = [ops.matmul(weights, each) for each in (predicted * actual, predicted, actual)]
        return {"loss": weighted_sum(losses, weights), "weight": ops.sum(weights), "counts": ops.stack(counts)}

    def metrics(self, found: Evaluated) -> dict[str, float]:
        counts = found.sums["counts"]
        every = [scores.f1(counts, positive=each) for each in range(self.num_outputs)]
        return {
            "loss": found.mean("loss"),
            "micro_f1": scores.micro_f1(counts),
            "macro_f1": float(np.mean(every)),
        }
