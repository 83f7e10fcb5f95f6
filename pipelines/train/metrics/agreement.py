"""Agreement of predicted numbers with the labels: the same values as SciPy's, in float64.

From all pairs, not from sums of moments: in float32 those of labels such as years leave no correct digit.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["mae", "pearson", "spearman"]


def mae(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Mean absolute error; NaN of nothing."""
    return float(np.mean(np.abs(predicted - labels))) if len(labels) else math.nan


def pearson(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation, as `scipy.stats.pearsonr`; NaN where one of both is constant."""
    if len(labels) < 2:
        return math.nan
    one, other = (values - values.mean() for values in (predicted.astype(np.float64), labels.astype(np.float64)))
    spread = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / spread if spread else math.nan


def spearman(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Spearman's rank correlation, as `scipy.stats.spearmanr`; equal values share the mean of their ranks."""
    return pearson(_ranks(predicted), _ranks(labels))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[which]
