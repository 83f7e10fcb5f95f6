"""Predicting the next token, on plain rows, on rows of several documents, and on conversations.

a packed row, L = 8       a  b  c  d  e  [PAD]…      documents "a b c" and "d e"
segment_ids               1  1  1  2  2   0 0 0
positions                 0  1  2  0  1   0 0 0      restart, as if each document stood alone
labels                    b  c  d  e [PAD] …
weights                   1  1  0  1  0   0 0 0      "c" does not predict "d": that is another document

a conversation            u  u  a  a  [PAD]          what the user says is read, what the assistant says is learned
loss_mask                 0  0  1  1   0
weights                   0  1  1  0   0             the loss_mask of the token that is predicted
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.base import BoundObjective, Features, Objective, Result, token_weights
from tfrecord_io.objectives.tokens import TokenFeatures

__all__ = ["causal_lm"]


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
