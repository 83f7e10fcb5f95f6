"""The few operations that the order is made of: written once, it runs on NumPy's arrays here and on tensors in a graph.

Beside these, arrays and tensors have the same operators: + - * // % & ^ and comparisons, on int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = ["NUMPY", "ArrayOps"]


class ArrayOps(Protocol):
    """Operations on int64 arrays [N], of NumPy or of TensorFlow."""

    def constant(self, values: np.ndarray) -> Any: ...

    def vector(self, values: Any) -> Any:
        """Numbers, or one number, as an array [N]."""
        ...

    def arange(self, start: Any, stop: Any) -> Any: ...

    def shifted(self, values: Any, bits: int) -> Any:
        """The values without their lowest bits."""
        ...

    def minimum(self, first: Any, second: Any) -> Any: ...

    def where(self, chosen: Any, values: Any, others: Any) -> Any: ...

    def indices(self, chosen: Any) -> Any:
        """Where `chosen`, bool [N], is true."""
        ...

    def count(self, chosen: Any) -> Any:
        """How many of `chosen`, bool [N], are true: int64 []."""
        ...

    def gather(self, values: Any, indices: Any) -> Any: ...

    def order(self, keys: Any) -> Any:
        """The indices that sort the keys; equal ones stay as they are."""
        ...

    def search(self, ends: Any, values: Any) -> Any:
        """How many of the ascending `ends` are at most each value."""
        ...

    def changed(self, turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        """Two arrays after some turns: `change` gets the number of a turn and both arrays, and gives new ones."""
        ...

    def changed_below(self, limit: int, change: Callable[[Any], Any], values: Any) -> Any:
        """The values, each changed at least once, and again until it is below the limit."""
        ...


class _NumpyOps:
    def constant(self, values: np.ndarray) -> np.ndarray:
        return values

    def vector(self, values: Any) -> np.ndarray:
        return np.asarray(values, np.int64).reshape(-1)

    def arange(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop, dtype=np.int64)

    def shifted(self, values: np.ndarray, bits: int) -> Any:
        return values >> bits

    def minimum(self, first: Any, second: Any) -> Any:
        return np.minimum(first, second)

    def where(self, chosen: np.ndarray, values: Any, others: Any) -> np.ndarray:
        return np.where(chosen, values, others)

    def indices(self, chosen: np.ndarray) -> np.ndarray:
        return np.flatnonzero(chosen)

    def count(self, chosen: np.ndarray) -> int:
        return int(np.count_nonzero(chosen))

    def gather(self, values: np.ndarray, indices: np.ndarray) -> Any:
        return values[indices]

    def order(self, keys: np.ndarray) -> np.ndarray:
        return np.argsort(keys, kind="stable")

    def search(self, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.searchsorted(ends, values, side="right")

    def changed(self, turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        for turn in range(turns):
            left, right = change(turn, left, right)
        return left, right

    def changed_below(self, limit: int, change: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
        values = change(values)
        while (outside := values >= limit).any():
            values = np.where(outside, change(values), values)
        return values


NUMPY: ArrayOps = _NumpyOps()
