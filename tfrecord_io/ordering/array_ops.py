"""The few operations that the order is made of: written once, it runs on NumPy's arrays here and on tensors in a graph.

Beside these, arrays and tensors have the same operators: + - * // % & ^ and comparisons, on int64.
`input_pipeline.tensor_ops` has the same methods for tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["NUMPY", "ArrayOps"]

ArrayOps = Any


class _NumpyOps:
    def constant(self, values: np.ndarray) -> np.ndarray:
        return values

    def vector(self, values: Any) -> np.ndarray:
        """Return numbers, or one number, as an array [N]."""
        return np.asarray(values, np.int64).reshape(-1)

    def arange(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop, dtype=np.int64)

    def shifted(self, values: np.ndarray, bits: int) -> Any:
        """Drop the lowest bits."""
        return values >> bits

    def minimum(self, first: Any, second: Any) -> Any:
        return np.minimum(first, second)

    def where(self, chosen: np.ndarray, values: Any, others: Any) -> np.ndarray:
        return np.where(chosen, values, others)

    def indices(self, chosen: np.ndarray) -> np.ndarray:
        """Return where `chosen`, bool [N], is true."""
        return np.flatnonzero(chosen)

    def count(self, chosen: np.ndarray) -> int:
        """Count the true ones: int64 []."""
        return int(np.count_nonzero(chosen))

    def gather(self, values: np.ndarray, indices: np.ndarray) -> Any:
        return values[indices]

    def order(self, keys: np.ndarray) -> np.ndarray:
        """Return the indices that sort the keys; equal ones stay as they are."""
        return np.argsort(keys, kind="stable")

    def search(self, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Count the ascending `ends` that are at most each value."""
        return np.searchsorted(ends, values, side="right")

    def changed(self, turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        """Change two arrays some times: `change` gets the number of a turn and both arrays, and gives new ones."""
        for turn in range(turns):
            left, right = change(turn, left, right)
        return left, right

    def changed_below(self, limit: int, change: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
        """Change each value at least once, and again until it is below the limit."""
        values = change(values)
        while (outside := values >= limit).any():
            values = np.where(outside, change(values), values)
        return values


NUMPY = _NumpyOps()
