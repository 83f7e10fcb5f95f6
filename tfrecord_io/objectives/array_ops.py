"""Operations that NumPy and TensorFlow name differently, so that one description of an objective runs on both.

Operators and slices are the same for arrays and tensors, and need nothing here. `NumpyOps` has all operations for
arrays; `tensor_ops.TensorOps` has the same methods for a graph. Each also makes the random draws: those of arrays from
a generator, those of a graph from a stateless seed, of which `split` gives independent ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NumpyOps"]


class NumpyOps:
    """Operations on arrays [B, n], with draws from a generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def split(self, count: int) -> list[Any]:
        """Return sources of independent draws."""
        return [self] * count

    def uniform(self, shape: Any) -> Any:
        """Draw float32 in [0, 1)."""
        return self._rng.random(shape, np.float32)

    def ranks(self, shape: Any) -> Any:
        """Draw floats in [0, 1) to sort positions by."""
        return self._rng.random(shape)

    def chosen_from(self, values: np.ndarray, shape: Any) -> Any:
        """Draw one of `values` for each place."""
        return values[self._rng.integers(0, len(values), shape)]

    def table(self, values: np.ndarray, indices: Any) -> Any:
        """Look up values [V] by indices."""
        return values[indices]

    def take(self, values_BW: Any, indices_BL: Any) -> Any:
        """Gather within each row."""
        return np.take_along_axis(values_BW, indices_BL, axis=1)

    def replaced(self, values_BW: Any, places_BP: Any, by_BP: Any) -> Any:
        """Return the rows with other values at some places, which differ from row to row."""
        found = values_BW.copy()
        np.put_along_axis(found, places_BP, by_BP, axis=1)
        return found

    def where(self, chosen: Any, values: Any, others: Any) -> Any:
        """Choose between values, of the dtype of `others`, or of `values` if `others` is a number."""
        like = others if isinstance(others, np.ndarray) else values
        return np.where(chosen, values, others).astype(like.dtype, copy=False)

    def maximum(self, values: Any, others: Any) -> Any:
        return np.maximum(values, others)

    def minimum(self, values: Any, others: Any) -> Any:
        return np.minimum(values, others)

    def total(self, values_BL: Any) -> Any:
        """Sum each row: integers [B]."""
        return values_BL.sum(axis=1)

    def cumsum(self, values_BL: Any) -> Any:
        """Sum each row up to each place, inclusive: integers [B, L]."""
        return np.cumsum(values_BL, axis=1)

    def shifted(self, values_BL: Any, fill: int) -> Any:
        """Move values one place to the right."""
        return np.pad(values_BL[:, :-1], ((0, 0), (1, 0)), constant_values=fill)

    def shifted_left(self, values_BL: Any, fill: int) -> Any:
        """Move values one place to the left."""
        return np.pad(values_BL[:, 1:], ((0, 0), (0, 1)), constant_values=fill)

    def full(self, width: int, fill: int, like: Any) -> Any:
        """Return rows of one value, as many as `like` has and of its dtype."""
        return np.full((len(like), width), fill, like.dtype)

    def arange(self, start: int, stop: int) -> Any:
        return np.arange(start, stop)

    def concat(self, parts: Any) -> Any:
        """Join columns."""
        return np.concatenate(parts, axis=1)

    def sort(self, values_BL: Any) -> Any:
        return np.sort(values_BL, axis=1)

    def largest(self, values_BL: Any, count: int) -> Any:
        """Return the places of the largest values of each row."""
        return np.argsort(-values_BL, axis=1)[:, :count]

    def integers(self, values: Any, like: Any) -> Any:
        """Convert to integers of the dtype of `like`."""
        return np.asarray(values).astype(like.dtype)

    def floats(self, values: Any) -> Any:
        return np.asarray(values).astype(np.float32)

    def ones(self, like: Any) -> Any:
        """Return float32 [B]."""
        return np.ones(len(like), np.float32)
