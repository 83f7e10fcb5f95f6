"""Metrics against scikit-learn's and SciPy's, on random examples and on the odd ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tensorflow as tf

from pipelines.train.metrics import scores


def counted(predicted: np.ndarray, labels: np.ndarray, *, num_classes: int) -> np.ndarray:
    """Counts as an evaluation has them: from the device, in float64."""
    guesses, classes = (tf.constant(each, tf.int32) for each in (predicted, labels))
    counts = scores.count(guesses, classes, tf.ones(predicted.shape), num_classes=num_classes)
    return counts.numpy().astype(np.float64)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_classes_are_those_of_scikit_learn(num_classes: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, num_classes, 200)
    predicted = np.where(draws.random(200) < 0.6, labels, draws.integers(0, num_classes, 200))
    counts = counted(predicted, labels, num_classes=num_classes)
    assert scores.accuracy(counts) == pytest.approx(sklearn.metrics.accuracy_score(labels, predicted))
    expected = sklearn.metrics.f1_score(labels, predicted, average="macro")
    assert scores.macro_f1(counts) == pytest.approx(expected)
    assert scores.matthews(counts) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))
    if num_classes == 2:
        assert scores.f1(counts) == pytest.approx(sklearn.metrics.f1_score(labels, predicted))


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize(
    ("predicted", "labels"),
    [([0, 0, 0], [0, 1, 0]), ([1, 1, 1], [1, 1, 1]), ([0, 0], [0, 0]), ([2, 2, 0], [0, 2, 2]), ([0, 1], [1, 0])],
)
def test_classes_that_never_occur_count_as_in_scikit_learn(predicted: list[int], labels: list[int]) -> None:
    counts = counted(np.array(predicted), np.array(labels), num_classes=4)
    expected = sklearn.metrics.f1_score(labels, predicted, average="macro")
    assert scores.macro_f1(counts) == pytest.approx(expected)
    assert scores.matthews(counts) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))


def test_what_has_no_weight_is_not_counted() -> None:
    counts = scores.count(
        tf.constant([[1, 1], [0, 0]]),
        tf.constant([[1, 0], [0, 0]]),
        tf.constant([[1.0, 1.0], [0.0, 1.0]]),
        num_classes=2,
    )
    np.testing.assert_array_equal(counts, [[1, 1], [1, 2], [2, 1]])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offset", [0.0, 2000.0])
def test_correlations_are_those_of_scipy_with_ties_too(seed: int, offset: float) -> None:
    draws = np.random.default_rng(seed)
    labels = offset + draws.integers(0, 20, 100) / 4
    predicted = labels + draws.normal(size=100).round(1)
    pair = predicted.astype(np.float32).astype(np.float64), labels
    assert scores.pearson(*pair) == pytest.approx(scipy.stats.pearsonr(*pair).statistic)
    assert scores.spearman(*pair) == pytest.approx(scipy.stats.spearmanr(*pair).statistic)
    assert scores.mae(*pair) == pytest.approx(sklearn.metrics.mean_absolute_error(*pair))


def test_a_constant_has_no_correlation() -> None:
    assert np.isnan(scores.pearson(np.ones(5), np.arange(5.0)))
    assert np.isnan(scores.spearman(np.arange(5.0), np.ones(5)))
    assert np.isnan(scores.mae(np.zeros(0), np.zeros(0)))
