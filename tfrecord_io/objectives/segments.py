"""Which tokens of packed rows see each other, in operators that every library of arrays has."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["segment_attention_mask"]


def segment_attention_mask(segment_ids_BL: Any, *, causal: bool) -> Any:
    """Return which tokens of packed rows attend to each other: those of the same segment, and with `causal` none that
    comes later.

        segment_ids  1 1 2 0      causal=True   1 0 0 0      row: the token that looks,
                                                1 1 0 0      column: the one that it sees;
                                                0 0 1 0      padding sees nothing and is seen by nothing
                                                0 0 0 0

    So a token of a packed row gets what it would get if its document stood alone (arXiv:2107.02027).
    Where all scores of a token are masked, as those of padding are, a softmax must not subtract infinities.

    Args:
        segment_ids_BL: integers [B, L] of TensorFlow, JAX or NumPy, 1, 2, ... on the tokens of each segment, 0 on
            padding.
        causal: whether a token sees only itself and those before it.

    Returns: bool [B, L, L], [row, the token that looks, the token that is seen].
    """
    seen_BLL = segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :]
    mask_BLL = seen_BLL & (segment_ids_BL > 0)[:, None, :]
    if not causal:
        return mask_BLL
    place_L = np.arange(segment_ids_BL.shape[1])
    return mask_BLL & (place_L[:, None] >= place_L)
