"""Results of an evaluation on the host: sums, and for some tasks a few numbers of each row."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["PART", "WEIGHT", "Evaluated", "collected", "is_better", "together"]

# Rows of several datasets, evaluated together, are told apart by this column of `rows`.
PART = "part"
# The column of `rows` that is 0 on rows that only fill up a batch.
WEIGHT = "weight"
# Steps of an evaluation whose results may wait on the devices.
_WAITING = 100
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


def collected(steps: Iterable[Any], fetch: Callable[[Any], Any]) -> Evaluated:
    """Add up a pass over a split: of each step the sums over its batch, and what is needed of each row.

    `fetch`: from values on the devices to NumPy's; many steps wait there, so that the devices don't wait for the host.
    """
    total: dict[str, Any] = {}
    parts: list[dict[str, np.ndarray]] = []
    waiting = iter(steps)
    while some := list(itertools.islice(waiting, _WAITING)):
        for sums, rows in fetch(some):
            for name, value in sums.items():
                total[name] = total.get(name, 0.0) + np.asarray(value, np.float64)
            parts.extend([rows] if rows else [])
    return Evaluated(sums=total, rows=_real_rows(parts))


def _real_rows(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of all steps without those that only fill up a batch; of windows of several lengths, as wide as the
    longest.
    """
    joined = {}
    for name in parts[0] if parts else ():
        values = [each[name] for each in parts]
        if values[0].ndim > 1:
            width = max(each.shape[-1] for each in values)
            values = [np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, width - each.shape[-1])]) for each in values]
        joined[name] = np.concatenate(values)
    return {name: values[joined[WEIGHT] > 0] for name, values in joined.items()}


def is_better(name: str, value: float, than: float | None) -> bool:
    """Return whether an evaluation beats the best one before it, if any. NaN beats nothing."""
    if math.isnan(value):
        return False
    if than is None:
        return True
    return value < than if name in _LOWER_IS_BETTER else value > than
