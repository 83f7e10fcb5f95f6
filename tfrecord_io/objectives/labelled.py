"""Objectives that leave nothing to chance: labels that stand in the dataset, and the next token.

a row, L = 8          [CLS] An na  lives in  Rome [SEP] [PAD]

classification        labels  1                            weights  1
token_classification  labels  0 5  0    0   0    7    0 0  weights  0 1 0 1 1 1 0 0    "An" stands for "Anna"
span_answers          labels  {start_positions: 5, end_positions: 5}    weights  1

causal_lm on a packed row     a  b  c  d  e  [PAD]…      documents "a b c" and "d e"
segment_ids                   1  1  1  2  2   0 0 0
positions                     0  1  2  0  1   0 0 0      restart, as if each document stood alone
labels                        b  c  d  e [PAD] …
weights                       1  1  0  1  0   0 0 0      "c" does not predict "d": that is another document

and on a conversation         u  u  a  a  [PAD]          what the user says is read, what the assistant says is learned
loss_mask                     0  0  1  1   0
weights                       0  1  1  0   0             the loss_mask of the token that is predicted
"""

import dataclasses
import functools
from typing import Any

import numpy as np

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


def causal_lm() -> Objective:
    """Predict the next token: labels [B, L] and weights float32 [B, L], 0 at the last position of each row.

    The weight is 0, too, where the next token is of another segment, or its loss_mask is 0, if the dataset has these.
    On packed rows a model needs `segment_attention_mask` as well, and `positions` instead of the places in the row.
    """
    return _CausalLM()


@dataclasses.dataclass(frozen=True)
class _CausalLM:
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, loss_mask = TokenFeatures.of(manifest), manifest.schema.with_role("loss_mask")
        name = None if loss_mask is None else loss_mask.name
        apply = functools.partial(_next_token, tokens=tokens, pad_id=manifest.tokenizer.pad_id, loss_mask=name)
        return BoundObjective(manifest.schema, tokens, apply)


def _next_token(features: Features, ops: Any, *, tokens: TokenFeatures, pad_id: int, loss_mask: str | None) -> Result:
    mask_BL = features[tokens.mask]
    # With padding on the left, the last pad would predict the first token: both ends of a step must be tokens.
    counts_BL = (mask_BL > 0) & (ops.shifted_left(mask_BL, 0) > 0)
    if tokens.segments is not None:
        segment_BL = features[tokens.segments]
        counts_BL &= segment_BL == ops.shifted_left(segment_BL, 0)
    if loss_mask is not None:
        counts_BL &= ops.shifted_left(features[loss_mask], 0) > 0
    labels_BL = ops.shifted_left(features[tokens.ids], pad_id)
    return tokens.select(features), labels_BL, token_weights(features, counts_BL, ops)


def segment_attention_mask(segment_ids_BL: Any, *, causal: bool) -> Any:
    """Return which tokens of packed rows attend to each other: those of the same segment, and with `causal` none that
    comes later.

        segment_ids  1 1 2 0      causal=True   1 0 0 0      row: the token that looks,
                                                1 1 0 0      column: the one that it sees;
                                                0 0 1 0      padding sees nothing and is seen by nothing
                                                0 0 0 0

    So a token of a packed row gets what it would get if its document stood alone (arXiv:2107.02027).
    Where all scores of a token are masked, as those of padding are, a softmax must not subtract infinities.

    Args:
        segment_ids_BL: integers [B, L] of TensorFlow, JAX or NumPy, 1, 2, ... on the tokens of each segment, 0 on
            padding.
        causal: whether a token sees only itself and those before it.

    Returns: bool [B, L, L], [row, the token that looks, the token that is seen].
    """
    seen_BLL = segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :]
    mask_BLL = seen_BLL & (segment_ids_BL > 0)[:, None, :]
    if not causal:
        return mask_BLL
    place_L = np.arange(segment_ids_BL.shape[1])
    return mask_BLL & (place_L[:, None] >= place_L)
