"""Which groups the ranges of a split cover, and by how many rows: what a sample is chosen from, and blocks are cut of.

groups    |  0  |  1  |  2  |  3  |  4  |
ranges       [========)      [=========)
cover         a    b  c      d    e   f             parts of groups, in the order of the ranges
places        0                         18          rows are counted on from range to range
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pipelines.prepare.sources.groups import Groups

__all__ = ["Cover", "cover"]


@dataclasses.dataclass(frozen=True)
class Cover:
    """N parts of groups, in reading order: the index of the group, the number of the first row, and rows, int64 [N]."""

    groups: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def ends(self) -> np.ndarray:
        """The place behind each part, int64 [N]."""
        return np.cumsum(self.counts)


def cover(groups: Groups, ranges: Sequence[tuple[int, int]]) -> Cover:
    """The parts of groups that the ranges cover."""
    spans = np.asarray(ranges, np.int64).reshape(-1, 2)
    first = np.searchsorted(groups.ends, spans[:, 0], "right")
    counts = np.searchsorted(groups.ends, spans[:, 1] - 1, "right") - first + 1
    owner = np.repeat(np.arange(len(spans)), counts)
    group = np.arange(counts.sum()) - (np.cumsum(counts) - counts - first)[owner]
    stops = np.minimum(spans[owner, 1], groups.ends[group])
    starts = np.maximum(spans[owner, 0], groups.ends[group] - groups.num_rows[group])
    filled = starts < stops  # a group may have no rows
    return Cover(group[filled], starts[filled], (stops - starts)[filled])
