"""Predicting the bytes of output of a row group's rows from the bytes of the group alone.

    bytes of a row as the source counts them ──► bytes of its text ──► bytes of output of rows about that long

What the source counts is not quite the text: other columns count too, and a dictionary counts only its entries. The
groups that the sample has read show the relation between the two.

Rows of a group differ in length, so the output of a row of mean length is not the mean output (`pad` cuts long rows).
How rows spread around the mean of their group is taken from the same groups: widely in unordered data, little in data
sorted by length:

    rows of the sample, each by the mean of its group       0.3  0.5  0.8  1.0  1.9  ...
    a group of 400 bytes a row                              120  200  320  400  760  ...  ──► mean of the curve there
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.plan.size_curve import Curve
from pipelines.prepare.sources.parquet.groups import Groups

__all__ = ["GroupCurve", "GroupRows", "fit"]

# The relation between the bytes of groups and of texts goes through at most this many points, each of this many rows;
# beyond them it is proportional.
_MOST_POINTS = 8
_BEYOND = 1e6
_POINT_ROWS = 1000
_QUANTILES = 512
_LENGTHS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupRows:
    """The rows of N groups: the usable `share` of them, and the group's bytes for each usable row (float64 [N])."""

    share: np.ndarray
    row_bytes: np.ndarray

    @classmethod
    def of(cls, groups: Groups, *, nulls: np.ndarray) -> GroupRows:
        """Count every row as usable except `nulls` [N] of each group, which take no bytes."""
        rows = np.maximum(groups.num_rows, 1)
        usable = np.maximum(rows - nulls, 0)
        return cls(share=usable / rows, row_bytes=groups.num_bytes / np.maximum(usable, 1))

    def with_share(self, share: float) -> GroupRows:
        """Return the same with only a `share` of these rows usable."""
        return dataclasses.replace(self, share=self.share * share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupCurve:
    """Two curves through points, both increasing: from a group's `row_bytes` to the mean bytes of its `texts`, and from
    mean `lengths` of texts to `output_bytes`. The factor along the split is that of `curve`, the one of single rows.
    """

    row_bytes: np.ndarray
    texts: np.ndarray
    lengths: np.ndarray
    output_bytes: np.ndarray
    curve: Curve

    def text_bytes(self, row_bytes: np.ndarray) -> np.ndarray:
        """Return the mean bytes of text of rows in groups with `row_bytes` a row, float64 [N]."""
        return np.interp(row_bytes, self.row_bytes, self.texts)

    def __call__(self, row_bytes: np.ndarray, row_indices: np.ndarray) -> np.ndarray:
        """Return the mean bytes of output of rows in groups with `row_bytes` a row, at `row_indices`, float64 [N]."""
        along = np.interp(self.text_bytes(row_bytes), self.lengths, self.output_bytes)
        return np.asarray(along * self.curve.factor(row_indices))


def fit(curve: Curve, *, text_bytes: np.ndarray, groups: np.ndarray, row_bytes: np.ndarray, exact: bool) -> GroupCurve:
    """Fit the curve for groups of `row_bytes` [G] a row from K usable rows, their `text_bytes` [K] and `groups` [K].

    `exact`: these are all rows of their groups.
    """
    read, owner = np.unique(groups, return_inverse=True)
    rows = np.bincount(owner)
    means = np.bincount(owner, weights=text_bytes) / rows
    points, texts = _texts(row_bytes[read], means, rows)
    found = np.interp(row_bytes, points, texts)
    expected = means if exact else found[read]
    relative = _quantiles(text_bytes / np.maximum(expected, 1e-9)[owner], weights=1.0 / rows[owner])
    lengths = np.unique(np.geomspace(max(float(found.min()), 1e-3), max(float(found.max()), 1e-3), _LENGTHS))
    lengths = np.concatenate([[0.0], lengths])
    heights = curve(np.outer(lengths, relative).ravel()).reshape(len(lengths), -1).mean(axis=1)
    return GroupCurve(row_bytes=points, texts=texts, lengths=lengths, output_bytes=heights, curve=curve)


def _texts(row_bytes: np.ndarray, means: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points through groups of similar bytes a row: these bytes, increasing, and the mean bytes of text."""
    count = max(1, min(_MOST_POINTS, len(rows) // 2, int(rows.sum()) // _POINT_ROWS))
    parts = np.array_split(np.argsort(row_bytes, kind="stable"), count)
    centres = np.array([row_bytes[part].mean() for part in parts])
    distinct, where = np.unique(np.maximum(centres, 1e-9), return_inverse=True)
    texts = np.bincount(where, weights=[means[part].mean() for part in parts]) / np.bincount(where)
    return np.array([0.0, *distinct, distinct[-1] * _BEYOND]), np.array([0.0, *texts, texts[-1] * _BEYOND])


def _quantiles(values: np.ndarray, *, weights: np.ndarray) -> np.ndarray:
    """Return `_QUANTILES` values with the distribution and mean of many weighted ones."""
    order = np.argsort(values, kind="stable")
    along = np.concatenate([[0.0], np.cumsum(weights[order])])
    total = np.concatenate([[0.0], np.cumsum((values * weights)[order])])
    edges = np.linspace(0.0, along[-1], _QUANTILES + 1)
    return np.diff(np.interp(edges, along, total)) / (along[-1] / _QUANTILES)
