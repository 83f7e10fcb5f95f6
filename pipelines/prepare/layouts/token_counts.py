"""How many tokens a record holds, whatever its layout."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfrecord_io.schema import Role, Schema

__all__ = ["count_tokens"]


def count_tokens(columns: Mapping[str, np.ndarray], schema: Schema) -> np.ndarray:
    """Tokens of each record that are not padding, int64 [n], by the schema's masks, segments or counts."""
    marking: tuple[Role, ...] = ("attention_mask", "segment_ids", "target_mask")
    marks = [feature for role in marking if (feature := schema.with_role(role)) is not None]
    counts = [np.count_nonzero(columns[feature.name], axis=1) for feature in marks]
    if (feature := schema.with_role("num_tokens")) is not None:
        counts.append(columns[feature.name].astype(np.int64))
    return np.sum(counts, axis=0)
