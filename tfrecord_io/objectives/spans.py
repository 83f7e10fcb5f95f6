"""Span corruption, T5's objective (arXiv:1910.10683, section 3.1.4): spans of a row are its target.

    a row               a  b  c  d  e  f  g  h  i  j </s> [PAD]       n = 10 tokens, its EOS left out
    3 noise tokens      .  .  x  x  .  .  .  x  .  .                  density 0.3, in 2 spans of mean length 1.5

    inputs              a  b <X> e  f  g <Y> i  j </s> _ _            each span became one sentinel; then EOS
    labels             <X> c  d <Y> h </s> …                          the spans, each behind its sentinel; then EOS
    decoder inputs      S <X> c  d <Y> h …                            see `seq2seq`

How many tokens and spans a row loses follows from n, and which ones is left to chance: see `span_draws`. So the longest
inputs and targets are known beforehand, and nothing is ever cut:

    Li = max over n ≤ L of n - noise(n) + spans(n) + 1        Lt = max over n ≤ L of noise(n) + spans(n) + 1

As in T5's own code, and unlike in the picture of the paper, no sentinel stands at the end of the target. Everything
happens on whole batches: kept tokens and hidden tokens are moved together by one scatter each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.manifest import Manifest
from tfrecord_io.objective_parts import spans
from tfrecord_io.objective_parts.decoder import StartToken, start_id
from tfrecord_io.objectives.base import (
    BoundObjective,
    Objective,
    TokenFeatures,
    example_weights,
    replaced,
)
from tfrecord_io.objectives.seq2seq import decoder_features
from tfrecord_io.objectives.span_draws import draw_spans

__all__ = ["span_corruption"]


def span_corruption(
    density: float = 0.15,
    mean_span: float = 3.0,
    *,
    sentinel_ids: Sequence[int] | None = None,
    eos_id: int | None = None,
    decoder_start_id: StartToken | int = "pad",
) -> Objective:
    """Generate spans of tokens that were hidden (T5, arXiv:1910.10683, section 3.1.4), chosen anew for each batch.

    An EOS that ends a row is taken for the end of its inputs, and never hidden. Token type ids, which would no longer
    fit, are left out.

    Args:
        density: the share of a row's tokens that is hidden.
        mean_span: their mean number in a span.
        sentinel_ids: what stands for the first span, the second, ...; default: those that the manifest states,
            <extra_id_0>, <extra_id_1>, ....
        eos_id: ends inputs and targets; default: the tokenizer's.
        decoder_start_id: as of `seq2seq`.

    Returns an objective whose inputs are ids and mask of the rest, int32 [B, Li], and `decoder_input_ids`,
    `decoder_attention_mask`, int32 [B, Lt]; labels int32 [B, Lt] and weights float32 [B, Lt], 0 in rows that are too
    short to lose a token. The docstring of the module has the formulas of Li and Lt.

    Raises:
        ReaderError: a number is out of range; from `bind` if there are too few sentinels for the longest row, no EOS,
            or several documents in a row (`pack`).
    """
    spans.check_numbers(density, mean_span)
    return _SpanCorruption(
        density=density,
        mean_span=mean_span,
        sentinel_ids=None if sentinel_ids is None else tuple(sentinel_ids),
        eos_id=eos_id,
        decoder_start_id=decoder_start_id,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SpanCorruption:
    density: float
    mean_span: float
    sentinel_ids: tuple[int, ...] | None
    eos_id: int | None
    decoder_start_id: StartToken | int

    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens = TokenFeatures.of(manifest)
        spans.check_rows(manifest, tokens)
        counts = spans.SpanCounts.of(manifest.row_length, density=self.density, mean_span=self.mean_span)
        corruption = _Corruption(
            counts=counts,
            sentinel_ids=spans.sentinels(self.sentinel_ids, manifest, needed=counts.max_spans),
            eos_id=spans.eos(self.eos_id, manifest),
            pad_id=manifest.tokenizer.pad_id,
        )
        start = start_id(manifest, self.decoder_start_id)

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            text, target = corruption.split(features[tokens.ids], features[tokens.mask], seed=seed)
            inputs = {
                tokens.ids: text.ids,
                tokens.mask: text.mask,
                **decoder_features(target.ids, target.mask, start=start),
            }
            learned_BT = tf.where(target.length_B[:, tf.newaxis] > 1, target.mask, 0)  # nothing hidden: only EOS
            return inputs, target.ids, example_weights(features, counts=learned_BT)

        return apply


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Padded:
    """Token ids padded on the right, int32 [B, W], and how many there are in each row, int32 [B]."""

    ids: tf.Tensor
    length_B: tf.Tensor

    @property
    def mask(self) -> tf.Tensor:
        return tf.sequence_mask(self.length_B, self.ids.shape[1], tf.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Corruption:
    """What texts and targets are made of; see the module's docstring."""

    counts: spans.SpanCounts
    sentinel_ids: np.ndarray
    eos_id: int
    pad_id: int

    def split(self, ids_BL: tf.Tensor, mask_BL: tf.Tensor, *, seed: tf.Tensor) -> tuple[_Padded, _Padded]:
        """The texts with sentinels in place of spans, and the spans behind their sentinels."""
        text_BL = _without_eos(ids_BL, mask_BL > 0, self.eos_id)
        first_BL, hidden_BL = self._choose(text_BL, seed=seed)
        spans_BL = tf.cumsum(tf.cast(first_BL, tf.int32), axis=1)  # that began up to here
        sentinel_BL = tf.gather(tf.constant(self.sentinel_ids), tf.maximum(spans_BL - 1, 0))

        seen_BL = (text_BL & ~hidden_BL) | first_BL
        text = self._empty(ids_BL.shape[0], self.counts.input_length)
        text = _put(text, tf.where(first_BL, sentinel_BL, ids_BL), at=_rank(seen_BL), where=seen_BL)

        place_BL = _rank(hidden_BL) + spans_BL
        target = self._empty(ids_BL.shape[0], self.counts.target_length)
        target = _put(target, sentinel_BL, at=place_BL - 1, where=first_BL)
        target = _put(target, ids_BL, at=place_BL, where=hidden_BL)
        return self._ended(text, _total(seen_BL)), self._ended(target, _total(hidden_BL) + _total(first_BL))

    def _choose(self, text_BL: tf.Tensor, *, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """bool [B, L] twice: the first token of each span, and all tokens in spans."""
        first_BR, hidden_BR = draw_spans(_total(text_BL), self.counts, seed=seed)
        rank_BL = _rank(text_BL)
        return (
            text_BL & tf.gather(first_BR, rank_BL, batch_dims=1),
            text_BL & tf.gather(hidden_BR, rank_BL, batch_dims=1),
        )

    def _empty(self, num_rows: int, width: int) -> tf.Tensor:
        """Rows of padding, with a place more than they have, for what is to be nowhere."""
        return tf.fill([num_rows, width + 1], self.pad_id)

    def _ended(self, rows_BW: tf.Tensor, length_B: tf.Tensor) -> _Padded:
        """Append EOS to the tokens of each row, and cut the one column too many."""
        place_W = tf.range(rows_BW.shape[1] - 1)
        ids_BW = tf.where(place_W == length_B[:, tf.newaxis], self.eos_id, rows_BW[:, :-1])
        return _Padded(ids=ids_BW, length_B=length_B + 1)


def _without_eos(ids_BL: tf.Tensor, text_BL: tf.Tensor, eos_id: int) -> tf.Tensor:
    """bool [B, L]: the tokens of the text, but for an EOS that is the last of them."""
    last_BL = _rank(text_BL) == _total(text_BL)[:, tf.newaxis] - 1
    return text_BL & ~(last_BL & (ids_BL == eos_id))


def _put(rows_BW: tf.Tensor, values_BL: tf.Tensor, *, at: tf.Tensor, where: tf.Tensor) -> tf.Tensor:
    """The rows, with values at places `at` [B, L]; those for which `where` is False go to the last place."""
    return replaced(rows_BW, tf.where(where, at, rows_BW.shape[1] - 1), values_BL)


def _rank(chosen_BL: tf.Tensor) -> tf.Tensor:
    """int32 [B, L]: how many are chosen before each place."""
    return tf.cumsum(tf.cast(chosen_BL, tf.int32), axis=1, exclusive=True)


def _total(chosen_BL: tf.Tensor) -> tf.Tensor:
    """int32 [B]: how many are chosen in a row."""
    return tf.reduce_sum(tf.cast(chosen_BL, tf.int32), axis=1)
