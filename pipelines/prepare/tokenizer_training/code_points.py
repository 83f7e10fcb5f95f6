"""Words as arrays of Unicode code points."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["code_points"]

_AT_ONCE = 1 << 16


def code_points(words: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the code points of all words, int32 [S], and their number in each, int64 [W]."""
    lengths = pc.utf8_length(words).to_numpy(zero_copy_only=False).astype(np.int64)
    # In slices, since a Python string with characters beyond 16 bits takes four bytes for each of its characters.
    parts = [
        np.frombuffer("".join(words.slice(first, _AT_ONCE).to_pylist()).encode("utf-32-le"), np.int32)
        for first in range(0, len(words), _AT_ONCE)
    ]
    return np.concatenate([np.zeros(0, np.int32), *parts]), lengths
