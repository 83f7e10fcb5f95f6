"""Compute evaluation metrics on the host, from the devices' sums of losses and counts, or from per-row values.

Classification metrics equal scikit-learn's, regression metrics SciPy's. Regression metrics use all pairs in float64,
because sums of squares in float32 have no correct digit for labels such as years.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

# Array in `Evaluated.rows` with the position of each row's dataset.
PART = "part"
# Array in `Evaluated.rows` that is 0 on rows that only fill a batch.
WEIGHT = "weight"
_WAITING = 100
LOWER_IS_BETTER = ("loss", "mae", "perplexity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Results of an evaluation.

    `sums`: by name, float64 sums over all examples. `rows`: by name, a value or vector for each example; empty if the
    task's metrics need only sums.
    """

    sums: Mapping[str, np.ndarray]
    rows: Mapping[str, np.ndarray]

    def mean(self, name: str) -> float:
        """Return `sums[name]` divided by the sum of the examples' weights, or NaN if all weights are 0."""
        weight = float(self.sums["weight"])
        return float(self.sums[name]) / weight if weight else math.nan


def together(results: Sequence[Evaluated]) -> Evaluated:
    """Merge the results of several datasets. `rows` gets the array PART."""
    sums = {name: np.sum([result.sums[name] for result in results], axis=0) for name in results[0].sums}
    rows: dict[str, np.ndarray] = {}
    if results[0].rows:
        rows = {name: np.concatenate([result.rows[name] for result in results]) for name in results[0].rows}
        counts = [len(result.rows[WEIGHT]) for result in results]
        rows[PART] = np.repeat(np.arange(len(results)), counts)
    return Evaluated(sums=sums, rows=rows)


def collected(steps: Iterable[Any], fetch: Callable[[Any], Any]) -> Evaluated:
    """Add up the sums of an evaluation's steps, and concatenate their per-row values.

    `steps`: for each step, its sums and rows by name, on the devices. `fetch`: copies the values of many steps to NumPy
    at once, so that the devices don't wait.
    """
    total: dict[str, Any] = {}
    parts: list[dict[str, np.ndarray]] = []
    waiting = iter(steps)
    while fetched := list(itertools.islice(waiting, _WAITING)):
        for sums, rows in fetch(fetched):
            for name, value in sums.items():
                total[name] = total.get(name, 0.0) + np.asarray(value, np.float64)
            parts.extend([rows] if rows else [])
    return Evaluated(sums=total, rows=_real_rows(parts))


def _real_rows(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    joined = {}
    for name in parts[0] if parts else ():
        arrays = [part[name] for part in parts]
        if arrays[0].ndim > 1:
            width = max(array.shape[-1] for array in arrays)
            arrays = [np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    return {name: values[joined[WEIGHT] > 0] for name, values in joined.items()}


def count(predicted: Any, labels: Any, weights: Any, *, num_classes: int) -> Any:
    """Return the weights of correct, predicted and actual examples, summed by class id: float32 [3, C]."""
    predicted, labels, weights = (ops.reshape(values, [-1]) for values in (predicted, labels, weights))
    right = ops.where(predicted == labels, weights, 0.0)
    pairs = ((right, labels), (weights, predicted), (weights, labels))
    return ops.stack([ops.segment_sum(values, classes, num_segments=num_classes) for values, classes in pairs])


def accuracy(counts: np.ndarray) -> float:
    """Return the share of correct predictions, or NaN without examples. `counts`: from `count`."""
    right, _, actual = counts.sum(axis=1).tolist()
    return float(right / actual) if actual else math.nan


def f1(counts: np.ndarray, *, positive: int = 1) -> float:
    """Return the F1 of one class, or 0 if the class is neither predicted nor actual. `counts`: from `count`."""
    right, predicted, actual = counts[:, positive].tolist()
    return float(2 * right / (predicted + actual)) if predicted + actual else 0.0


def micro_f1(counts: np.ndarray) -> float:
    """Return the F1 over all classes, or 0 if no class is predicted or actual. `counts`: from `count`."""
    return f1(counts.sum(axis=1, keepdims=True), positive=0)


def macro_f1(counts: np.ndarray) -> float:
    """Return the mean F1 of the classes that are predicted or actual; NaN if none is. `counts`: from `count`."""
    right, predicted, actual = counts
    occurs = predicted + actual > 0
    return float(np.mean(2 * right[occurs] / (predicted + actual)[occurs])) if occurs.any() else math.nan


def matthews(counts: np.ndarray) -> float:
    """Return Matthews' correlation (Gorodkin, 2004, equation 8), or 0 if undefined. `counts`: from `count`."""
    right, predicted, actual = counts
    total = actual.sum()
    covariance = right.sum() * total - predicted @ actual
    spread = math.sqrt((total**2 - predicted @ predicted) * (total**2 - actual @ actual))
    return float(covariance / spread) if spread else 0.0


def mae(predicted: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted - labels))) if len(labels) else math.nan


