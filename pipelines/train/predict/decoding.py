"""Beam search with static shapes, over a function that returns the next token's logits. One beam means greedy search.

    ids      int32 [B, L]   prompts, generated tokens, padding
    lengths  int32 [B]      tokens of each row so far
    next_logits(ids [N, L], lengths [N]) -> float [N, V]    for the token at position `lengths`

Each step runs the model on the N = B K rows of all K beams, without a cache, so that any model works. Final scores are
divided by ((5 + generated tokens) / 6) ** 0.6 (arXiv:1609.08144, section 7). In a tie, the lower token id wins.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

_PENALTY = 0.6
_IMPOSSIBLE = -1e30  # finite, so that sums and differences are not NaN


def beam_search(
    next_logits: Callable[[Any, Any], Any], ids: Any, lengths: Any, *, steps: int, beams: int, eos_id: int | None
) -> tuple[Any, Any]:
    """Append up to `steps` tokens to each row of `ids`, int32 [B, L], with `lengths`, int32 [B]. Empty rows stay empty.

    `next_logits`: see the top of this module. `eos_id`: id that ends a row; None: rows end when full. Return the ids
    and lengths of the best beams.
    """
    (rows, length), first_B = ids.shape, lengths
    ids_BKL = ops.repeat(ids[:, None], beams, axis=1)
    lengths_BK = ops.repeat(lengths[:, None], beams, axis=1)
    # All beams begin with the same tokens, so all except the first are excluded.
    scores_BK = ops.convert_to_tensor([[0.0] + [_IMPOSSIBLE] * (beams - 1)] * rows)
    open_BK = (lengths_BK > 0) & (lengths_BK < length)

    def step(_: Any, state: tuple) -> tuple:
        ids, lengths, scores, going = state
        flat_ids, flat_lengths = ops.reshape(ids, [rows * beams, length]), ops.reshape(lengths, [rows * beams])
        logits = ops.cast(next_logits(flat_ids, flat_lengths), "float32")
        vocab_size = logits.shape[-1]
        chances_BKV = ops.reshape(ops.log_softmax(logits), [rows, beams, vocab_size])
        # A finished sequence continues only as itself, in the slot of token 0.
        itself_V = ops.convert_to_tensor([0.0] + [_IMPOSSIBLE] * (vocab_size - 1))
        totals_BKV = scores[..., None] + ops.where(going[..., None], chances_BKV, itself_V)
        scores, best = ops.top_k(ops.reshape(totals_BKV, [rows, beams * vocab_size]), k=beams)
        beam, token = best // vocab_size, best % vocab_size
        ids, lengths, going = (_of_beam(values, beam) for values in (ids, lengths, going))
        here = ops.equal(ops.arange(length), lengths[..., None]) & going[..., None]  # a comparison, which XLA fuses
        ids = ops.where(here, token[..., None], ids)
        lengths += ops.cast(going, "int32")
        going &= lengths < length
        if eos_id is not None:
            going &= ops.not_equal(token, eos_id)
        return ids, lengths, scores, going

    state = (ids_BKL, lengths_BK, scores_BK, open_BK)
    ids_BKL, lengths_BK, scores_BK, _ = ops.fori_loop(0, steps, step, state)
    generated_BK = ops.cast(lengths_BK - first_B[:, None], "float32")
    scores_BK = scores_BK / ((5.0 + generated_BK) / 6.0) ** _PENALTY
    best_B1 = ops.argmax(scores_BK, axis=1)[:, None]
    return _of_beam(ids_BKL, best_B1)[:, 0], _of_beam(lengths_BK, best_B1)[:, 0]


def _of_beam(values: Any, beam: Any) -> Any:
    return ops.take_along_axis(values, beam if len(values.shape) == 2 else beam[..., None], axis=1)


def of_place(logits: Any, places: Any) -> Any:
    """Select the logits [N, V] at one position per row. `logits`: [N, L, V]. `places`: int32 [N]."""
    return ops.take_along_axis(logits, places[:, None, None], axis=1)[:, 0]
