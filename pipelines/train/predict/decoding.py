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
from typing import Any, NamedTuple

from keras import ops

__all__ = ["Decoded", "beam_search", "greedy_search", "of_place"]

NextLogits = Callable[[Any, Any], Any]

_IMPOSSIBLE = -1e30  # finite, so that sums of two of them are no NaN


class Decoded(NamedTuple):  # which a tf.function can give
    """`ids` int32 [B, L] with what was generated, `lengths` int32 [B], `scores` float32 [B]: sums of log probabilities.

    Of a beam search scores are divided by the length penalty.
    """

    ids: Any
    lengths: Any
    scores: Any


def greedy_search(next_logits: NextLogits, ids: Any, lengths: Any, *, steps: int, eos_id: int | None) -> Decoded:
    """Append the likeliest token up to `steps` times. Rows without a token stay as they are."""
    open_B = (lengths > 0) & (lengths < ids.shape[1])
    scores_B = ops.zeros_like(lengths, "float32")

    def step(_: Any, state: tuple) -> tuple:
        ids, lengths, scores, going = state
        chances_BV = ops.log_softmax(ops.cast(next_logits(ids, lengths), "float32"))
        chosen_B = ops.argmax(chances_BV, axis=-1)
        ids = _put(ids, lengths, chosen_B, where=going)
        scores += ops.where(going, ops.max(chances_BV, axis=-1), 0.0)
        lengths += ops.cast(going, "int32")
        going &= lengths < ids.shape[1]
        if eos_id is not None:
            going &= ops.not_equal(chosen_B, eos_id)
        return ids, lengths, scores, going

    state = (ids, lengths, scores_B, open_B)
    ids, lengths, scores, _ = ops.fori_loop(0, steps, step, state)
    return Decoded(ids=ids, lengths=lengths, scores=scores)


def beam_search(
    next_logits: NextLogits,
    ids: Any,
    lengths: Any,
    *,
    steps: int,
    beams: int,
    eos_id: int | None,
    penalty: float = 0.6,
) -> Decoded:
    """Append up to `steps` tokens: the best of `beams` sequences. `ids` and `lengths` have static shapes."""
    (rows, length), first_B = ids.shape, lengths
    ids_BKL = ops.repeat(ids[:, None], beams, axis=1)
    lengths_BK = ops.repeat(lengths[:, None], beams, axis=1)
    # All beams begin alike: only the first one counts, or the first step would choose the same token K times.
    scores_BK = ops.convert_to_tensor([[0.0] + [_IMPOSSIBLE] * (beams - 1)] * rows)
    open_BK = (lengths_BK > 0) & (lengths_BK < length)

    def step(_: Any, state: tuple) -> tuple:
        ids, lengths, scores, going = state
        flat_ids, flat_lengths = ops.reshape(ids, [rows * beams, length]), ops.reshape(lengths, [rows * beams])
        logits = ops.cast(next_logits(flat_ids, flat_lengths), "float32")
        vocab_size = logits.shape[-1]
        chances_BKV = ops.reshape(ops.log_softmax(logits), [rows, beams, vocab_size])
        # A finished sequence has one continuation: itself, which takes the place of token 0.
        itself_V = ops.convert_to_tensor([0.0] + [_IMPOSSIBLE] * (vocab_size - 1))
        totals_BKV = scores[..., None] + ops.where(going[..., None], chances_BKV, itself_V)
        scores, best = ops.top_k(ops.reshape(totals_BKV, [rows, beams * vocab_size]), k=beams)
        beam, token = best // vocab_size, best % vocab_size
        ids, lengths, going = (_of_beam(each, beam) for each in (ids, lengths, going))
        ids = _put(ids, lengths, token, where=going)
        lengths += ops.cast(going, "int32")
        going &= lengths < length
        if eos_id is not None:
            going &= ops.not_equal(token, eos_id)
        return ids, lengths, scores, going

    state = (ids_BKL, lengths_BK, scores_BK, open_BK)
    ids_BKL, lengths_BK, scores_BK, _ = ops.fori_loop(0, steps, step, state)
    generated_BK = ops.cast(lengths_BK - first_B[:, None], "float32")
    scores_BK = scores_BK / ((5.0 + generated_BK) / 6.0) ** penalty
    best_B1 = ops.argmax(scores_BK, axis=1)[:, None]
    ids, lengths, scores = (_of_beam(each, best_B1)[:, 0] for each in (ids_BKL, lengths_BK, scores_BK))
    return Decoded(ids=ids, lengths=lengths, scores=scores)


def _put(ids: Any, lengths: Any, tokens: Any, *, where: Any) -> Any:
    """The ids [..., L] with `tokens` at the places `lengths`, in the rows `where`; a comparison, which XLA fuses."""
    here = ops.equal(ops.arange(ids.shape[-1]), lengths[..., None]) & where[..., None]
    return ops.where(here, tokens[..., None], ids)


def _of_beam(values: Any, beam: Any) -> Any:
    """Of values [B, K, ...] those of the beams int32 [B, N]: [B, N, ...]."""
    return ops.take_along_axis(values, beam if len(values.shape) == 2 else beam[..., None], axis=1)


def of_place(logits: Any, places: Any) -> Any:
    """Of logits [N, L, V] those at the places int32 [N]: [N, V]."""
    return ops.take_along_axis(logits, places[:, None, None], axis=1)[:, 0]
