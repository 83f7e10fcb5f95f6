"""Predicting the bytes of output of rows from the bytes of their text and their place in the split.

    bytes of a record (`pad`)                         factor
      |            . . . . . . .   cut to L             |     ____.
      |        . '                                     1|----/     \\______
      |   . '                                           |
      +------------------------- bytes of text          +------------------------ row index in the split

The curve goes through the averages of sampled rows of similar length. The factor is what the sampled rows of each
stretch of the split gave, relative to the curve: where one language follows another, the same text gives other numbers
of tokens. The shards of splits of 12.7 targets in random order, sorted by length, and of two languages hold 0.92 to
1.04 of the target as `pad` and `concat`, shuffled or not; the last ones of `pack` in sorted order up to 1.3, since long
documents leave room that a sample cannot show (`tests/prepare/plan/test_sampling.py`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["SizeModel", "fit"]

_POINTS = 48
_STRETCHES, _STRETCH_ROWS = 48, 64
# A row may be up to a million times as long as the tokenized ones.
_BEYOND = 1e6
# Lengths for which the mean output of a row group is computed, from at most this many of the rows that were read.
_LENGTHS, _GROUP_ROWS = 128, 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeModel:
    """Bytes of output as a function of a row's text bytes, times a factor that depends on its row index.

    Both are linear between points: (`text_bytes`, `output_bytes`) and (`row_indices`, `factors`), all increasing in the
    first. Row indices count in reading order.
    """

    text_bytes: np.ndarray
    output_bytes: np.ndarray
    row_indices: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))
    factors: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))

    def __call__(self, text_bytes: np.ndarray, row_indices: np.ndarray) -> np.ndarray:
        """Return the predicted output bytes of N rows, float64 [N]."""
        along = np.interp(text_bytes, self.text_bytes, self.output_bytes)
        return along * np.interp(row_indices, self.row_indices, self.factors)

    def of_groups(self, text_bytes: np.ndarray, groups: np.ndarray) -> SizeModel:
        """Return the model for the mean output of whole groups of rows, by the mean bytes of their texts.

        K rows of `text_bytes` [K] in `groups` [K] show how lengths spread around the mean of a group: widely in
        unordered data, little in sorted data. A cut row gives less than its length says, so the mean row is not enough.
        """
        _, owner = np.unique(groups, return_inverse=True)
        means = np.maximum(np.bincount(owner, weights=text_bytes) / np.bincount(owner), 1e-3)
        relative = (text_bytes / means[owner])[:: -(-len(text_bytes) // _GROUP_ROWS)]
        lengths = np.concatenate([[0.0], np.geomspace(means.min() / 1e3, means.max() * 1e3, _LENGTHS)])
        along = np.interp(np.outer(lengths, relative), self.text_bytes, self.output_bytes).mean(axis=1)
        return dataclasses.replace(self, text_bytes=lengths, output_bytes=along)


def fit(text_bytes: np.ndarray, output_bytes: np.ndarray, row_indices: np.ndarray, *, rising: bool) -> SizeModel:
    """Fit the model to N sampled rows in reading order.

    `rising`: beyond the longest row, output stays proportional to text; else it stays the same.
    """
    order = np.argsort(text_bytes, kind="stable")
    # Points are dense where many rows are, and where much of the text is: few long rows may hold half of it.
    along = np.cumsum(text_bytes[order] + max(float(text_bytes.mean()), 1.0))
    point = ((along - along[0]) / along[-1] * _POINTS).astype(np.int64)
    _, point = np.unique(point, return_inverse=True)
    rows = np.bincount(point)
    across, where = np.unique(np.bincount(point, weights=text_bytes[order]) / rows, return_inverse=True)
    up = np.bincount(where, weights=np.bincount(point, weights=output_bytes[order]) / rows) / np.bincount(where)
    if rising:
        across, up = np.append(across, max(across[-1], 1.0) * _BEYOND), np.append(up, up[-1] * _BEYOND)
    expected = np.interp(text_bytes, across, up)
    scale = output_bytes.sum() / max(float(expected.sum()), 1e-9)
    stretches = np.array_split(np.arange(len(order)), max(1, min(_STRETCHES, len(order) // _STRETCH_ROWS)))
    factors = [output_bytes[rows].sum() / max(scale * expected[rows].sum(), 1e-9) for rows in stretches]
    return SizeModel(
        text_bytes=across,
        output_bytes=up * scale,
        row_indices=np.array([row_indices[rows].mean() for rows in stretches]),
        factors=np.array(factors),
    )
