"""Assignment of a dataset's endless stream of rows to places in global batches.

A dataset alone fills the batches one after the other. In a mixture, a batch has so many rows of each dataset
(`mixing_plan`), and each dataset's rows are spread evenly over the batch's columns, so that every replica gets its
share of them; row i of n comes before row k of m if (2 i + 1) / n < (2 k + 1) / m. With 5 rows of a and 3 of b:

    column       0 1 2 3 4 5 6 7
    dataset      a b a a b a b a        which row of a stands where in a batch follows from the counts alone
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from tfrecord_io.mixing.mixing_plan import Cycle
from tfrecord_io.ordering.array_ops import NUMPY, ArrayOps

__all__ = ["BatchColumns"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BatchColumns:
    """The columns of dataset number `part`, in batches that repeat `cycle`."""

    cycle: Cycle
    part: int

    @property
    def batch_rows(self) -> int:
        """Rows of a global batch, of all datasets."""
        return int(self.cycle.rows_PK[0].sum())

    @property
    def mean_rows(self) -> float:
        """Rows of a global batch that are this dataset's, on average."""
        return int(self._ends_P[-1]) / len(self._ends_P)

    def rows_before(self, step: int) -> int:
        """This dataset's rows in the batches before a step."""
        return self.cycle.rows_before(step)[self.part]

    def place(self, rows: Any, ops: ArrayOps) -> tuple[Any, Any]:
        """Step and column of rows of the dataset's stream, both int64 [N]."""
        if self.cycle.rows_PK.shape == (1, 1):  # alone: each of many hosts asks this of all rows of a window
            return rows // self.batch_rows, rows % self.batch_rows
        ends_P = ops.constant(self._ends_P)
        cycles, within = rows // int(self._ends_P[-1]), rows % int(self._ends_P[-1])
        turn = ops.search(ends_P, within)
        counts = ops.constant(self.cycle.rows_PK[:, self.part])
        count = ops.gather(counts, turn)
        row = within - ops.gather(ends_P, turn) + count
        column = row
        for other in range(self.cycle.rows_PK.shape[1]):
            if other != self.part:
                others = ops.gather(ops.constant(self.cycle.rows_PK[:, other]), turn)
                # The others' rows in front of this one; at the same place, the dataset that is named first is.
                column = column + ((2 * row + 1) * others + count - int(other > self.part)) // (2 * count)
        return cycles * len(self._ends_P) + turn, column

    def counts(self, first: int, last: int) -> np.ndarray:
        """Return how many rows the columns [first, last) get of this dataset in each batch of the cycle, int64 [P]."""
        found = np.zeros(len(self._ends_P), np.int64)
        for turn, (end, count) in enumerate(
            zip(self._ends_P.tolist(), self.cycle.rows_PK[:, self.part].tolist(), strict=True)
        ):
            column = self.place(np.arange(end - count, end, dtype=np.int64), NUMPY)[1]
            found[turn] = np.count_nonzero((column >= first) & (column < last))
        return found

    @functools.cached_property
    def _ends_P(self) -> np.ndarray:
        return np.cumsum(self.cycle.rows_PK[:, self.part])
