"""Evaluation metrics: from logits and labels to named numbers.

    on the devices                                        on the host, in float64
    counts         [3, C] right, predicted, actual   ──►  accuracy, f1, macro_f1, matthews
    sums           losses, weights                   ──►  loss, perplexity
                   rows, if sums are not enough      ──►  mae, pearson, spearman, exact_match, token_f1

Classification metrics match scikit-learn's. Regression metrics match SciPy's, in float64 from all pairs, because
float32 moments of labels such as years leave no correct digit.

If a row's text was cut into windows, its answer is the best of all windows. It has none if "no answer" scores at least
as high in some window (BERT, arXiv:1810.04805, section 4.3). Answers are compared by tokens; SQuAD's own script
compares words without articles and punctuation.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

# Column of `rows` with each row's dataset number.
PART = "part"
# Column of `rows` that is 0 on fill rows.
WEIGHT = "weight"
_WAITING = 100
_LOWER_IS_BETTER = ("loss", "mae", "perplexity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Results of an evaluation, by name: `sums` float64; `rows` with one value or vector per example."""

    sums: Mapping[str, np.ndarray]
    rows: Mapping[str, np.ndarray]

    def mean(self, name: str) -> float:
        """Return the sum `name` divided by the sum of weights; NaN if that is 0."""
        weight = float(self.sums["weight"])
        return float(self.sums[name]) / weight if weight else math.nan


def together(found: Sequence[Evaluated]) -> Evaluated:
    """Merge the results of several datasets; `rows` gets the column PART."""
    sums = {name: np.sum([each.sums[name] for each in found], axis=0) for name in found[0].sums}
    rows: dict[str, np.ndarray] = {}
    if found[0].rows:
        rows = {name: np.concatenate([each.rows[name] for each in found]) for name in found[0].rows}
        counts = [len(each.rows[WEIGHT]) for each in found]
        rows[PART] = np.repeat(np.arange(len(found)), counts)
    return Evaluated(sums=sums, rows=rows)


def collected(steps: Iterable[Any], fetch: Callable[[Any], Any]) -> Evaluated:
    """Add up the sums of all steps of an evaluation, and join their per-row values.

    `fetch` copies the values of many steps to NumPy at once, so that devices don't wait.
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
    joined = {}
    for name in parts[0] if parts else ():
        values = [each[name] for each in parts]
        if values[0].ndim > 1:
            width = max(each.shape[-1] for each in values)
            values = [np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, width - each.shape[-1])]) for each in values]
        joined[name] = np.concatenate(values)
    return {name: values[joined[WEIGHT] > 0] for name, values in joined.items()}


def is_better(name: str, value: float, than: float | None) -> bool:
    """Return whether `value` beats `than`, the previous best. NaN beats nothing."""
    if math.isnan(value):
        return False
    if than is None:
        return True
    return value < than if name in _LOWER_IS_BETTER else value > than


def count(predicted: Any, labels: Any, weights: Any, *, num_classes: int) -> Any:
    """Count correct, predicted and actual examples per class, by weight: float32 [3, C]."""
    predicted, labels, weights = (ops.reshape(each, [-1]) for each in (predicted, labels, weights))
    right = ops.where(predicted == labels, weights, 0.0)
    return ops.stack(
        [
            ops.segment_sum(values, classes, num_segments=num_classes)
            for values, classes in ((right, labels), (weights, predicted), (weights, labels))
        ]
    )


def accuracy(counts: np.ndarray) -> float:
    """Return the share of correct predictions; NaN without examples."""
    right, _, actual = counts.sum(axis=1).tolist()
    return float(right / actual) if actual else math.nan


def f1(counts: np.ndarray, *, positive: int = 1) -> float:
    """Return F1 of one class, 0 if it is neither predicted nor actual."""
    right, predicted, actual = counts[:, positive].tolist()
    return float(2 * right / (predicted + actual)) if predicted + actual else 0.0


def micro_f1(counts: np.ndarray) -> float:
    """Return F1 of all classes together, 0 if none is predicted or actual."""
    return f1(counts.sum(axis=1, keepdims=True), positive=0)


def macro_f1(counts: np.ndarray) -> float:
    """Return the mean F1 of the classes that are predicted or actual."""
    right, predicted, actual = counts
    seen = predicted + actual > 0
    return float(np.mean(2 * right[seen] / (predicted + actual)[seen])) if seen.any() else math.nan


def matthews(counts: np.ndarray) -> float:
    """Return Matthews' correlation coefficient (Gorodkin, 2004, equation 8); 0 if it is 0 / 0."""
    right, predicted, actual = counts
    total = actual.sum()
    covariance = right.sum() * total - predicted @ actual
    spread = math.sqrt((total**2 - predicted @ predicted) * (total**2 - actual @ actual))
    return float(covariance / spread) if spread else 0.0


def mae(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean absolute error; NaN without examples."""
    return float(np.mean(np.abs(predicted - labels))) if len(labels) else math.nan


def pearson(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return Pearson's correlation, like `scipy.stats.pearsonr`; NaN if either side is constant."""
    if len(labels) < 2:
        return math.nan
    one, other = (values - values.mean() for values in (predicted.astype(np.float64), labels.astype(np.float64)))
    spread = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / spread if spread else math.nan


def spearman(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""
    return pearson(_ranks(predicted), _ranks(labels))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[which]


# Limit of BERT's own run_squad.py.
MOST_ANSWER_TOKENS = 30


def best_spans(logits: Any, text: Any) -> dict[str, Any]:
    """Find the best answer in each window, from logits float32 [B, L, 2] and its allowed tokens, bool [B, L].

    Returns: `first` and `last` int32 [B]; `score` float32 [B], -inf without text; `none` float32 [B], the first
        position's score, which means "no answer".
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
    """Return exact match and token F1 of answers, as means over source rows; NaN without rows.

    `rows`: for each window the results of `best_spans`; `source_row` [N]; `label` [N, 2], the first and last position,
    0 twice without an answer; `char_starts`, `char_ends` [N, L]; `part` [N] if there are several datasets.
    """
    parts = rows.get(PART, np.zeros_like(rows["source_row"]))
    keys, of_row = np.unique(np.stack([parts, rows["source_row"]], axis=1), axis=0, return_inverse=True)
    if not len(keys):
        return math.nan, math.nan
    order = np.argsort(of_row.reshape(-1), kind="stable")
    windows = np.split(order, np.flatnonzero(np.diff(of_row.reshape(-1)[order])) + 1)
    pairs = [(_predicted(rows, each), _labelled(rows, each)) for each in windows]
    both = [2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0 for one, other in pairs]
    scored = np.array([(one == other, share) for (one, other), share in zip(pairs, both, strict=True)], np.float64)
    exact, overlap = scored.mean(axis=0).tolist()
    return exact, overlap


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
    """Return (start, end) of an answer's tokens in the text, which are the same in every window."""
    starts, ends = (rows[name][window][first : last + 1].tolist() for name in ("char_starts", "char_ends"))
    return frozenset(zip(starts, ends, strict=True))
