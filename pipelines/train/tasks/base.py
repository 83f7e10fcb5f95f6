"""A task on a dataset whose labels are classes: of a row, of each token, or entries of the vocabulary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from keras import ops

from pipelines.train.config import Task
from pipelines.train.metrics import scores
from pipelines.train.metrics.evaluation import Evaluated
from tfrecord_io.objectives import MASKED_POSITIONS, Objective

__all__ = ["BoundTask", "weighted_sum"]

_OF_VOCABULARY = ("mlm", "clm", "seq2seq")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundTask:
    """A task on a dataset. `num_outputs` is the last dimension of the logits: classes, 1 for a number, or V.

    per_token: there are logits for tokens, not one vector for the row.
    """

    name: Task
    num_outputs: int
    per_token: bool
    regression: bool
    label_smoothing: float
    objective: Objective

    @property
    def of_vocabulary(self) -> bool:
        """Return whether entries of the vocabulary are predicted, so that there are as many outputs."""
        return self.name in _OF_VOCABULARY

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return what `metrics` gives."""
        if self.of_vocabulary:
            return ("loss", "accuracy", "perplexity")
        if self.name == "tokens":
            return ("loss", "accuracy", "macro_f1")
        return ("loss", "accuracy", *(["f1"] if self.num_outputs == 2 else []), "macro_f1", "matthews")

    def aligned(self, logits: Any, inputs: Mapping[str, Any], *, taken: Mapping[str, Any]) -> Any:
        """Logits where there are labels. `taken`: the inputs that the model used; it may have computed more logits."""
        if MASKED_POSITIONS in inputs.keys() - taken.keys():
            return ops.take_along_axis(logits, inputs[MASKED_POSITIONS][..., None], axis=1)
        return logits

    def weights(self, labels: Any, weights: Any) -> Any:
        """The weights, 0 where a row has no label: -1, as unlabelled test splits have it."""
        if self.name != "classify" or self.regression:
            return weights
        return ops.where(labels < 0, 0.0, weights)

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        """float32, of the shape of the weights: one loss for each label, not weighted."""
        logits = ops.cast(logits, "float32")  # a softmax over a vocabulary needs more than bfloat16's 8 bits
        if self.name == "classify":
            labels = ops.maximum(labels, 0)  # -1 has weight 0, see `weights`; its loss must be a number all the same
        exact = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        if not (smoothing and self.label_smoothing):
            return exact
        # (1 - s) exact + s (logsumexp - mean), without another softmax over the vocabulary: exact = logsumexp - target.
        target = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return exact + self.label_smoothing * (target - ops.mean(logits, axis=-1))

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        """Return what can be added over replicas and steps, float32."""
        losses = self.losses(logits, labels, smoothing=False)
        found = {"loss": weighted_sum(losses, weights), "weight": ops.sum(weights)}
        predicted = ops.argmax(logits, axis=-1)
        if self.of_vocabulary:
            return {**found, "hits": ops.sum(ops.where(predicted == labels, weights, 0.0))}
        counts = scores.count(predicted, labels, weights, num_classes=self.num_outputs)
        return {**found, "counts": counts}

    def rows(self, logits: Any, labels: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is needed of each row, [B, ...], where sums are not enough."""
        del logits, labels, inputs
        return {}

    def metrics(self, found: Evaluated) -> dict[str, float]:
        """Numbers by `metric_names`, over everything that was evaluated."""
        loss = found.mean("loss")
        if self.of_vocabulary:
            return {"loss": loss, "accuracy": found.mean("hits"), "perplexity": math.exp(min(loss, 700.0))}
        counts = found.sums["counts"]
        every = {
            "loss": loss,
            "accuracy": scores.accuracy(counts),
            "macro_f1": scores.macro_f1(counts),
            "matthews": scores.matthews(counts),
        }
        if self.num_outputs == 2:
            every["f1"] = scores.f1(counts)
        return {name: every[name] for name in self.metric_names}


def weighted_sum(values: Any, weights: Any) -> Any:
    """The sum of values times weights; weight 0 wins over a value that is no number, as a model may make of a row that
    only fills up a batch.
    """
    return ops.sum(ops.where(weights == 0, 0.0, values * weights))
