"""Metrics of classes, all from three counts of each class: examples that are right, predicted, and actual.

    labels 0 0 1 2, predicted 0 1 1 1           class   0  1  2
                                                right   1  1  0
                                            predicted   1  3  0
                                               actual   2  1  1

The numbers are scikit-learn's (`f1_score`, `matthews_corrcoef`), for which a matrix of all pairs of classes would be
needed only to look at; the counts of 10,000 classes are 120 kB, the matrix is 400 MB.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from keras import ops

__all__ = ["accuracy", "count", "f1", "macro_f1", "matthews", "micro_f1"]


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
