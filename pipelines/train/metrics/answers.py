"""Answers in windows of a text: which one is predicted, and how well it agrees with the labelled one.

    a source row, cut into windows     window 0              window 1              window 2
    best answer, and its score         "at night"  4.1       "by ear"   2.0        …
    score of no answer                  0.3                   1.1

The answer of a row is the best of all its windows; there is none if in some window no answer scores at least as high
(BERT, arXiv:1810.04805, section 4.3). It is compared with the label by characters and by tokens of the text, while
SQuAD's own script compares words without articles and punctuation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from pipelines.train.metrics.evaluation import PART

__all__ = ["MOST_ANSWER_TOKENS", "best_spans", "exact_match_and_f1"]

# As in BERT's own run_squad.py.
MOST_ANSWER_TOKENS = 30


def best_spans(logits: Any, text: Any) -> dict[str, Any]:
    """The best answer of each window.

    Args:
        logits: float32 [B, L, 2], of first and last tokens.
        text: bool [B, L], the tokens that an answer may have.

    Returns: `first` and `last` int32 [B]; `score` float32 [B], -inf in a window without text; `none` float32 [B], the
        score of no answer, which is that of the first position.
    """
    start_BL, end_BL = (ops.where(text, logits[..., at], -math.inf) for at in (0, 1))
    length = logits.shape[1]
    gap = np.arange(length)[None, :] - np.arange(length)[:, None]
    allowed = (gap >= 0) & (gap < MOST_ANSWER_TOKENS)
    scores = ops.where(allowed, start_BL[:, :, None] + end_BL[:, None, :], -math.inf)
    flat = ops.reshape(scores, [-1, length * length])
    best = ops.argmax(flat, axis=1)
    return {
        "first": best // length,
        "last": best % length,
        "score": ops.max(flat, axis=1),
        "none": logits[:, 0, 0] + logits[:, 0, 1],
    }


def exact_match_and_f1(rows: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Means over source rows, NaN of nothing.

    Args:
        rows: for each window those of `best_spans`; `source_row` [N]; `label` [N, 2], the labelled first and last
            position, 0 twice without; `char_starts`, `char_ends` [N, L]; `part` [N] where there are several datasets.
    """
    parts = rows.get(PART, np.zeros_like(rows["source_row"]))
    keys, of_row = np.unique(np.stack([parts, rows["source_row"]], axis=1), axis=0, return_inverse=True)
    if not len(keys):
        return math.nan, math.nan
    order = np.argsort(of_row.reshape(-1), kind="stable")
    windows = np.split(order, np.flatnonzero(np.diff(of_row.reshape(-1)[order])) + 1)
    scored = np.array([_score(_predicted(rows, each), _labelled(rows, each)) for each in windows])
    exact, overlap = scored.mean(axis=0).tolist()
    return exact, overlap


def _predicted(rows: Mapping[str, np.ndarray], windows: np.ndarray) -> frozenset[tuple[int, int]]:
    best = windows[np.argmax(rows["score"][windows])]
    if not rows["score"][best] > rows["none"][windows].min():
        return frozenset()
    return _tokens(rows, best, rows["first"][best], rows["last"][best])


def _labelled(rows: Mapping[str, np.ndarray], windows: np.ndarray) -> frozenset[tuple[int, int]]:
    for window in windows:
        first, last = rows["label"][window].tolist()
        if first or last:
            return _tokens(rows, window, first, last)
    return frozenset()


def _tokens(rows: Mapping[str, np.ndarray], window: int, first: int, last: int) -> frozenset[tuple[int, int]]:
    """The tokens of an answer as their characters in the text, the same in every window."""
    starts, ends = (rows[name][window][first : last + 1].tolist() for name in ("char_starts", "char_ends"))
    return frozenset(zip(starts, ends, strict=True))


def _score(predicted: frozenset[tuple[int, int]], labelled: frozenset[tuple[int, int]]) -> tuple[float, float]:
    if not predicted or not labelled:
        agree = float(predicted == labelled)
        return agree, agree
    return float(predicted == labelled), 2 * len(predicted & labelled) / (len(predicted) + len(labelled))
