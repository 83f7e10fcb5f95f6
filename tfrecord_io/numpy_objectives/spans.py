"""Span corruption: `objectives.spans` and `objectives.span_draws` in NumPy, where the examples are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.numpy_objectives.on_rows import Arrays, Objective, Result, decoder_features, example_weights
from tfrecord_io.objective_parts import spans
from tfrecord_io.objective_parts.decoder import StartToken, start_id
from tfrecord_io.objective_parts.spans import SpanCounts
from tfrecord_io.objective_parts.tokens import TokenFeatures

__all__ = ["draw_spans", "span_corruption"]


def span_corruption(
    density: float = 0.15,
    mean_span: float = 3.0,
    *,
    sentinel_ids: Sequence[int] | None = None,
    eos_id: int | None = None,
    decoder_start_id: StartToken | int = "pad",
) -> Objective:
    """Generate spans of tokens that were hidden (T5, arXiv:1910.10683, section 3.1.4), chosen anew at each call.

    Args, inputs, labels, weights and what is raised: as `objectives.span_corruption`.
    """
    spans.check_numbers(density, mean_span)
    given = None if sentinel_ids is None else tuple(sentinel_ids)
    options: dict[str, Any] = {"density": density, "mean_span": mean_span, "sentinel_ids": given, "eos_id": eos_id}
    return Objective(functools.partial(_bind, decoder_start_id=decoder_start_id, **options))


def _bind(
    manifest: Manifest,
    tokens: TokenFeatures,
    *,
    density: float,
    mean_span: float,
    sentinel_ids: tuple[int, ...] | None,
    eos_id: int | None,
    decoder_start_id: StartToken | int,
) -> _Corruption:
    spans.check_rows(manifest, tokens)
    counts = SpanCounts.of(manifest.row_length, density=density, mean_span=mean_span)
    return _Corruption(
        counts=counts,
        sentinel_ids=spans.sentinels(sentinel_ids, manifest, needed=counts.max_spans),
        eos_id=spans.eos(eos_id, manifest),
        pad_id=manifest.tokenizer.pad_id,
        start=start_id(manifest, decoder_start_id),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Corruption:
    counts: SpanCounts
    sentinel_ids: np.ndarray
    eos_id: int
    pad_id: int
    start: int

    def __call__(self, features: Arrays, tokens: TokenFeatures, rng: np.random.Generator) -> Result:
        ids_BL = features[tokens.ids]
        text_BL = _without_eos(ids_BL, features[tokens.mask] > 0, self.eos_id)
        first_BL, hidden_BL = self._choose(text_BL, rng=rng)
        spans_BL = np.cumsum(first_BL, axis=1)  # that began up to here
        sentinel_BL = self.sentinel_ids[np.maximum(spans_BL - 1, 0)].astype(ids_BL.dtype)
        seen_BL = (text_BL & ~hidden_BL) | first_BL

        text_BW = self._empty(ids_BL, self.counts.input_length)
        _put(text_BW, np.where(first_BL, sentinel_BL, ids_BL), at=_rank(seen_BL), where=seen_BL)
        target_BT = self._empty(ids_BL, self.counts.target_length)
        place_BL = _rank(hidden_BL) + spans_BL
        _put(target_BT, sentinel_BL, at=place_BL - 1, where=first_BL)
        _put(target_BT, ids_BL, at=place_BL, where=hidden_BL)

        text_mask_BW = self._end(text_BW, seen_BL.sum(axis=1))
        hidden_B = hidden_BL.sum(axis=1)
        target_mask_BT = self._end(target_BT, hidden_B + first_BL.sum(axis=1))
        inputs = {
            tokens.ids: text_BW,
            tokens.mask: text_mask_BW,
            **decoder_features(target_BT, target_mask_BT, start=self.start),
        }
        learned_BT = target_mask_BT * (hidden_B > 0)[:, np.newaxis]  # nothing hidden: only EOS
        return inputs, target_BT, example_weights(features, counts=learned_BT)

    def _choose(self, text_BL: np.ndarray, *, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """bool [B, L] twice: the first token of each span, and all tokens in spans."""
        first_BR, hidden_BR = draw_spans(text_BL.sum(axis=1), self.counts, rng=rng)
        rank_BL = _rank(text_BL)
        first_BL, hidden_BL = (np.take_along_axis(each, rank_BL, axis=1) for each in (first_BR, hidden_BR))
        return text_BL & first_BL, text_BL & hidden_BL

    def _empty(self, ids_BL: np.ndarray, width: int) -> np.ndarray:
        return np.full((len(ids_BL), width), self.pad_id, ids_BL.dtype)

    def _end(self, rows_BW: np.ndarray, length_B: np.ndarray) -> np.ndarray:
        """Writes EOS behind the tokens of each row. Returns: the mask of the rows."""
        rows_BW[np.arange(len(rows_BW)), length_B] = self.eos_id
        return (np.arange(rows_BW.shape[1]) <= length_B[:, np.newaxis]).astype(rows_BW.dtype)


def draw_spans(length_B: np.ndarray, counts: SpanCounts, *, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Spans of texts that are `length_B` tokens long, at most L; each possibility is equally likely.

    Returns: bool [B, L + 1] twice: which tokens are the first of a span, and which are in one. No token is ever there
        at the last place.
    """
    noise_B, spans_B = counts.noise[length_B].astype(np.int64), counts.spans[length_B].astype(np.int64)
    most_noise, most_spans, width = int(counts.noise.max()), counts.max_spans, counts.row_length + 1
    size_BS = _cut(noise_B, spans_B, most=most_noise, most_parts=most_spans, rng=rng)
    # Parts are never empty, and the outer gaps may be: they are drawn with one token more each.
    gap_BG = _cut(length_B - noise_B + 2, spans_B + 1, most=width + 1, most_parts=most_spans + 1, rng=rng)
    begin_BS = np.cumsum(gap_BG[:, :-1], axis=1) - 1 + np.cumsum(size_BS, axis=1) - size_BS
    live_BS = np.arange(most_spans) < spans_B[:, np.newaxis]
    begins_BR, ends_BR = (_marked(at_BS, live_BS, width) for at_BS in (begin_BS, begin_BS + size_BS))
    return begins_BR > 0, np.cumsum(begins_BR - ends_BR, axis=1) > 0


