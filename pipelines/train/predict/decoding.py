"""Greedy and beam search over a function that gives the next token's logits, with static shapes.

    ids      int32 [B, L]   prompts, then what was generated, then padding; L never changes
    lengths  int32 [B]      tokens of each row so far
    next_logits(ids [N, L], lengths [N]) -> float [N, V]    of the token at place `lengths`

Each step runs the whole model on [B, L] (beam search: [B K, L]): nothing is kept between steps, which any model allows.
A row ends with `eos_id`, which is written, or where the row is full. Beam search keeps the K likeliest sequences; a
finished one stays with its score. At the end scores are divided by ((5 + tokens) / 6) ** penalty (arXiv:1609.08144,
section 7), and the best one is given. Among equals the lower token id wins, as in `argmax`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

__all__ = ["Decoded", "beam_search", "greedy_search"]

NextLogits = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_IMPOSSIBLE = -1e30  # finite, so that sums of two of them are no NaN


class Decoded(NamedTuple):  # which a tf.function can give
    """`ids` int32 [B, L] with what was generated, `lengths` int32 [B], `scores` float32 [B]: sums of log probabilities.

    Of a beam search scores are divided by the length penalty.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor


def greedy_search(
    next_logits: NextLogits, ids: tf.Tensor, lengths: tf.Tensor, *, steps: int, eos_id: int | None
) -> Decoded:
    """Append the likeliest token up to `steps` times. Rows without a token stay as they are."""
    open_B = (lengths > 0) & (lengths < ids.shape[1])
    scores_B = tf.zeros_like(lengths, tf.float32)

    def step(at: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, scores: tf.Tensor, going: tf.Tensor) -> tuple:
        chances_BV = tf.nn.log_softmax(tf.cast(next_logits(ids, lengths), tf.float32))
        chosen_B = tf.argmax(chances_BV, axis=-1, output_type=tf.int32)
        ids = _put(ids, lengths, chosen_B, where=going)
        scores += tf.where(going, tf.reduce_max(chances_BV, axis=-1), 0.0)
        lengths += tf.cast(going, tf.int32)
        going &= lengths < ids.shape[1]
        if eos_id is not None:
            going &= chosen_B != eos_id
        return at + 1, ids, lengths, scores, going

    state = (tf.constant(0), ids, lengths, scores_B, open_B)
    _, ids, lengths, scores, _ = tf.while_loop(lambda *_: True, step, state, maximum_iterations=steps)
    return Decoded(ids=ids, lengths=lengths, scores=scores)


def beam_search(
    next_logits: NextLogits,
    ids: tf.Tensor,
    lengths: tf.Tensor,
    *,
    steps: int,
    beams: int,
    eos_id: int | None,
    penalty: float = 0.6,
) -> Decoded:
    """Append up to `steps` tokens: the best of `beams` sequences. `ids` and `lengths` have static shapes."""
    (rows, length), first_B = ids.shape, lengths
    ids_BKL = tf.repeat(ids[:, tf.newaxis], beams, axis=1)
    lengths_BK = tf.repeat(lengths[:, tf.newaxis], beams, axis=1)
    # All beams begin alike: only the first one counts, or the first step would choose the same token K times.
    scores_BK = tf.repeat(tf.constant([[0.0] + [_IMPOSSIBLE] * (beams - 1)]), rows, axis=0)
    open_BK = (lengths_BK > 0) & (lengths_BK < length)

    def step(at: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, scores: tf.Tensor, going: tf.Tensor) -> tuple:
        flat_ids, flat_lengths = tf.reshape(ids, [rows * beams, length]), tf.reshape(lengths, [rows * beams])
        logits = tf.cast(next_logits(flat_ids, flat_lengths), tf.float32)
        vocab_size = logits.shape[-1]
        chances_BKV = tf.reshape(tf.nn.log_softmax(logits), [rows, beams, vocab_size])
        # A finished sequence has one continuation: itself, which takes the place of token 0.
        itself_V = tf.constant([0.0] + [_IMPOSSIBLE] * (vocab_size - 1))
        totals_BKV = scores[..., tf.newaxis] + tf.where(going[..., tf.newaxis], chances_BKV, itself_V)
        scores, best = tf.math.top_k(tf.reshape(totals_BKV, [rows, beams * vocab_size]), k=beams)
        beam, token = best // vocab_size, best % vocab_size
        ids, lengths, going = (tf.gather(each, beam, batch_dims=1) for each in (ids, lengths, going))
        ids = _put(ids, lengths, token, where=going)
        lengths += tf.cast(going, tf.int32)
        going &= lengths < length
        if eos_id is not None:
            going &= token != eos_id
        return at + 1, ids, lengths, scores, going

    state = (tf.constant(0), ids_BKL, lengths_BK, scores_BK, open_BK)
    _, ids_BKL, lengths_BK, scores_BK, _ = tf.while_loop(lambda *_: True, step, state, maximum_iterations=steps)
    generated_BK = tf.cast(lengths_BK - first_B[:, tf.newaxis], tf.float32)
    scores_BK = scores_BK / ((5.0 + generated_BK) / 6.0) ** penalty
    best_B = tf.argmax(scores_BK, axis=1, output_type=tf.int32)
    ids, lengths, scores = (tf.gather(each, best_B, batch_dims=1) for each in (ids_BKL, lengths_BK, scores_BK))
    return Decoded(ids=ids, lengths=lengths, scores=scores)


def _put(ids: tf.Tensor, lengths: tf.Tensor, tokens: tf.Tensor, *, where: tf.Tensor) -> tf.Tensor:
    """The ids [..., L] with `tokens` at the places `lengths`, in the rows `where`; a comparison, which XLA fuses."""
    places = tf.range(ids.shape[-1])
    here = (places == lengths[..., tf.newaxis]) & where[..., tf.newaxis]
    return tf.where(here, tokens[..., tf.newaxis], ids)
