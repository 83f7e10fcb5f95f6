"""Metrics: of classes and numbers against scikit-learn's and SciPy's, and of answers in windows of a text."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tensorflow as tf

from pipelines.train import metrics


def counted(predicted: np.ndarray, labels: np.ndarray, *, num_classes: int) -> np.ndarray:
    guesses, classes = (tf.constant(classes_of_rows, tf.int32) for classes_of_rows in (predicted, labels))
    counts = metrics.count(guesses, classes, tf.ones(predicted.shape), num_classes=num_classes)
    return counts.numpy().astype(np.float64)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(2))
def test_metrics_of_classes_are_those_of_scikit_learn(num_classes: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, num_classes, 200)
    predicted = np.where(draws.random(200) < 0.6, labels, draws.integers(0, num_classes, 200))
    counts = counted(predicted, labels, num_classes=num_classes)
    assert metrics.accuracy(counts) == pytest.approx(sklearn.metrics.accuracy_score(labels, predicted))
    expected = sklearn.metrics.f1_score(labels, predicted, average="macro")
    assert metrics.macro_f1(counts) == pytest.approx(expected)
    assert metrics.matthews(counts) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))
    if num_classes == 2:
        assert metrics.f1(counts) == pytest.approx(sklearn.metrics.f1_score(labels, predicted))


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize(
    ("predicted", "labels"),
    [([0, 0, 0], [0, 1, 0]), ([1, 1, 1], [1, 1, 1]), ([0, 0], [0, 0]), ([2, 2, 0], [0, 2, 2]), ([0, 1], [1, 0])],
)
def test_classes_that_never_occur_count_as_in_scikit_learn(predicted: list[int], labels: list[int]) -> None:
    counts = counted(np.array(predicted), np.array(labels), num_classes=4)
    expected = sklearn.metrics.f1_score(labels, predicted, average="macro")
    assert metrics.macro_f1(counts) == pytest.approx(expected)
    assert metrics.matthews(counts) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))


def test_what_has_no_weight_is_not_counted() -> None:
    guesses, classes, weights = map(tf.constant, ([[1, 1], [0, 0]], [[1, 0], [0, 0]], [[1.0, 1.0], [0.0, 1.0]]))
    counts = metrics.count(guesses, classes, weights, num_classes=2)
    np.testing.assert_array_equal(counts, [[1, 1], [1, 2], [2, 1]])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("offset", [0.0, 2000.0])
def test_correlations_are_those_of_scipy_with_ties_too(seed: int, offset: float) -> None:
    draws = np.random.default_rng(seed)
    labels = offset + draws.integers(0, 20, 100) / 4
    predicted = labels + draws.normal(size=100).round(1)
    pair = predicted.astype(np.float32).astype(np.float64), labels
    assert metrics.pearson(*pair) == pytest.approx(scipy.stats.pearsonr(*pair).statistic)
    assert metrics.spearman(*pair) == pytest.approx(scipy.stats.spearmanr(*pair).statistic)
    assert metrics.mae(*pair) == pytest.approx(sklearn.metrics.mean_absolute_error(*pair))


def test_a_constant_has_no_correlation() -> None:
    assert np.isnan(metrics.pearson(np.ones(5), np.arange(5.0)))
    assert np.isnan(metrics.spearman(np.arange(5.0), np.ones(5)))
    assert np.isnan(metrics.mae(np.zeros(0), np.zeros(0)))


STARTS, ENDS = [0, 0, 0, 4, 8, 12], [0, 0, 3, 7, 11, 15]  # [CLS] who, then four words of three letters


def windows(*rows: dict[str, Any]) -> dict[str, np.ndarray]:
    """Rows of one text each; `span` is predicted, `label` is right, `row` the source row."""
    return {
        "first": np.array([row["span"][0] for row in rows]),
        "last": np.array([row["span"][1] for row in rows]),
        "score": np.array([row.get("score", 1.0) for row in rows]),
        "none": np.array([row.get("none", 0.0) for row in rows]),
        "source_row": np.array([row.get("row", at) for at, row in enumerate(rows)]),
        "label": np.array([row["label"] for row in rows]),
        "char_starts": np.array([row.get("starts", STARTS) for row in rows]),
        "char_ends": np.array([row.get("ends", ENDS) for row in rows]),
    }


def brute_force(logits: np.ndarray, text: np.ndarray) -> tuple[int, int]:
    pairs = itertools.combinations_with_replacement(np.flatnonzero(text).tolist(), 2)
    near = [(first, last) for first, last in pairs if last < first + metrics.MOST_ANSWER_TOKENS]
    scores = {(first, last): logits[first, 0] + logits[last, 1] for first, last in near}
    return max(scores, key=lambda span: scores[span])


@pytest.mark.parametrize("seed", range(3))
def test_the_best_span_begins_before_it_ends_and_is_of_the_text(seed: int) -> None:
    draws = np.random.default_rng(seed)
    logits, text = draws.normal(size=(2, 40, 2)).astype(np.float32), draws.random((2, 40)) < 0.7
    spans = metrics.best_spans(tf.constant(logits), tf.constant(text))
    for row in range(2):
        expected = brute_force(logits[row], text[row])
        assert (int(spans["first"][row]), int(spans["last"][row])) == expected
        assert float(spans["score"][row]) == pytest.approx(logits[row, expected[0], 0] + logits[row, expected[1], 1])
    np.testing.assert_allclose(spans["none"], logits[:, 0].sum(axis=1))


@pytest.mark.parametrize(
    ("span", "label", "exact", "overlap"),
    [((2, 3), (2, 3), 1.0, 1.0), ((2, 3), (3, 5), 0.0, 0.4), ((2, 2), (4, 5), 0.0, 0.0), ((2, 2), (0, 0), 0.0, 0.0)],
)
def test_answers_compare_by_tokens(span: tuple[int, int], label: tuple[int, int], exact: float, overlap: float) -> None:
    assert metrics.exact_match_and_f1(windows({"span": span, "label": label})) == pytest.approx((exact, overlap))


def test_no_answer_is_right_where_there_is_none() -> None:
    unsure = {"span": (2, 2), "score": 0.1, "none": 0.5}
    assert metrics.exact_match_and_f1(windows({**unsure, "label": (0, 0)})) == (1.0, 1.0)
    assert metrics.exact_match_and_f1(windows({**unsure, "label": (2, 2)})) == (0.0, 0.0)


def test_the_best_of_a_rows_windows_is_its_answer() -> None:
    later = {"starts": [0, 0, 8, 12, 16, 20], "ends": [0, 0, 11, 15, 19, 23]}
    # The same words are at positions 4 and 5 of the first window, and at 2 and 3 of the second.
    rows = windows(
        {"row": 7, "span": (4, 5), "label": (4, 5), "score": 3.0},
        {"row": 7, "span": (4, 4), "label": (2, 3), "score": 1.0, **later},
        {"row": 8, "span": (2, 2), "label": (0, 0), "score": 3.0},
        {"row": 8, "span": (2, 3), "label": (2, 3), "score": 4.0, **later},
    )
    assert metrics.exact_match_and_f1(rows) == (1.0, 1.0)


def test_rows_of_several_datasets_are_kept_apart() -> None:
    rows = windows({"row": 0, "span": (2, 2), "label": (2, 2)}, {"row": 0, "span": (2, 2), "label": (3, 3)})
    assert metrics.exact_match_and_f1({**rows, "part": np.array([0, 1])}) == (0.5, 0.5)
