"""Objectives whose labels stand in the dataset: of a whole row, of each token, or where an answer is.

a row, L = 8          [CLS] An na  lives in  Rome [SEP] [PAD]

classification        labels  1                            weights  1
token_classification  labels  0 5  0    0   0    7    0 0  weights  0 1 0 1 1 1 0 0    "An" stands for "Anna"
span_answers          labels  {start_positions: 5, end_positions: 5}    weights  1
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.base import (
    BoundObjective,
    Features,
    Objective,
    Result,
    TokenFeatures,
    required,
    row_weights,
    token_weights,
)
from tfrecord_io.schema import UNLABELLED

__all__ = ["classification", "span_answers", "token_classification"]


def classification() -> Objective:
    """Predict the label: labels int32 [B], or float32 [B] for regression; weights float32 [B].

    A class id of -1 means that a row has no label: its weight is 0, and its label 0, which every loss takes. Integers
    without label names stay as they are. Where rows have several classes each, labels are int32 [B, C], 1 for the
    classes of the row and 0 for others, and the loss to take is a sigmoid cross-entropy of logits [B, C].
    """
    return _Classification()


def token_classification() -> Objective:
    """Predict the class of each token that has one (names, parts of speech): labels int32 [B, L], weights
    float32 [B, L], 0 on padding, special tokens and all others without a label of their own (BERT, arXiv:1810.04805,
    section 5.3: the first token of a word has the word's label).
    """
    return _TokenClassification()


def span_answers() -> Objective:
    """Predict the first and the last token of an answer (BERT, arXiv:1810.04805, section 4.2).

    Labels are a dict of int32 [B], under the names of the features of roles start_position and end_position
    (`start_positions` and `end_positions` where this library made the dataset), weights float32 [B] for both. Keras
    takes that for a model of two outputs, logits [B, L] each: a dict with these keys, or a list of outputs whose layers
    have these names. A row without the answer has 0, the position of the first token, twice (section 4.3).
    """
    return _SpanAnswers()


@dataclasses.dataclass(frozen=True)
class _Classification:
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens = TokenFeatures.of(manifest)
        name = required(manifest, "label", objective="classification", remedy="build the dataset with --label-column")
        has_classes = manifest.label_names is not None and not manifest.multi_hot_size
        apply = functools.partial(_label, tokens=tokens, name=name, has_classes=has_classes)
        return BoundObjective(manifest.schema, tokens, apply)


def _label(features: Features, ops: Any, *, tokens: TokenFeatures, name: str, has_classes: bool) -> Result:
    labels, weights_B = features[name], row_weights(features, features[name], ops)
    if has_classes:
        unlabelled_B = labels == UNLABELLED
        labels, weights_B = ops.where(unlabelled_B, 0, labels), ops.where(unlabelled_B, 0.0, weights_B)
    return tokens.select(features), labels, weights_B


@dataclasses.dataclass(frozen=True)
class _TokenClassification:
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens = TokenFeatures.of(manifest)
        explained = {"objective": "token_classification", "remedy": "build the dataset with --layout tokens"}
        labels = required(manifest, "token_labels", **explained)
        mask = required(manifest, "token_label_mask", **explained)
        apply = functools.partial(_token_labels, tokens=tokens, labels=labels, mask=mask)
        return BoundObjective(manifest.schema, tokens, apply)


def _token_labels(features: Features, ops: Any, *, tokens: TokenFeatures, labels: str, mask: str) -> Result:
    return tokens.select(features), features[labels], token_weights(features, features[mask], ops)


@dataclasses.dataclass(frozen=True)
class _SpanAnswers:
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens = TokenFeatures.of(manifest)
        explained = {"objective": "span_answers", "remedy": "build the dataset with --layout qa"}
        start = required(manifest, "start_position", **explained)
        end = required(manifest, "end_position", **explained)
        return BoundObjective(manifest.schema, tokens, functools.partial(_answer, tokens=tokens, start=start, end=end))


def _answer(features: Features, ops: Any, *, tokens: TokenFeatures, start: str, end: str) -> Result:
    labels = {start: features[start], end: features[end]}
    return tokens.select(features), labels, row_weights(features, features[start], ops)
