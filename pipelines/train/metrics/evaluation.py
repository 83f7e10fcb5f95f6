"""What a pass over a split leaves on the host: sums, and for some tasks a few numbers of each row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["PART", "WEIGHT", "Evaluated", "is_better", "real_rows", "together"]

# Rows of several datasets, evaluated together, are told apart by this column of `rows`.
PART = "part"
# The column of `rows` that is 0 on rows that only fill up a batch.
WEIGHT = "weight"
_LOWER_IS_BETTER = ("loss", "mae", "perplexity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """`sums` float64 by name, of any shape; `rows` one value or row of values for each example, by name."""

    sums: Mapping[str, np.ndarray]
    rows: Mapping[str, np.ndarray]

    def mean(self, name: str) -> float:
        """A sum divided by the sum of weights; NaN where nothing had a weight."""
        weight = float(self.sums["weight"])
        return float(self.sums[name]) / weight if weight else math.nan


def together(found: Sequence[Evaluated]) -> Evaluated:
    """Several datasets as if they were one."""
    sums = {name: np.sum([each.sums[name] for each in found], axis=0) for name in found[0].sums}
    rows: dict[str, np.ndarray] = {}
    if found[0].rows:
        rows = {name: np.concatenate([each.rows[name] for each in found]) for name in found[0].rows}
        counts = [len(each.rows[WEIGHT]) for each in found]
        rows[PART] = np.repeat(np.arange(len(found)), counts)
    return Evaluated(sums=sums, rows=rows)


def real_rows(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of all steps without those that only fill up a batch; of windows of several lengths, as wide as the
    longest.
    """
    joined = {}
    for name in parts[0] if parts else ():
        width = max(each[name].shape[-1] for each in parts) if parts[0][name].ndim > 1 else None
        values = [each[name] if width is None else _widened(each[name], width) for each in parts]
        joined[name] = np.concatenate(values)
    return {name: values[joined[WEIGHT] > 0] for name, values in joined.items()}


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])])


def is_better(name: str, value: float, than: float | None) -> bool:
    """Whether an evaluation beats the best one before it, if any. NaN beats nothing."""
    if math.isnan(value):
        return False
    if than is None:
        return True
    return value < than if name in _LOWER_IS_BETTER else value > than
