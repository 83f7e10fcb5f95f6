"""Objective of T5: predict hidden spans of a row.

    a row               a  b  c  d  e  f  g  h  i  j </s> [PAD]       n = 10 tokens, without EOS
    3 noise tokens      .  .  x  x  .  .  .  x  .  .                  density 0.3, in 2 spans of mean length 1.5

    inputs              a  b <X> e  f  g <Y> i  j </s> _ _            a sentinel replaces each span; then EOS
    labels             <X> c  d <Y> h </s> …                          each span after its sentinel; then EOS

n determines the numbers of hidden tokens and spans, and so the lengths of inputs and labels:

    noise(n) = round(density * n), from 1 to n - 1              halves are rounded to even, as in T5's code
    spans(n) = round(noise(n) / mean_span), from 1 to n - noise(n) + 1
    noise(n) = spans(n) = 0 for n < 2
    Li = max over n ≤ L of n - noise(n) + spans(n) + 1        Lt = max over n ≤ L of noise(n) + spans(n) + 1
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import base
from tfrecord_io.objectives.labelled import DECODER_INPUTS, DECODER_MASK, StartToken, decoder_features, start_id
from tfrecord_io.shown import some


def span_corruption(
    density: float = 0.15,
    mean_span: float = 3.0,
    *,
    sentinel_ids: Sequence[int] | None = None,
    eos_id: int | None = None,
    decoder_start_id: StartToken | int = "pad",
) -> base.Objective:
    """Generate hidden spans of tokens (T5, arXiv:1910.10683, section 3.1.4), drawn again for each batch.

    Inputs are the ids and mask of the other tokens, int32 [B, Li], and `decoder_input_ids` and
    `decoder_attention_mask`, int32 [B, Lt]. Labels are int32 [B, Lt], weights float32 [B, Lt], 0 in rows too short to
    lose a token. The module docstring has formulas for Li and Lt. An EOS at the end of a row is never hidden.

    Args:
        density: share of a row's tokens to hide.
        mean_span: mean number of tokens in a hidden span.
        sentinel_ids: ids of the tokens that replace the first, second, ... span; by default the tokenizer's
            <extra_id_0>, <extra_id_1>, ....
        eos_id: id of the token that ends inputs and targets; by default the tokenizer's EOS.
        decoder_start_id: as in `seq2seq`.

    Raises:
        ReaderError: a number is out of range; from `bind`, if there are fewer sentinels than spans, no EOS, or several
            documents in a row (`pack`).
    """
    if not 0 < density < 1:
        raise ReaderError(f"density is {density!r}, expected a number between 0 and 1")
    if not 1 <= mean_span < float("inf"):
        raise ReaderError(f"mean_span is {mean_span!r}, expected at least 1")
    sentinels = None if sentinel_ids is None else tuple(sentinel_ids)
    make = functools.partial(_on_dataset, density=density, mean_span=mean_span, sentinel_ids=sentinels)
    return base.Unbound(functools.partial(make, eos_id=eos_id, decoder_start_id=decoder_start_id))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCounts:
    """Numbers of hidden tokens (`noise`) and of hidden spans in texts of 0, 1, ... L tokens, each int32 [L + 1]."""

    noise: np.ndarray
    spans: np.ndarray

    @classmethod
    def of(cls, row_length: int, *, density: float, mean_span: float) -> SpanCounts:
        n = np.arange(row_length + 1)
        noise = np.where(n < 2, 0, np.clip(np.rint(density * n), 1, np.maximum(n - 1, 1)))
        spans = np.where(n < 2, 0, np.clip(np.rint(noise / mean_span), 1, n - noise + 1))
        return cls(noise=noise.astype(np.int32), spans=spans.astype(np.int32))

    @property
    def max_spans(self) -> int:
        return int(self.spans.max())

    @property
    def input_length(self) -> int:
        return int((np.arange(len(self.noise)) - self.noise + self.spans).max()) + 1

    @property
    def target_length(self) -> int:
        return int((self.noise + self.spans).max()) + 1


def _on_dataset(
    manifest: Manifest,
    tokens: base.TokenFeatures,
    *,
    density: float,
    mean_span: float,
    sentinel_ids: tuple[int, ...] | None,
    eos_id: int | None,
    decoder_start_id: StartToken | int,
) -> base.Apply:
    facts = manifest.tokenizer
    base.check_free(manifest, DECODER_INPUTS, DECODER_MASK, objective="span_corruption")
    if tokens.segments is not None:
        raise ReaderError(
            f"dataset {manifest.name!r}: rows contain several documents ({tokens.segments}), span_corruption expects "
            "one text per row",
            remedy="build the dataset with --layout concat or pad",
        )
    if manifest.row_length < 2:
        raise ReaderError(
            f"dataset {manifest.name!r}: rows have 1 token, span_corruption expects at least 2",
            remedy="build the dataset with a larger --max-length",
        )
    eos_id = facts.eos_id if eos_id is None else eos_id
    if eos_id is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: tokenizer {facts.name!r} has no EOS token, which span_corruption needs",
            remedy="give eos_id, the id that ends inputs and targets, such as that of the separator token",
        )
    counts = SpanCounts.of(manifest.row_length, density=density, mean_span=mean_span)
    return _Corruption(
        tokens=tokens,
        counts=counts,
        sentinel_ids=_sentinels(sentinel_ids, manifest, needed=counts.max_spans),
        eos_id=eos_id,
        pad_id=facts.pad_id,
        start=start_id(manifest, decoder_start_id),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Corruption:
    tokens: base.TokenFeatures
    counts: SpanCounts
    sentinel_ids: np.ndarray
    eos_id: int
    pad_id: int
    start: int

    def __call__(self, features: base.Features, ops: Any) -> base.Result:
        ids_BL = features[self.tokens.ids]
        text_BL = features[self.tokens.mask] > 0
        last_BL = _rank(text_BL, ids_BL, ops) == ops.total(text_BL)[:, None] - 1
        text_BL &= ~(last_BL & (ids_BL == self.eos_id))  # an EOS that ends the row is not part of the text
        first_BR, hidden_BR = draw_spans(ops.total(text_BL), self.counts, ops)
        rank_BL = _rank(text_BL, ids_BL, ops)
        first_BL, hidden_BL = (text_BL & ops.take(mask_BR, rank_BL) for mask_BR in (first_BR, hidden_BR))
        spans_BL = ops.cumsum(first_BL)
        sentinel_BL = ops.integers(ops.table(self.sentinel_ids, ops.maximum(spans_BL - 1, 0)), ids_BL)

        seen_BL = (text_BL & ~hidden_BL) | first_BL
        # The last column takes dropped tokens.
        text = ops.full(self.counts.input_length + 1, self.pad_id, ids_BL)
        kept_BL = ops.where(first_BL, sentinel_BL, ids_BL)
        text = _put(text, kept_BL, at=_rank(seen_BL, ids_BL, ops), chosen=seen_BL, ops=ops)
        place_BL = _rank(hidden_BL, ids_BL, ops) + spans_BL
        target = ops.full(self.counts.target_length + 1, self.pad_id, ids_BL)
        target = _put(target, sentinel_BL, at=place_BL - 1, chosen=first_BL, ops=ops)
        target = _put(target, ids_BL, at=place_BL, chosen=hidden_BL, ops=ops)

        hidden_B = ops.total(hidden_BL)
        text_BW, text_mask_BW = self._ended(text, ops.total(seen_BL), ops)
        target_BT, target_mask_BT = self._ended(target, hidden_B + ops.total(first_BL), ops)
        decoder = decoder_features(target_BT, target_mask_BT, start=self.start, ops=ops)
        inputs = {self.tokens.ids: text_BW, self.tokens.mask: text_mask_BW, **decoder}
        learned_BT = (target_mask_BT > 0) & (hidden_B > 0)[:, None]
        return inputs, target_BT, base.token_weights(features, learned_BT, ops)

    def _ended(self, rows_BW: Any, length_B: Any, ops: Any) -> tuple[Any, Any]:
        place_W, length_B1 = ops.arange(0, rows_BW.shape[1] - 1), length_B[:, None]
        ids_BW = ops.where(place_W == length_B1, self.eos_id, rows_BW[:, :-1])
        return ids_BW, ops.integers(place_W <= length_B1, rows_BW)


def draw_spans(length_B: Any, counts: SpanCounts, ops: Any) -> tuple[Any, Any]:
    """Draw spans to hide in B texts of `length_B` tokens, at most L. All choices are equally likely.

    Returns: two masks, bool [B, L + 1]: the first token of each span, and all hidden tokens. The last column is False.
    """
    noise_B, spans_B = (ops.table(table, length_B) for table in (counts.noise, counts.spans))
    noise_draws, gap_draws = ops.split(2)
    most_noise, most_spans, width = int(counts.noise.max()), counts.max_spans, len(counts.noise)
    size_BS = _cut(noise_B, spans_B, most=most_noise, most_parts=most_spans, ops=noise_draws)
    # Outer gaps may be empty, so they are drawn one token longer.
    gap_BG = _cut(length_B - noise_B + 2, spans_B + 1, most=width + 1, most_parts=most_spans + 1, ops=gap_draws)
    begin_BS = ops.cumsum(gap_BG[:, :-1]) - 1 + ops.cumsum(size_BS) - size_BS
    live_BS = ops.arange(0, most_spans) < spans_B[:, None]
    none_BR = ops.full(width + 1, 0, begin_BS)
    begins_BR, ends_BR = (
        _put(none_BR, begin_BS * 0 + 1, at=at_BS, chosen=live_BS, ops=ops)[:, :width]
        for at_BS in (begin_BS, begin_BS + size_BS)
    )
    return begins_BR > 0, ops.cumsum(begins_BR - ends_BR) > 0


def _cut(total_B: Any, parts_B: Any, *, most: int, most_parts: int, ops: Any) -> Any:
    # Sizes of parts, [B, most_parts], with sum `total_B`: the first `parts_B` are at least 1, all others 0.
    # All results are equally likely: of the places between two items, those with the largest random numbers are cut.
    total_B1 = total_B[:, None]
    draw_BC = ops.where(ops.arange(1, most) < total_B1, ops.ranks([total_B.shape[0], most - 1]), -1.0)
    cut_BP = ops.largest(draw_BC, most_parts - 1) + 1
    used_BP = ops.arange(1, most_parts) < parts_B[:, None]
    end_BP = ops.concat([ops.sort(ops.where(used_BP, cut_BP, total_B1)), total_B1])
    return end_BP - base.shifted(end_BP, 0, ops)


def _rank(chosen_BL: Any, ids_BL: Any, ops: Any) -> Any:
    return ops.cumsum(chosen_BL) - ops.integers(chosen_BL, ids_BL)


def _put(rows_BW: Any, values_BL: Any, *, at: Any, chosen: Any, ops: Any) -> Any:
    return ops.replaced(rows_BW, ops.where(chosen, at, rows_BW.shape[1] - 1), values_BL)


def _sentinels(sentinel_ids: tuple[int, ...] | None, manifest: Manifest, *, needed: int) -> np.ndarray:
    ids = manifest.tokenizer.sentinel_ids if sentinel_ids is None else sentinel_ids
    if len(ids) < needed:
        owner = f"tokenizer {manifest.tokenizer.name!r} has" if sentinel_ids is None else "sentinel_ids has"
        raise ReaderError(
            f"dataset {manifest.name!r}: rows of {some(manifest.row_length, 'token')} lose up to "
            f"{some(needed, 'span')}, but {owner} {some(len(ids), 'sentinel')}, expected one per span",
            remedy="give sentinel_ids that the model has, a lower density or a longer mean_span, or build the dataset "
            "with shorter rows or a tokenizer that has tokens <extra_id_0>, <extra_id_1>, ...",
        )
    if len(set(ids)) < len(ids) or min(ids) < 0:
        raise ReaderError(f"sentinel_ids are {list(ids)!r:.200}, expected distinct ids")
    return np.array(ids[:needed], np.int32)
