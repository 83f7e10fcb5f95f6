"""Histogram of row lengths in tokens, as `plan` and the report draw it.

Bin widths are powers of two, as row lengths mostly are, and a bin includes its upper edge: rows that fit are left of
the cut, and rows that do not are right of it.

    L = 32, bins of 8       1-8  9-16  17-24  25-32 | 33-40 ...
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

# Rows that are longer than this percentile, and do not fit into a row, are in the last bin.
_PERCENTILE = 99.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthHistogram:
    """Histogram of row lengths: bin i has `counts[i]` rows of more than edges[i] and at most edges[i + 1] tokens.

    The first bin also has the rows without tokens, the last one also the `beyond` rows that are longer than its edge.
    `row_lengths`: how many tokens fit into a row, ascending if there are several such lengths; the last one is the cut.
    `num_rows` rows were counted; the longest has `longest` tokens, and `longer` of them do not fit into a row.
    `cuts`: whether the layout cuts these, rather than joining rows and dividing the result.
    """

    edges: tuple[int, ...]
    counts: tuple[int, ...]
    beyond: int
    row_lengths: tuple[int, ...]
    num_rows: int
    longest: int
    longer: int
    cuts: bool = True

    @property
    def cut(self) -> int:
        """The cut, L: the number of tokens that fit into a row."""
        return self.row_lengths[-1]

    def name(self, index: int) -> str:
        """Return the label of a bin, such as `33-40`, or `41+` for the last one if rows are beyond it."""
        first, last = self.edges[index] + 1, self.edges[index + 1]
        if index == len(self.counts) - 1 and self.beyond:
            return f"{first:,}+"
        return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def count_lengths(
    lengths: np.ndarray, *, row_lengths: Sequence[int], bins: int = 32, cuts: bool = True
) -> LengthHistogram:
    """Count rows by `lengths`, int64 [N], in at most `bins` bins, which reach the cut unless rows are far shorter."""
    longest = int(lengths.max(initial=0))
    usual = int(np.percentile(lengths, _PERCENTILE)) if len(lengths) else 0
    end = max(min(longest, max(usual, row_lengths[-1])), min(row_lengths[-1], 2 * longest), 1)
    width = 1 << (-(-end // bins) - 1).bit_length()
    edges = np.arange(-(-end // width) + 1) * width
    at = np.clip((lengths - 1) // width, 0, len(edges) - 2)
    return LengthHistogram(
        edges=tuple(edges.tolist()),
        counts=tuple(np.bincount(at, minlength=len(edges) - 1).tolist()),
        beyond=int((lengths > edges[-1]).sum()),
        row_lengths=tuple(row_lengths),
        num_rows=len(lengths),
        longest=longest,
        longer=int((lengths > row_lengths[-1]).sum()),
        cuts=cuts,
    )
