"""Predicting a row's bytes of output from the bytes of its text and its position in the split.

The averages of sampled rows of similar length make a curve, for example for `pad`:

    bytes of the record
      |            . . . . . . . .     longer texts are cut to L: the curve is flat
      |        . '
      |   . '
      +---------------------------- bytes of text

A split may change along its rows, for example where one language follows another. The sample comes in clusters of
neighbouring rows, which show how far each stretch of the split lies above or below the curve:

    factor
      |     ____.                     over
     1|----/-----\\---------           the curve is right here
      |           \\______.           under
      +---------------------------- row index in the split
"""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["Curve", "fit", "groups_of_similar", "localize"]

_POINTS = 48
# The group of the longest rows, whose lengths differ most, is halved down to this size.
_LEAST_ROWS = 8
_LEAST_CLUSTERS = 8
# A row may be up to a million times as long as the tokenized ones.
_BEYOND = 1e6


@dataclasses.dataclass(frozen=True)
class Curve:
    """Bytes of output as a function of a row's text bytes, times a factor that depends on its row index.

    Both are linear between points: (`text_bytes`, `output_bytes`) and (`row_indices`, `factors`), all increasing in the
    first. Row indices count in reading order. `row_bytes` is the mean output of a row.
    """

    text_bytes: np.ndarray
    output_bytes: np.ndarray
    row_indices: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))
    factors: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))
    row_bytes: float = 1.0

    def __call__(self, text_bytes: np.ndarray, row_indices: np.ndarray | None = None) -> np.ndarray:
        """Return the predicted output bytes of N rows, float64 [N]; without `row_indices` the factor is left out."""
        along = np.interp(text_bytes, self.text_bytes, self.output_bytes)
        return along if row_indices is None or len(self.row_indices) == 1 else along * self.factor(row_indices)

    def factor(self, row_indices: np.ndarray) -> np.ndarray:
        """Return the output of rows at N row indices relative to others of their length, float64 [N]."""
        return np.interp(row_indices, self.row_indices, self.factors)


def groups_of_similar(text_bytes: np.ndarray, *, last_rows: int = 1) -> list[np.ndarray]:
    """Return the rows' indices in groups of similar length, shortest first.

    The last group has at least `last_rows` rows, or a quarter of all rows if that is fewer.
    """
    order = np.argsort(text_bytes, kind="stable")
    groups = np.array_split(order, min(_POINTS, len(order)))
    while len(groups[-1]) >= 2 * _LEAST_ROWS:
        groups[-1:] = np.array_split(groups[-1], 2)
    while len(groups[-1]) < min(last_rows, len(order) // 4):
        groups[-2:] = [np.concatenate(groups[-2:])]
    return groups


def fit(text_bytes: np.ndarray, output_bytes: np.ndarray, *, total: float, rising: bool, last_rows: int = 1) -> Curve:
    """Fit a curve through the averages of `groups_of_similar`, scaled so that the sample itself sums to `total`.

    `rising`: beyond the longest row, output stays proportional to text, at the ratio of the last group.
    """
    groups = groups_of_similar(text_bytes, last_rows=last_rows)
    across = np.array([text_bytes[group].mean() for group in groups])
    up = np.array([output_bytes[group].mean() for group in groups])
    distinct, where = np.unique(across, return_inverse=True)
    heights = np.bincount(where, weights=up) / np.bincount(where)
    if rising:
        distinct = np.append(distinct, max(distinct[-1], 1.0) * _BEYOND)
        heights = np.append(heights, heights[-1] * _BEYOND)
    heights = heights * (total / max(float(np.interp(text_bytes, distinct, heights).sum()), 1e-9))
    return Curve(distinct, heights, row_bytes=total / len(text_bytes))


def localize(
    curve: Curve, *, clusters: np.ndarray, row_indices: np.ndarray, text_bytes: np.ndarray, output_bytes: np.ndarray
) -> Curve:
    """Return the curve with a factor for each cluster of rows.

    `clusters` int64 [N] ascends and is equal for the rows of one cluster. `output_bytes` need to be right only in sum
    over a cluster.

    Clusters differ partly by chance. Neighbouring clusters differ by chance alone (or by changes too fast to follow),
    so comparing the differences between neighbours with those between all clusters gives the real share of the variance
    (von Neumann's ratio). The factors keep only that share.
    """
    _, cluster = np.unique(clusters, return_inverse=True)
    expected = np.bincount(cluster, weights=curve(text_bytes, row_indices))
    found = np.bincount(cluster, weights=output_bytes)
    known = expected > 0
    if known.sum() < _LEAST_CLUSTERS or found.sum() <= 0:
        return curve
    ratios = found[known] / expected[known] * (expected.sum() / found.sum())
    chance = float((np.diff(ratios) ** 2).mean() / 2)
    share = max(0.0, 1.0 - chance / max(float(ratios.var()), 1e-12))
    centres = np.bincount(cluster, weights=row_indices) / np.bincount(cluster)
    return dataclasses.replace(curve, row_indices=centres[known], factors=1.0 + share * (ratios - 1.0))
