"""A task whose labels are numbers, one for each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from pipelines.train.metrics import agreement
from pipelines.train.metrics.evaluation import Evaluated
from pipelines.train.tasks.base import BoundTask, weighted_sum

__all__ = ["NumberTask"]


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
            "mae": agreement.mae(*pair),
            "pearson": agreement.pearson(*pair),
            "spearman": agreement.spearman(*pair),
        }
