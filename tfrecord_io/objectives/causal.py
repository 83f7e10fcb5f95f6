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

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.base import BoundObjective, Features, Objective, Result, TokenFeatures, token_weights

__all__ = ["causal_lm", "segment_attention_mask"]


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
