"""How many batches of which row length come when: the arithmetic behind `buckets` (no TF).

Reading goes in rounds. In a round each bucket gives as many batches as it has in one pass over its rows, in an order
that is shuffled for all of them together. A pass is seldom a whole number of batches, so after r rounds a bucket has
given floor(r * rows / batch) of them:

              rows   batch   in a pass    round  0            1              2
    a           10       4         2.5           2            3              2
    b            6       2         3             3            3              3
    steps                                        a b b a b    b a a b a b    b a b b a    ...

So every bucket is read equally often, to within a batch, however small it is; and which round a step is in, and what
came before it, follows by a search in these sums.
"""

from __future__ import annotations

import dataclasses

__all__ = ["Rounds"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds:
    """Rounds of K buckets that have `rows` rows and give `batch_rows` of them at a time."""

    rows: tuple[int, ...]
    batch_rows: tuple[int, ...]

    def batches_before(self, number: int) -> tuple[int, ...]:
        """Batches of each bucket in the rounds before round `number`."""
        return tuple(number * rows // batch for rows, batch in zip(self.rows, self.batch_rows, strict=True))

    def locate(self, step: int) -> tuple[int, int]:
        """The round that step `step` is in, and the steps before it in that round."""
        low, high = 0, 1
        while sum(self.batches_before(high)) <= step:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sum(self.batches_before(middle)) <= step else (low, middle)
        return low, step - sum(self.batches_before(low))
