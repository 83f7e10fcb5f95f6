"""Tasks by kind of label: classes of rows, tokens or the vocabulary; numbers; several classes; answer spans.

In a row of the layout `qa`, an answer lies in the text, and the first position means "no answer". Logits of all other
positions are masked, in the loss and in predictions.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import tensorflow as tf
from keras import ops

from pipelines.train import metrics
from pipelines.train.config import Task, TrainConfig
from pipelines.train.metrics import Evaluated
from pipelines.train.predict.predictors import Predictor
from tfrecord_io import objectives
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import MASKED_POSITIONS, Objective
from tfrecord_io.objectives.base import Apply, TokenFeatures, required
from tfrecord_io.schema import Role, Side

BackboneKind = Literal["any", "encoder", "decoder", "encoder-decoder"]
# Inputs by name, labels, and weights.
Batch = tuple[Mapping[str, Any], Any, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskKind:
    """Properties of a task, for any dataset.

    objective: makes the reader's objective (inputs and labels) from the options.
    bound, settings: subclass of `BoundTask`, and a function from the options to its additional fields.
    predictor: class that predicts rows; None if the task does not.
    head: whether logits are for rows, tokens, or the vocabulary (at each token, or only at masked positions).
    backbone: kind of backbone that the task needs.
    side: part of a row that the task reads, such as the input. labels: role of the feature with the labels.
    num_outputs: None if labels or vocabulary determine it.
    auto_class, hub_task: class AutoModelFor… of transformers, and the Hub's name for the task.
    hub_head: the head's layer in a checkpoint of transformers.
    reference: whether the loss needs a frozen reference model.
    """

    objective: Callable[[TrainConfig], Objective]
    bound: type["BoundTask"]
    settings: Callable[[TrainConfig], Mapping[str, Any]] = lambda _: {}
    predictor: type[Predictor] | None
    head: Literal["rows", "tokens", "vocabulary", "masked"]
    backbone: BackboneKind = "any"
    side: Side = "input"
    labels: Role | None = None
    num_outputs: int | None = None
    auto_class: str = ""
    hub_task: str = ""
    hub_head: str = ""
    reference: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundTask:
    """A task on a certain dataset. `num_outputs`: number of classes, 1 for a number, or the vocabulary size."""

    name: Task
    kind: TaskKind
    num_outputs: int
    label_smoothing: float
    objective: Objective
    regression: ClassVar[bool] = False
    # Whether label -1 means that a row has no label.
    may_lack_labels: ClassVar[bool] = True

    @property
    def of_vocabulary(self) -> bool:
        return self.kind.head in ("vocabulary", "masked")

    @property
    def metric_names(self) -> tuple[str, ...]:
        if self.of_vocabulary:
            return ("loss", "accuracy", "perplexity")
        if self.kind.head == "tokens":
            return ("loss", "accuracy", "macro_f1")
        return ("loss", "accuracy", *(["f1"] if self.num_outputs == 2 else []), "macro_f1", "matthews")

    def tokens(self, manifest: Manifest) -> TokenFeatures:
        """Return the names of the features with the model's tokens."""
        return TokenFeatures.of(manifest)

    def features(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the objective's inputs to the model's features."""
        return inputs

    def aligned(self, logits: Any, batch: Batch, *, taken: Mapping[str, Any]) -> Any:
        """Select the logits that have labels. `taken`: the features, by name, that the model took."""
        inputs = batch[0]
        if MASKED_POSITIONS in inputs.keys() - taken.keys():
            return ops.take_along_axis(logits, inputs[MASKED_POSITIONS][..., None], axis=1)
        return logits

    def weights(self, labels: Any, weights: Any) -> Any:
        """Return a batch's weights, with 0 for rows without a label."""
        return ops.where(labels < 0, 0.0, weights) if self.kind.head == "rows" and self.may_lack_labels else weights

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        """Return the unweighted losses, float32, in the shape of the weights. `smoothing`: apply label smoothing."""
        logits = ops.cast(logits, "float32")  # bfloat16 has too few bits for a softmax
        if self.kind.head == "rows":
            labels = ops.maximum(labels, 0)  # the loss of label -1 must still be finite
        exact = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        if not (smoothing and self.label_smoothing):
            return exact
        # This is (1 - s) exact + s (logsumexp - mean), because exact = logsumexp - target.
        target = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return exact + self.label_smoothing * (target - ops.mean(logits, axis=-1))

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        """Return a batch's sums for the metrics, float32, by name. The caller adds them over replicas and steps."""
        sums = loss_sums(self.losses(logits, labels, smoothing=False), weights)
        predicted = ops.argmax(logits, axis=-1)
        if self.of_vocabulary:
            return {**sums, "hits": ops.sum(ops.where(predicted == labels, weights, 0.0))}
        counts = metrics.count(predicted, labels, weights, num_classes=self.num_outputs)
        return {**sums, "counts": counts}

    def rows(self, logits: Any, labels: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of each row, [B, ...], by name, for metrics that need more than sums; {} if none does."""
        del logits, labels, inputs
        return {}

    def metrics(self, evaluated: Evaluated) -> dict[str, float]:
        """Return the metrics of an evaluation, by the names in `metric_names`."""
        loss = evaluated.mean("loss")
        if self.of_vocabulary:
            return {"loss": loss, "accuracy": evaluated.mean("hits"), "perplexity": math.exp(min(loss, 700.0))}
        counts = evaluated.sums["counts"]
        return {"loss": loss, **{name: getattr(metrics, name)(counts) for name in self.metric_names[1:]}}


def weighted_sum(values: Any, weights: Any) -> Any:
    """Return the sum of values times weights. Values with weight 0 are ignored, even NaN."""
    return ops.sum(ops.where(weights == 0, 0.0, values * weights))


def loss_sums(losses: Any, weights: Any) -> dict[str, Any]:
    """Return `loss`, the weighted sum of the losses, and `weight`, the sum of the weights, as scalars."""
    return {"loss": weighted_sum(losses, weights), "weight": ops.sum(weights)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberTask(BoundTask):
    """Regression: logits [B, 1], labels float32 [B]. The loss is the squared error."""

    regression = True
    may_lack_labels = False
    metric_names = ("loss", "mae", "pearson", "spearman")

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        return loss_sums(self.losses(logits, labels, smoothing=False), weights)

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        del smoothing  # label smoothing needs classes
        return ops.square(ops.cast(logits[..., 0], "float32") - labels)

    def rows(self, logits: Any, labels: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        del inputs
        return {"predicted": ops.cast(logits[..., 0], "float32"), "label": labels}

    def metrics(self, evaluated: Evaluated) -> dict[str, float]:
        pair = [evaluated.rows[name].astype(np.float64) for name in ("predicted", "label")]
        values = {name: getattr(metrics, name)(*pair) for name in self.metric_names[1:]}
        return {"loss": evaluated.mean("loss"), **values}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralClassesTask(BoundTask):
    """Multi-label classification: logits [B, C], labels int32 [B, C] of 0 and 1. A positive logit predicts its class.

    A row's loss is the mean sigmoid cross-entropy of its classes.
    """

    may_lack_labels = False  # a row may have no class
    metric_names = ("loss", "micro_f1", "macro_f1")

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        targets = ops.cast(labels, "float32")
        if smoothing:
            targets += self.label_smoothing * (0.5 - targets)
        losses = ops.binary_crossentropy(targets, ops.cast(logits, "float32"), from_logits=True)
        return ops.mean(losses, axis=-1)

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        sums = loss_sums(self.losses(logits, labels, smoothing=False), weights)
        predicted, actual = ops.cast(logits > 0, "float32"), ops.cast(labels, "float32")
        counts = [ops.matmul(weights, classes) for classes in (predicted * actual, predicted, actual)]
        return {**sums, "counts": ops.stack(counts)}

    def metrics(self, evaluated: Evaluated) -> dict[str, float]:
        counts = evaluated.sums["counts"]
        f1s = [metrics.f1(counts, positive=label) for label in range(self.num_outputs)]
        return {"loss": evaluated.mean("loss"), "micro_f1": metrics.micro_f1(counts), "macro_f1": float(np.mean(f1s))}


# Features that locate an answer in the text. As inputs they are called span/ROLE.
_ROLES: tuple[Role, ...] = ("char_starts", "char_ends", "source_row")
_POSITIONS: tuple[Role, ...] = ("start_position", "end_position")
_PREFIX = "span/"
_MASKED = -1e9  # finite, because infinity times weight 0 is NaN


def answers(manifest: Manifest, tokens: TokenFeatures) -> Apply:
    """Bind the objective `span_answers` with labels [B, 2] to a dataset. Features that locate answers become inputs."""
    del tokens
    inner = objectives.span_answers().bind(manifest)
    explained = {"objective": "the task span", "remedy": "build the dataset with --layout qa"}
    names = required(manifest, *_ROLES, **explained)
    read = {f"{_PREFIX}{role}": name for role, name in zip(_ROLES, names, strict=True)}
    first, last = required(manifest, *_POSITIONS, **explained)

    def apply(features: Mapping[str, tf.Tensor], ops: Any) -> Any:
        inputs, labels, weights = inner.apply(features, ops)
        more = {role: features[name] for role, name in read.items()}
        return {**inputs, **more}, tf.stack([labels[first], labels[last]], axis=1), weights

    return apply


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanTask(BoundTask):
    """Answer spans: logits [B, L, 2] and labels int32 [B, 2] for the first and last token; 0 without an answer."""

    metric_names = ("loss", "exact_match", "token_f1")

    def aligned(self, logits: Any, batch: Batch, *, taken: Mapping[str, Any]) -> Any:
        del taken
        text_BL = _text(batch[0])
        first_L = ops.arange(text_BL.shape[1]) == 0
        return ops.where(ops.logical_or(text_BL, first_L)[..., None], ops.cast(logits, "float32"), _MASKED)

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        del smoothing  # most positions are masked
        losses = ops.sparse_categorical_crossentropy(labels, ops.transpose(logits, [0, 2, 1]), from_logits=True)
        return ops.mean(losses, axis=1)

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        return loss_sums(self.losses(logits, labels, smoothing=False), weights)

    def rows(self, logits: Any, labels: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        read: dict[str, Any] = {role: inputs[f"{_PREFIX}{role}"] for role in _ROLES}
        return {**metrics.best_spans(logits, _text(inputs)), **read, "label": labels}

    def metrics(self, evaluated: Evaluated) -> dict[str, float]:
        exact, overlap = metrics.exact_match_and_f1(evaluated.rows)
        return {"loss": evaluated.mean("loss"), "exact_match": exact, "token_f1": overlap}


def _text(inputs: Mapping[str, Any]) -> Any:
    return inputs[f"{_PREFIX}char_ends"] > inputs[f"{_PREFIX}char_starts"]