def pearson(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return Pearson's correlation, like `scipy.stats.pearsonr`, or NaN if either array is constant."""
    if len(labels) < 2:
        return math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.corrcoef(predicted.astype(np.float64), labels.astype(np.float64))[0, 1])


def spearman(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return Spearman's rank correlation. Equal values get their mean rank."""
    return pearson(_ranks(predicted), _ranks(labels))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]


# Limit in BERT's run_squad.py.
MOST_ANSWER_TOKENS = 30


def best_spans(logits: Any, text: Any) -> dict[str, Any]:
    """Find the best answer, of at most 30 tokens, in each of B windows.

    `logits`: float32 [B, L, 2], for the first and last token of an answer. `text`: bool [B, L], true on text tokens.

    Return `first` and `last`, positions int32 [B]; `score`, float32 [B], -inf without text; `none`, float32 [B], the
    score of "no answer", at the first position.
    """
    start_BL, end_BL = (ops.where(text, logits[..., at], -math.inf) for at in (0, 1))
    length = logits.shape[1]
    gap = np.arange(length)[None, :] - np.arange(length)[:, None]
    allowed = (gap >= 0) & (gap < MOST_ANSWER_TOKENS)
    scores = ops.where(allowed, start_BL[:, :, None] + end_BL[:, None, :], -math.inf)
    flat = ops.reshape(scores, [-1, length * length])
    best = ops.argmax(flat, axis=1)
    return {
        "first": best // length,
        "last": best % length,
        "score": ops.max(flat, axis=1),
        "none": logits[:, 0, 0] + logits[:, 0, 1],
    }


def exact_match_and_f1(rows: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the exact match and the token F1, as means over source rows (questions). Both are NaN without rows.

    A question's answer is the best of all windows, or none if "no answer" scores at least as high in every window
    (BERT, arXiv:1810.04805, section 4.3). `rows`: by name, for N windows: the results of `best_spans`; `source_row`
    [N]; `label` [N, 2], the answer's first and last position, 0 without an answer; `char_starts`, `char_ends` [N, L];
    with several datasets, `part` [N].
    """
    parts = rows.get(PART, np.zeros_like(rows["source_row"]))
    keys, of_row = np.unique(np.stack([parts, rows["source_row"]], axis=1), axis=0, return_inverse=True)
    if not len(keys):
        return math.nan, math.nan
    order = np.argsort(of_row.reshape(-1), kind="stable")
    windows = np.split(order, np.flatnonzero(np.diff(of_row.reshape(-1)[order])) + 1)
    pairs = [(_predicted(rows, of_row), _labelled(rows, of_row)) for of_row in windows]
    exact = [guess == actual for guess, actual in pairs]
    overlap = [
        2 * len(guess & actual) / (len(guess) + len(actual)) if guess or actual else 1.0 for guess, actual in pairs
    ]
    return float(np.mean(exact)), float(np.mean(overlap))


def _predicted(rows: Mapping[str, np.ndarray], windows: np.ndarray) -> frozenset[tuple[int, int]]:
    best = windows[np.argmax(rows["score"][windows])]
    if not rows["score"][best] > rows["none"][windows].min():
        return frozenset()
    return _tokens(rows, best, rows["first"][best], rows["last"][best])


def _labelled(rows: Mapping[str, np.ndarray], windows: np.ndarray) -> frozenset[tuple[int, int]]:
    for window in windows:
        first, last = rows["label"][window].tolist()
        if first or last:
            return _tokens(rows, window, first, last)
    return frozenset()


def _tokens(rows: Mapping[str, np.ndarray], window: int, first: int, last: int) -> frozenset[tuple[int, int]]:
    # A token's bounds in the text are the same in every window.
    starts, ends = (rows[name][window][first : last + 1].tolist() for name in ("char_starts", "char_ends"))
    return frozenset(zip(starts, ends, strict=True))