def _cut(
    total_B: np.ndarray, parts_B: np.ndarray, *, most: int, most_parts: int, rng: np.random.Generator
) -> np.ndarray:
    """int64 [B, most_parts]: sizes of parts that add up to the total, each way of cutting it equally likely.

    The first `parts_B` sizes are at least 1, all others 0. A cut is one of the total - 1 places between two items: a
    random draw for each place, and the largest draws choose parts - 1 of them.
    """
    total_B1 = total_B[:, np.newaxis]
    draw_BC = np.where(np.arange(1, most) < total_B1, rng.random((len(total_B), most - 1)), -1.0)
    cut_BP = np.argsort(-draw_BC, axis=1)[:, : most_parts - 1] + 1
    used_BP = np.arange(1, most_parts) < parts_B[:, np.newaxis]
    end_BP = np.concatenate([np.sort(np.where(used_BP, cut_BP, total_B1), axis=1), total_B1], axis=1)
    return np.diff(end_BP, axis=1, prepend=0)


def _marked(at_BS: np.ndarray, live_BS: np.ndarray, width: int) -> np.ndarray:
    """int64 [B, width]: 1 at those places that are live."""
    marked_BW = np.zeros((len(at_BS), width), np.int64)
    _put(marked_BW, np.ones_like(at_BS), at=at_BS, where=live_BS)
    return marked_BW


def _without_eos(ids_BL: np.ndarray, text_BL: np.ndarray, eos_id: int) -> np.ndarray:
    """bool [B, L]: the tokens of the text, but for an EOS that is the last of them."""
    last_BL = _rank(text_BL) == text_BL.sum(axis=1, keepdims=True) - 1
    return text_BL & ~(last_BL & (ids_BL == eos_id))


def _rank(chosen_BL: np.ndarray) -> np.ndarray:
    """int64 [B, L]: how many are chosen before each place."""
    return np.cumsum(chosen_BL, axis=1) - chosen_BL


def _put(rows_BW: np.ndarray, values_BL: np.ndarray, *, at: np.ndarray, where: np.ndarray) -> None:
    """Write values into the rows, at places `at` [B, L] where `where` is True."""
    rows, columns = np.nonzero(where)
    rows_BW[rows, at[rows, columns]] = values_BL[rows, columns]
