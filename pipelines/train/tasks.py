"""What a model is to learn, on the model's side: sizes of its output, loss and metrics. The data's side is objectives.

    task        logits           labels          loss                             metrics
    classify    [B, classes]     int32 [B]       cross-entropy                    accuracy
                [B, 1]           float32 [B]     squared error (float labels)     mae
    tokens      [B, L, classes]  int32 [B, L]    cross-entropy where weight > 0   accuracy
    mlm         [B, P, V]        int32 [B, P]    the same                         accuracy, perplexity
    clm         [B, L, V]        int32 [B, L]    the same                         accuracy, perplexity

Of mlm's L positions only the P that can be predicted have logits: the input `masked_positions` says which.
Everything is a sum over weighted values, never a mean: the mean is taken once, over the whole global batch or the
whole evaluation, so that neither replicas with fewer weights nor fill rows tilt it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import get_args

import tensorflow as tf

from pipelines.train.config import Task, TrainConfig
from tfrecord_io import objectives
from tfrecord_io.errors import ConfigError, ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import Objective
from tfrecord_io.schema import Role

__all__ = ["BoundTask", "bind"]


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

    def losses(self, logits: tf.Tensor, labels: tf.Tensor, *, smoothing: bool) -> tf.Tensor:
        """float32, of the labels' shape: one loss for each label, not weighted."""
        logits = tf.cast(logits, tf.float32)  # a softmax over a vocabulary needs more than bfloat16's 8 bits
        if self.regression:
            return tf.square(logits[..., 0] - labels)
        exact = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        if not (smoothing and self.label_smoothing):
            return exact
        # (1 - s) exact + s (logsumexp - mean), without another softmax over the vocabulary: exact = logsumexp - target.
        target = tf.gather(logits, labels, batch_dims=labels.shape.rank)
        return exact + self.label_smoothing * (target - tf.reduce_mean(logits, axis=-1))

    def hits(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """float32, of the labels' shape: 1 where the largest logit is right; for numbers the absolute error."""
        if self.regression:
            return tf.abs(tf.cast(logits[..., 0], tf.float32) - labels)
        return tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)

    def metrics(self, *, loss_sum: float, hit_sum: float, weight_sum: float) -> Mapping[str, float]:
        """Means over everything that was evaluated."""
        loss, hits = (value / weight_sum if weight_sum else math.nan for value in (loss_sum, hit_sum))
        found = {"loss": loss, "mae" if self.regression else "accuracy": hits}
        if self.name in ("mlm", "clm"):
            found["perplexity"] = math.exp(min(loss, 700.0))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kind:
    """What sets a task apart: its objective, and the role of the labels that it predicts; None for tokens of the
    vocabulary.
    """

    objective: Callable[[TrainConfig], Objective]
    labels: Role | None = None
    per_token: bool = True


# A new task is a line here, and its name in `config.Task`.
_KINDS: dict[Task, _Kind] = {
    "classify": _Kind(objective=lambda _: objectives.classification(), labels="label", per_token=False),
    "tokens": _Kind(objective=lambda _: objectives.token_classification(), labels="token_labels"),
    "mlm": _Kind(objective=lambda config: objectives.gathered_masked_lm(config.mask_probability)),
    "clm": _Kind(objective=lambda _: objectives.causal_lm()),
}


def bind(config: TrainConfig, manifest: Manifest) -> BoundTask:
    """The task on this dataset. Raises: ConfigError if the dataset does not allow it."""
    kind = _KINDS[config.task]
    objective = kind.objective(config)
    _require_fit(objective, config, manifest)
    regression, num_outputs = False, manifest.tokenizer.vocab_size
    if kind.labels is not None:
        regression, num_outputs = _label_kind(config, manifest, role=kind.labels)
    return BoundTask(
        name=config.task,
        num_outputs=num_outputs,
        per_token=kind.per_token,
        regression=regression,
        label_smoothing=config.label_smoothing,
        objective=objective,
    )


def _require_fit(objective: Objective, config: TrainConfig, manifest: Manifest) -> None:
    """Refuses at once what the reader would refuse after minutes, with the tasks that the dataset allows."""
    try:
        objective.bind(manifest)
    except ReaderError as error:
        fitting = [task for task in get_args(Task) if _fits(_KINDS[task].objective(config), manifest)]
        allowed = f": this dataset allows --task {', '.join(fitting)}" if fitting else ""
        raise ConfigError(f"--task {config.task}: {error.cause}", remedy=error.remedy + allowed) from error


def _fits(objective: Objective, manifest: Manifest) -> bool:
    try:
        objective.bind(manifest)
    except ReaderError:
        return False
    return True


def _label_kind(config: TrainConfig, manifest: Manifest, *, role: Role) -> tuple[bool, int]:
    label, names = manifest.schema.with_role(role), manifest.label_names
    if label is not None and label.dtype == "float32":
        return True, 1
    if names is None:
        if config.num_labels is None and label is not None:
            raise ConfigError(
                f"dataset {manifest.name!r}: its labels have no names, so how many there are is not known",
                remedy="give --num-labels N: labels are 0 to N - 1",
            )
        return False, config.num_labels or 1
    if config.num_labels not in (None, len(names)):
        raise ConfigError(
            f"--num-labels {config.num_labels}, but dataset {manifest.name!r} has {len(names)} labels: {list(names)}",
            remedy="leave out --num-labels",
        )
    return False, len(names)
