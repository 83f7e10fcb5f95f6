"""Counts the tokens of records of any layout."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfrecord_io.schema import Role, Schema

__all__ = ["count_tokens"]


def count_tokens(columns: Mapping[str, np.ndarray], schema: Schema) -> np.ndarray:
    """Return the tokens of each record that are not padding, int64 [n], from its masks, segments or counts."""
    nonzero_on_tokens: tuple[Role, ...] = ("attention_mask", "segment_ids", "target_mask")
    features = [feature for role in nonzero_on_tokens if (feature := schema.with_role(role)) is not None]
    counts = [np.count_nonzero(columns[feature.name], axis=1) for feature in features]
    if (feature := schema.with_role("num_tokens")) is not None:
        counts.append(columns[feature.name].astype(np.int64))
    return np.sum(counts, axis=0)
