"""Objective for preference pairs: the next tokens of both answers to a prompt.

a row, L = 6           p  p  c  c  _  _        chosen_input_ids, with chosen_loss_mask     0 0 1 1 0 0
                       p  p  r  _  _  _        rejected_input_ids, with rejected_loss_mask 0 0 1 0 0 0

inputs                 chosen_token_ids, chosen_padding_mask, rejected_token_ids, rejected_padding_mask
labels  chosen         p  c  c  _  _  _        weights  0 1 1 0 0 0
        rejected       p  r  _  _  _  _        weights  0 1 0 0 0 0
"""

import functools
from collections.abc import Mapping
from typing import Any

from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import base, labelled
from tfrecord_io.schema import Side

SIDES: tuple[Side, ...] = ("chosen", "rejected")


def preference() -> base.Objective:
    """Compare two answers to a prompt (DPO, arXiv:2305.18290; reward models, arXiv:2203.02155).

    Inputs are `chosen_token_ids`, `chosen_padding_mask`, `rejected_token_ids` and `rejected_padding_mask`, int32
    [B, L]. Labels and weights are dicts of `chosen` and `rejected`, [B, L], shifted as in `causal_lm`: weights are 1
    where the next token belongs to the answer.

    Raises: ReaderError from `bind`, if the dataset has no pairs (`--layout preference`).
    """
    return base.Unbound(_preference, side="chosen")


def _preference(manifest: Manifest, tokens: base.TokenFeatures) -> base.Apply:
    del tokens
    return functools.partial(_both, sides={side: _next_token_of(manifest, side) for side in SIDES})


def _next_token_of(manifest: Manifest, side: Side) -> base.Apply:
    tokens, learned = base.TokenFeatures.of(manifest, side=side), manifest.schema.loss_mask_of(side)
    loss_mask = None if learned is None else learned.name
    return functools.partial(labelled.next_token, tokens=tokens, pad_id=manifest.tokenizer.pad_id, loss_mask=loss_mask)


def _both(features: base.Features, ops: Any, *, sides: Mapping[str, base.Apply]) -> base.Result:
    found = {side: apply(features, ops) for side, apply in sides.items()}
    inputs = {}
    for side, (of_side, _, _) in found.items():
        inputs[f"{side}_token_ids"], inputs[f"{side}_padding_mask"] = of_side.values()
    return inputs, {side: each[1] for side, each in found.items()}, {side: each[2] for side, each in found.items()}
