"""Generating a target from a row, with an encoder and a decoder: targets that the dataset holds.

    L = 6, T = 5              input_ids              [s  o  u  r  </s> _]     attention_mask          [1 1 1 1 1 0]
    (_ is the pad token)      target_ids             [t  g  t </s> _]         target_mask             [1 1 1 1 0]

    inputs                    input_ids, attention_mask as they are
                              decoder_input_ids      [S  t  g  t </s>]        decoder_attention_mask  [1 1 1 1 1]
    labels                    target_ids             [t  g  t </s> _]         weights                 [1 1 1 1 0]

At each place the decoder has seen what comes before it, and is to say what stands there. S is the start token: the pad
token for T5 (arXiv:1910.10683), EOS for BART (arXiv:1910.13461). The decoder's mask is 1 on S and on tokens; the last
of them predicts nothing, so that it does no harm. Where targets are padded on the left, S stands before their first
token all the same.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, get_args

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.base import (
    BoundObjective,
    Features,
    Objective,
    Result,
    TokenFeatures,
    check_free,
    required,
    token_weights,
)

# The inputs that are no features of the dataset.
DECODER_INPUTS, DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"

StartToken = Literal["pad", "bos", "eos", "cls", "sep"]


def seq2seq(*, decoder_start_id: StartToken | int = "pad") -> Objective:
    """Generate the target: labels int32 [B, T] and weights float32 [B, T], 1 on tokens of the target.

    Args:
        decoder_start_id: what the decoder starts from: one of the tokenizer's own tokens by its kind ("pad" for T5,
            "eos" for BART, "cls" for models warm-started from BERT), or an id.

    Returns an objective whose inputs are those of the row, and `decoder_input_ids` and `decoder_attention_mask`
    int32 [B, T].

    Raises:
        ReaderError: from `bind`, if the dataset has no targets, the tokenizer no such token, or a feature one of these
            names.
    """
    return _Seq2Seq(decoder_start_id=decoder_start_id)


def decoder_features(target_ids_BT: Any, target_mask_BT: Any, *, start: int, ops: Any) -> dict[str, Any]:
    """Return the decoder's inputs, [B, T]: each place has the target's token before it, the first token has `start`."""
    before_BT, shifted_BT = ops.shifted(target_mask_BT, 0), ops.shifted(target_ids_BT, 0)
    first_BT = (target_mask_BT > before_BT) | (ops.arange(0, target_ids_BT.shape[1]) == 0)
    return {
        DECODER_INPUTS: ops.where(first_BT, start, shifted_BT),
        DECODER_MASK: ops.maximum(target_mask_BT, before_BT),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seq2Seq:
    decoder_start_id: StartToken | int

    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens = TokenFeatures.of(manifest)
        explained = {"objective": "seq2seq", "remedy": "build the dataset with --layout seq2seq"}
        target = required(manifest, "target_ids", **explained)
        mask = required(manifest, "target_mask", **explained)
        check_free(manifest, DECODER_INPUTS, DECODER_MASK, objective="seq2seq")
        start = start_id(manifest, self.decoder_start_id)
        apply = functools.partial(_target, tokens=tokens, target=target, mask=mask, start=start)
        return BoundObjective(manifest.schema, tokens, apply)


def _target(features: Features, ops: Any, *, tokens: TokenFeatures, target: str, mask: str, start: int) -> Result:
    labels_BT, mask_BT = features[target], features[mask]
    inputs = {**tokens.select(features), **decoder_features(labels_BT, mask_BT, start=start, ops=ops)}
    return inputs, labels_BT, token_weights(features, mask_BT, ops)


def start_id(manifest: Manifest, token: StartToken | int) -> int:
    """The id that a decoder starts from. Raises: ReaderError if the vocabulary has no such token."""
    facts = manifest.tokenizer
    if not isinstance(token, str):
        if isinstance(token, bool) or not 0 <= token < facts.vocab_size:
            last = facts.vocab_size - 1
            raise ReaderError(f"decoder_start_id is {token}, expected an id of the vocabulary, 0 to {last}")
        return token
    if token not in get_args(StartToken):
        raise ReaderError(f"decoder_start_id is {token!r}, expected an id, or one of {list(get_args(StartToken))}")
    found: int | None = getattr(facts, f"{token}_id")
    if found is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: tokenizer {facts.name!r} has no {token.upper()} token to start the decoder "
            "from",
            remedy="give decoder_start_id as the model's configuration states it",
        )
    return found
