"""The task `span`: where in a text the answer to a question is, on rows of the layout `qa`.

    a row          [CLS] Who ? [SEP] Anna lives in Rome [SEP] [PAD]
    may be chosen    x               x    x     x  x                   text, and the first position for no answer

The logits of all other positions are masked, in the loss as in a prediction: neither the question nor padding can be
an answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from keras import ops

from pipelines.train.metrics import answers
from pipelines.train.metrics.evaluation import Evaluated
from pipelines.train.tasks.base import BoundTask, weighted_sum
from tfrecord_io import objectives
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import BoundObjective
from tfrecord_io.schema import Role

__all__ = ["SpanObjective", "SpanTask"]

# The features that an answer is read by, under names of their own among the inputs.
_ROLES: tuple[Role, ...] = ("char_starts", "char_ends", "source_row")
_PREFIX = "span/"
_MASKED = -1e9  # as low as a softmax needs; an infinity times weight 0 would be no number


@dataclasses.dataclass(frozen=True)
class SpanObjective:
    """`span_answers` with one label [B, 2], and what answers are read by among the inputs."""

    def bind(self, manifest: Manifest) -> BoundObjective:
        inner = objectives.span_answers().bind(manifest)
        names = {role: manifest.schema.with_role(role) for role in _ROLES}
        positions = [manifest.schema.with_role("start_position"), manifest.schema.with_role("end_position")]
        if None in names.values():
            raise ReaderError(
                f"dataset {manifest.name!r}: no {', '.join(role for role, each in names.items() if each is None)} "
                f"among the features {list(manifest.schema.names)}, expected those of the layout qa",
                remedy="build the dataset with --layout qa",
            )

        def apply(features: Mapping[str, tf.Tensor], ops: Any) -> Any:
            inputs, labels, weights = inner.apply(features, ops)
            more = {f"{_PREFIX}{role}": features[each.name] for role, each in names.items() if each is not None}
            label = tf.stack([labels[each.name] for each in positions if each is not None], axis=1)
            return {**inputs, **more}, label, weights

        return BoundObjective(manifest.schema, inner.tokens, apply)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanTask(BoundTask):
    """Logits [B, L, 2], of the first and the last token; labels int32 [B, 2], 0 twice where there is no answer."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "exact_match", "token_f1")

    def aligned(self, logits: Any, inputs: Mapping[str, Any], *, taken: Mapping[str, Any]) -> Any:
        del taken
        text_BL = _text(inputs)
        first_L = ops.arange(text_BL.shape[1]) == 0
        return ops.where(ops.logical_or(text_BL, first_L)[..., None], ops.cast(logits, "float32"), _MASKED)

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        del smoothing  # most of the positions that would get a share are masked
        each = ops.sparse_categorical_crossentropy(labels, ops.transpose(logits, [0, 2, 1]), from_logits=True)
        return ops.mean(each, axis=1)

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        losses = self.losses(logits, labels, smoothing=False)
        return {"loss": weighted_sum(losses, weights), "weight": ops.sum(weights)}

    def rows(self, logits: Any, labels: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        read: dict[str, Any] = {role: inputs[f"{_PREFIX}{role}"] for role in _ROLES}
        return {**answers.best_spans(logits, _text(inputs)), **read, "label": labels}

    def metrics(self, found: Evaluated) -> dict[str, float]:
        exact, overlap = answers.exact_match_and_f1(found.rows)
        return {"loss": found.mean("loss"), "exact_match": exact, "token_f1": overlap}


def _text(inputs: Mapping[str, Any]) -> Any:
    """bool [B, L]: tokens of the text."""
    return inputs[f"{_PREFIX}char_ends"] > inputs[f"{_PREFIX}char_starts"]
