"""A task on a dataset whose labels are classes: of a row, of each token, or entries of the vocabulary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import tensorflow as tf

from pipelines.train.config import Task
from pipelines.train.metrics import class_counts
from pipelines.train.metrics.evaluation import Evaluated
from tfrecord_io.objectives import MASKED_POSITIONS, Objective

__all__ = ["BoundTask"]

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
        """Whether entries of the vocabulary are predicted, so that there are as many outputs."""
        return self.name in _OF_VOCABULARY

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What `metrics` gives."""
        if self.of_vocabulary:
            return ("loss", "accuracy", "perplexity")
        if self.name == "tokens":
            return ("loss", "accuracy", "macro_f1")
        return ("loss", "accuracy", *(["f1"] if self.num_outputs == 2 else []), "macro_f1", "matthews")

    @property
    def needs_rows(self) -> bool:
        """Whether `metrics` needs something of each row, see `rows`."""
        return False

    @property
    def sum_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what `sums` gives."""
        more: tuple[str, tuple[int, ...]] = ("hits", ()) if self.of_vocabulary else ("counts", (3, self.num_outputs))
        return dict([("loss", ()), ("weight", ()), more])

    def aligned(
        self, logits: tf.Tensor, inputs: Mapping[str, tf.Tensor], *, taken: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        """Logits where there are labels. `taken`: the inputs that the model used; it may have computed more logits."""
        if MASKED_POSITIONS in inputs.keys() - taken.keys():
            return tf.gather(logits, inputs[MASKED_POSITIONS], batch_dims=1)
        return logits

    def weights(self, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """The weights, 0 where a row has no label: -1, as unlabelled test splits have it."""
        if self.name != "classify" or self.regression:
            return weights
        return tf.where(labels < 0, 0.0, weights)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor, *, smoothing: bool) -> tf.Tensor:
        """float32, of the shape of the weights: one loss for each label, not weighted."""
        logits = tf.cast(logits, tf.float32)  # a softmax over a vocabulary needs more than bfloat16's 8 bits
        if self.name == "classify":
            labels = tf.maximum(labels, 0)  # -1 has weight 0, see `weights`; its loss must be a number all the same
        exact = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        if not (smoothing and self.label_smoothing):
            return exact
        # (1 - s) exact + s (logsumexp - mean), without another softmax over the vocabulary: exact = logsumexp - target.
        target = tf.gather(logits, labels, batch_dims=labels.shape.rank)
        return exact + self.label_smoothing * (target - tf.reduce_mean(logits, axis=-1))

    def sums(self, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """What can be added over replicas and steps, float32."""
        losses = self.losses(logits, labels, smoothing=False)
        found = {"loss": _weighted(losses, weights), "weight": tf.reduce_sum(weights)}
        predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
        if self.of_vocabulary:
            hits = tf.cast(predicted == labels, tf.float32)
            return {**found, "hits": _weighted(hits, weights)}
        counts = class_counts.count(predicted, labels, weights, num_classes=self.num_outputs)
        return {**found, "counts": counts}

    def rows(self, logits: tf.Tensor, labels: tf.Tensor, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What is needed of each row, [B, ...], where sums are not enough."""
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
            "accuracy": class_counts.accuracy(counts),
            "macro_f1": class_counts.macro_f1(counts),
            "matthews": class_counts.matthews(counts),
        }
        if self.num_outputs == 2:
            every["f1"] = class_counts.f1(counts)
        return {name: every[name] for name in self.metric_names}


def _weighted(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    # A row that fills up a batch has no token, of which a model may make 0 / 0: its weight 0 must win.
    return tf.reduce_sum(tf.math.multiply_no_nan(values, weights))
