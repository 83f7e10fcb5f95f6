"""Invariants of targets: tokens, then padding on the right, whatever the padding side of the inputs.

target_ids    t g t . .
target_mask   1 1 1 0 0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Schema

__all__ = ["invariants", "tokens"]


def invariants(columns: Mapping[str, np.ndarray], manifest: Manifest) -> Iterator[tuple[np.ndarray, str]]:
    """Yield where each invariant holds, bool [N, T], and what a record has that breaks it; nothing without targets."""
    found = _features(columns, manifest.schema)
    if found is None:
        return
    ids, mask = found
    pad_id, vocab_size = manifest.tokenizer.pad_id, manifest.tokenizer.vocab_size
    yield (ids >= 0) & (ids < vocab_size), f"a target id outside 0 to {vocab_size - 1}"
    yield (mask == 0) | (mask == 1), "a target mask with other values than 0 and 1"
    before = np.concatenate([np.ones((len(mask), 1), mask.dtype), mask[:, :-1]], axis=1)
    yield mask <= before, "a target mask that is not one run of 1 before padding on the right"
    yield (ids == pad_id) | (mask == 1), f"something else than the pad id {pad_id} in the padding of a target"


def tokens(row: Mapping[str, np.ndarray], schema: Schema) -> np.ndarray | None:
    """Return the target of one record without padding, int64 [n]; None without targets."""
    found = _features(row, schema)
    return None if found is None else found[0][found[1] == 1]


def _features(columns: Mapping[str, np.ndarray], schema: Schema) -> tuple[np.ndarray, np.ndarray] | None:
    ids, mask = schema.with_role("target_ids"), schema.with_role("target_mask")
    return None if ids is None or mask is None else (columns[ids.name], columns[mask.name])
