"""How many bytes of output a row will give, from the bytes of its text and its place in the split.

The sample's averages over rows of similar length make a curve, for example for `pad`:

    bytes of the record
      |            . . . . . . . .     longer texts are cut to L: the curve is flat
      |        . '
      |   . '
      +---------------------------- bytes of text

A split may change on its way, as where one language follows another. The sample comes in clusters of neighbouring
rows, so that it shows by how much each stretch lies above or below the curve:

    factor
      |     ____.                     over
     1|----/-----\\---------           the curve is right here
      |           \\______.           under
      +---------------------------- place in the split
"""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["Curve", "fit", "groups_of_similar", "localize"]

_POINTS = 48
# The longest group is halved until it is this small: at that end lengths differ most.
_LEAST_ROWS = 8
_LEAST_CLUSTERS = 8
# A row may be a million times as long as those that were tokenized.
_BEYOND = 1e6


@dataclasses.dataclass(frozen=True)
class Curve:
    """Bytes of output through points of increasing `text_bytes`, times a factor through points of increasing
    `places`, which are row numbers in the order of reading.
    """

    text_bytes: np.ndarray
    output_bytes: np.ndarray
    places: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))
    factors: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))
    row_bytes: float = 1.0

    def __call__(self, text_bytes: np.ndarray, places: np.ndarray | None = None) -> np.ndarray:
        """Predicted output bytes of N rows, float64 [N]; without `places`, of rows from anywhere."""
        along = np.interp(text_bytes, self.text_bytes, self.output_bytes)
        return along if places is None or len(self.places) == 1 else along * self.factor(places)

    def factor(self, places: np.ndarray) -> np.ndarray:
        """By how much rows at N places give more than others of their length, float64 [N]."""
        return np.interp(places, self.places, self.factors)


def groups_of_similar(text_bytes: np.ndarray, *, last_rows: int = 1) -> list[np.ndarray]:
    """The rows' indices in groups of similar length, shortest first; at least `last_rows` in the last one, but not
    more for that than a quarter of all.
    """
    order = np.argsort(text_bytes, kind="stable")
    groups = np.array_split(order, min(_POINTS, len(order)))
    while len(groups[-1]) >= 2 * _LEAST_ROWS:
        groups[-1:] = np.array_split(groups[-1], 2)
    while len(groups[-1]) < min(last_rows, len(order) // 4):
        groups[-2:] = [np.concatenate(groups[-2:])]
    return groups


def fit(text_bytes: np.ndarray, output_bytes: np.ndarray, *, total: float, rising: bool, last_rows: int = 1) -> Curve:
    """A curve through the averages of `groups_of_similar`, scaled so that the sample's own sum is `total`; `rising`
    goes on in proportion beyond the longest row, as the last group has it, which is of `last_rows` or more.
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
    curve: Curve, *, clusters: np.ndarray, places: np.ndarray, text_bytes: np.ndarray, output_bytes: np.ndarray
) -> Curve:
    """The curve with a factor for each cluster. `clusters` int64 [N] ascends and is equal for the rows of one; what
    `output_bytes` says of a row need be right only in sum over its cluster.

    What clusters differ by is partly chance. Neighbours differ by chance (and by what changes too fast to follow)
    alone, so that the differences between neighbours, against those between all, tell what share of it is real
    (von Neumann's ratio); the factors keep that share.
    """
    _, cluster = np.unique(clusters, return_inverse=True)
    expected = np.bincount(cluster, weights=curve(text_bytes, places))
    found = np.bincount(cluster, weights=output_bytes)
    known = expected > 0
    if known.sum() < _LEAST_CLUSTERS or found.sum() <= 0:
        return curve
    ratios = found[known] / expected[known] * (expected.sum() / found.sum())
    chance = float((np.diff(ratios) ** 2).mean() / 2)
    share = max(0.0, 1.0 - chance / max(float(ratios.var()), 1e-12))
    centres = np.bincount(cluster, weights=places) / np.bincount(cluster)
    return dataclasses.replace(curve, places=centres[known], factors=1.0 + share * (ratios - 1.0))
