"""Objective for pairs of a chosen and a rejected answer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import base, labelled
from tfrecord_io.schema import ANSWERS, Side


def preference(*, prompt_length: int | None = None, answer_length: int | None = None) -> base.Objective:
    """Compare two answers to a prompt (DPO, arXiv:2305.18290; reward models, arXiv:2203.02155).

    Inputs are `chosen_token_ids`, `chosen_padding_mask`, `rejected_token_ids` and `rejected_padding_mask`, int32
    [B, L]. Labels and weights are dicts with keys `chosen` and `rejected`, [B, L], shifted as in `causal_lm`, with
    weight 1 on the answer's tokens.

    With `prompt_length` P and `answer_length` A, inputs are the fields of tunix's `TrainingInput`, padded and cut as in
    MaxText (`DPODataFormatting`): `prompt_ids` and `prompt_mask`, [B, P], padded on the left; `chosen_ids`,
    `chosen_mask`, `rejected_ids` and `rejected_mask`, [B, A], padded on the right. Labels and weights are the answers'
    ids and masks. If truncation made a row's prompts differ, the longer one is used.

    Raises:
        ReaderError: only one length is given, or a length is not positive; from `bind`, if the dataset has no pairs
            (`--layout preference`).
    """
    if prompt_length is None and answer_length is None:
        return base.Unbound(_preference, side="chosen")
    for name, length in (("prompt_length", prompt_length), ("answer_length", answer_length)):
        host_plan.check_positive(name, length)  # type: ignore[arg-type]
    lengths: Any = (prompt_length, answer_length)
    return base.Unbound(functools.partial(_apart, lengths=lengths), side="chosen")


def _preference(manifest: Manifest, tokens: base.TokenFeatures) -> base.Apply:
    apply = functools.partial(labelled.next_token, pad_id=manifest.tokenizer.pad_id)
    sides = {side: functools.partial(apply, tokens=base.TokenFeatures.of(manifest, side=side)) for side in ANSWERS}
    return functools.partial(_both, sides=sides)


def _both(features: base.Features, ops: Any, *, sides: Mapping[Side, base.Apply]) -> base.Result:
    inputs, labels, weights = {}, {}, {}
    for side, apply in sides.items():
        of_side, labels[side], weights[side] = apply(features, ops)
        inputs[f"{side}_token_ids"], inputs[f"{side}_padding_mask"] = of_side.values()
    return inputs, labels, weights


def _apart(manifest: Manifest, tokens: base.TokenFeatures, *, lengths: tuple[int, int]) -> base.Apply:
    sides = {side: base.TokenFeatures.of(manifest, side=side) for side in ANSWERS}
    return functools.partial(_cut_apart, sides=sides, pad_id=manifest.tokenizer.pad_id, lengths=lengths)


def _cut_apart(
    features: base.Features,
    ops: Any,
    *,
    sides: Mapping[Side, base.TokenFeatures],
    pad_id: int,
    lengths: tuple[int, int],
) -> base.Result:
    inputs: dict[str, Any] = {}
    longest_B: Any = -1
    ids_BL: Any = 0
    for side, names in sides.items():
        stop_B = ops.total(features[names.mask])
        start_B = stop_B - ops.total(features[names.learned])
        part = _part(features[names.ids], start_B, stop_B, length=lengths[1], pad_id=pad_id, ops=ops)
        inputs[f"{side}_ids"], inputs[f"{side}_mask"] = part
        ids_BL = ops.where((start_B > longest_B)[:, None], features[names.ids], ids_BL)
        longest_B = ops.maximum(longest_B, start_B)
    first_B = longest_B - lengths[0]
    prompts = _part(ids_BL, first_B, longest_B, length=lengths[0], pad_id=pad_id, ops=ops)
    labels = {side: inputs[f"{side}_ids"] for side in sides}
    weights = {side: base.token_weights(features, inputs[f"{side}_mask"], ops) for side in sides}
    return {"prompt_ids": prompts[0], "prompt_mask": prompts[1], **inputs}, labels, weights


def _part(ids_BL: Any, first_B: Any, stop_B: Any, *, length: int, pad_id: int, ops: Any) -> tuple[Any, Any]:
    # The mask is 0 before the row, and from `stop_B` on.
    places = first_B[:, None] + ops.arange(0, length)
    inside = (places >= 0) & (places < stop_B[:, None])
    taken = ops.take(ids_BL, ops.minimum(ops.maximum(places, 0), ids_BL.shape[1] - 1))
    return ops.where(inside, taken, pad_id), ops.integers(inside, ids_BL)
