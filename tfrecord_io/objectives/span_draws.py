"""Draws the tokens of a text that become spans: their number follows from its length, their positions are random.

    noise(n) = round(density * n), at least 1 and at most n - 1             halves are rounded to even, as in T5's code
    spans(n) = round(noise(n) / mean_span), at least 1 and at most n - noise(n) + 1
    a text of fewer than 2 tokens loses nothing

    n = 10, density 0.3, mean_span 1.5        3 tokens, 2 spans
    cut 3 into 2 spans                        xx|x              one of 2 ways
    cut the other 7 into 3 gaps               ..|...|..         one of 28: those at the ends may be empty
    laid out                                  ..xx...x..

Every possibility is equally likely. T5's own code (arXiv:1910.10683, t5.data.preprocessors.random_spans_noise_mask) has
the same counts, but begins with a gap and ends with a span, so that it hides the last token of every text.
"""

from __future__ import annotations

import tensorflow as tf

from tfrecord_io.objective_parts.spans import SpanCounts
from tfrecord_io.objectives import draws
from tfrecord_io.objectives.base import replaced

__all__ = ["draw_spans"]


def draw_spans(length_B: tf.Tensor, counts: SpanCounts, *, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Spans of texts that are `length_B` tokens long, int32 [B], at most L.

    Returns: bool [B, L + 1] twice: which tokens are the first of a span, and which are in one. No token is ever there
        at the last place.
    """
    noise_B, spans_B = (tf.gather(tf.constant(table), length_B) for table in (counts.noise, counts.spans))
    noise_seed, gap_seed = draws.split(seed, 2)
    most_noise, most_spans, width = int(counts.noise.max()), counts.max_spans, counts.row_length + 1
    size_BS = _cut(noise_B, spans_B, most=most_noise, most_parts=most_spans, seed=noise_seed)
    # Parts are never empty, and the outer gaps may be: they are drawn with one token more each.
    gap_BG = _cut(length_B - noise_B + 2, spans_B + 1, most=width + 1, most_parts=most_spans + 1, seed=gap_seed)
    begin_BS = tf.cumsum(gap_BG[:, :-1], axis=1) - 1 + tf.cumsum(size_BS, axis=1, exclusive=True)
    live_BS = tf.range(most_spans) < spans_B[:, tf.newaxis]
    begins_BR, ends_BR = (_marked(at_BS, live_BS, width) for at_BS in (begin_BS, begin_BS + size_BS))
    return begins_BR > 0, tf.cumsum(begins_BR - ends_BR, axis=1) > 0


def _cut(total_B: tf.Tensor, parts_B: tf.Tensor, *, most: int, most_parts: int, seed: tf.Tensor) -> tf.Tensor:
    """int32 [B, most_parts]: sizes of parts that add up to the total, each way of cutting it equally likely.

    The first `parts_B` sizes are at least 1, all others 0. A cut is one of the total - 1 places between two items, and
    the largest of as many random draws as there are places choose parts - 1 of them.
    """
    draw_BC = draws.uniform([total_B.shape[0], most - 1], seed)
    draw_BC = tf.where(tf.range(1, most) < total_B[:, tf.newaxis], draw_BC, -1.0)
    cut_BP = tf.math.top_k(draw_BC, k=most_parts - 1).indices + 1
    used_BP = tf.range(1, most_parts) < parts_B[:, tf.newaxis]
    total_B1 = total_B[:, tf.newaxis]
    end_BP = tf.concat([tf.sort(tf.where(used_BP, cut_BP, total_B1), axis=1), total_B1], axis=1)
    return end_BP - tf.pad(end_BP[:, :-1], [[0, 0], [1, 0]])


def _marked(at_BS: tf.Tensor, live_BS: tf.Tensor, width: int) -> tf.Tensor:
    """int32 [B, width]: 1 at those places that are live, which differ within a row."""
    nowhere = tf.zeros([at_BS.shape[0], width + 1], tf.int32)
    return replaced(nowhere, tf.where(live_BS, at_BS, width), tf.ones_like(at_BS))[:, :width]
