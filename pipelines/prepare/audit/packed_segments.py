"""Invariants of rows that hold several documents.

segment_ids   1 1 1 2 2 3 0 0     ascending by one from 1, then padding
positions     0 1 2 0 1 0 0 0     from 0 in each segment
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tfrecord_io.schema import Schema

__all__ = ["invariants", "lengths"]


def invariants(columns: Mapping[str, np.ndarray], schema: Schema) -> Iterator[tuple[np.ndarray, str]]:
    """Yield where each invariant holds, bool [N, L], and what a record has that breaks it; nothing without segments."""
    segments = schema.values(columns, "segment_ids")
    if segments is None:
        return
    begins = np.diff(segments, axis=1, prepend=0)
    tokens = segments > 0
    after_tokens = np.concatenate([np.ones((len(tokens), 1), bool), tokens[:, :-1]], axis=1)
    yield (
        np.where(tokens, after_tokens & ((begins == 0) | (begins == 1)), segments == 0) & tokens[:, :1],
        "segment_ids that do not ascend by one from 1 before padding",
    )
    if (positions := schema.values(columns, "positions")) is not None:
        counted = np.where(begins == 1, positions == 0, np.diff(positions, axis=1, prepend=0) == 1)
        yield np.where(tokens, counted, positions == 0), "positions that do not count each segment from 0"


def lengths(segment_ids: np.ndarray) -> np.ndarray:
    """Return the number of tokens in each segment of one row, int64 [S]."""
    return np.unique(segment_ids[segment_ids > 0], return_counts=True)[1]
