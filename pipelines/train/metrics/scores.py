"""Metrics of classes, as scikit-learn's, and of numbers, as SciPy's.

Those of classes come from three counts of each class: examples that are right, predicted, and actual.

    labels 0 0 1 2, predicted 0 1 1 1           class   0  1  2
                                                right   1  1  0
                                            predicted   1  3  0
                                               actual   2  1  1

A matrix of all pairs of classes would be needed only to look at; the counts of 10,000 classes are 120 kB, the matrix is
400 MB. Those of numbers come from all pairs, in float64, not from sums of moments: in float32 those of labels such as
years leave no correct digit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from keras import ops

__all__ = ["accuracy", "count", "f1", "macro_f1", "mae", "matthews", "micro_f1", "pearson", "spearman"]


def count(predicted: Any, labels: Any, weights: Any, *, num_classes: int) -> Any:
    """float32 [3, C]: right, predicted and actual, each the sum of weights. The arguments have one shape."""
    predicted, labels, weights = (ops.reshape(each, [-1]) for each in (predicted, labels, weights))
    right = ops.where(predicted == labels, weights, 0.0)
    return ops.stack(
        [
            ops.segment_sum(values, classes, num_segments=num_classes)
            for values, classes in ((right, labels), (weights, predicted), (weights, labels))
        ]
    )


def accuracy(counts: np.ndarray) -> float:
    """Share that is right; NaN of nothing."""
    right, _, actual = counts.sum(axis=1).tolist()
    return float(right / actual) if actual else math.nan


def f1(counts: np.ndarray, *, positive: int = 1) -> float:
    """F1 of one class, 0 where it is neither predicted nor actual: scikit-learn's `f1_score(average="binary")`."""
    right, predicted, actual = counts[:, positive].tolist()
    return float(2 * right / (predicted + actual)) if predicted + actual else 0.0


def micro_f1(counts: np.ndarray) -> float:
    """F1 of all classes together, 0 where none is predicted or actual: `f1_score(average="micro")`."""
    return f1(counts.sum(axis=1, keepdims=True), positive=0)


def macro_f1(counts: np.ndarray) -> float:
    """Mean F1 of the classes that are predicted or actual: `f1_score(average="macro")`."""
    right, predicted, actual = counts
    seen = predicted + actual > 0
    return float(np.mean(2 * right[seen] / (predicted + actual)[seen])) if seen.any() else math.nan


def matthews(counts: np.ndarray) -> float:
    """Matthews' correlation coefficient, of any number of classes (Gorodkin, 2004, equation 8); 0 where it is 0 / 0."""
    right, predicted, actual = counts
    total = actual.sum()
    covariance = right.sum() * total - predicted @ actual
    spread = math.sqrt((total**2 - predicted @ predicted) * (total**2 - actual @ actual))
    return float(covariance / spread) if spread else 0.0


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
