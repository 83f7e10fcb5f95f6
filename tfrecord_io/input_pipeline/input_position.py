"""Position of a step in a host's records: the arithmetic that lets a run continue without reading up to there (no TF).

`tf.data` interleaves shards deterministically, so which record comes when is a matter of counting. An interleave has
`cycle_length` slots, which take turns; with 2 slots and shards a, b, c of 3, 1 and 2 blocks:

    round      0    1    2    3    4
    slot 0     a0   a1   a2   ..             a0: the first block of a
    slot 1     b0   ..   c0   c1   ..        ..: a shard at its end; its slot opens the next one, but passes this turn

    order      a0 b0 │ a1 │ a2 c0 │ c1       block m of a shard is read m rounds after its first one

So a shard's slot and first round follow from the numbers of blocks before it, and the state at any record follows from
these: slots that had their turn are in the next round, the others still in this one. Turns go round in a circle, so an
interleave that starts with the slot whose turn it is, each slot's shard at the row that it has come to and the unopened
shards behind them, continues as the first one would have. (Slots stay empty only when no shard is left to open, and
leaving them out changes no order.)
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumption:
    """An interleave of `shards`, int64 [n], in which shard i starts at its row `first_rows[i]`, int64 [n].

    Without the first `skip` rows of its first block it continues another interleave.
    """

    shards: np.ndarray
    first_rows: np.ndarray
    skip: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Schedule:
    """When each shard is read: block m in round first_round + m, by its slot. All int64 [number of shards]."""

    rows: np.ndarray
    blocks: np.ndarray
    slot: np.ndarray
    first_round: np.ndarray
    block_length: int

    def rows_read(self, rounds: np.ndarray | int) -> np.ndarray:
        """Rows of each shard that are read before the round given for it."""
        return np.minimum(np.clip(rounds - self.first_round, 0, self.blocks) * self.block_length, self.rows)

    def round_of(self, row: int) -> int:
        """The round in which comes the interleave's row `row`."""
        low, high = 0, int(np.max(self.first_round + self.blocks))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if int(self.rows_read(middle).sum()) <= row else (low, middle)
        return low


def resume(shard_rows: np.ndarray, *, cycle_length: int, block_length: int, row: int) -> Resumption:
    """Return how to continue at its row `row` the interleave of shards that have `shard_rows` rows, int64 [N].

    It must have that row. Time: N log(cycle_length), whatever the number of rows.
    """
    schedule = _schedule(shard_rows, cycle_length=cycle_length, block_length=block_length)
    round_now = schedule.round_of(row)
    before, after = schedule.rows_read(round_now), schedule.rows_read(round_now + 1)
    # The blocks of this round, in the order of the slots' turns, up to the one that has the row.
    turns = np.argsort(schedule.slot, kind="stable")
    ends = before.sum() + np.cumsum((after - before)[turns])
    turn = int(np.searchsorted(ends, row, side="right"))
    current = turns[turn]
    # Slots in front of the current one are through with this round.
    next_round = round_now + (schedule.slot < schedule.slot[current])
    is_open = (schedule.first_round <= next_round) & (next_round <= schedule.first_round + schedule.blocks)
    opened = np.flatnonzero(is_open)
    opened = opened[np.lexsort((schedule.slot[opened], next_round[opened]))]
    shards = np.concatenate([opened, np.flatnonzero(schedule.first_round > next_round)])
    skip = row - int(ends[turn] - (after - before)[current])
    return Resumption(shards=shards, first_rows=schedule.rows_read(next_round)[shards], skip=skip)


def locate(shard_rows: Sequence[int] | np.ndarray, row: int) -> tuple[int, int]:
    """The shard that has row `row` of all shards one after the other, and which of its rows that is.

    From the end of the last shard on: the number of shards, and the rows behind it.
    """
    ends = np.cumsum(np.asarray(shard_rows, np.int64))
    shard = int(np.searchsorted(ends, row, side="right"))
    return shard, row - (int(ends[shard - 1]) if shard else 0)


def _schedule(shard_rows: np.ndarray, *, cycle_length: int, block_length: int) -> _Schedule:
    blocks = -(-shard_rows // block_length)
    slot, first_round = np.empty_like(blocks), np.empty_like(blocks)
    # The turns at which slots find their shard at its end. The earliest one opens the next shard.
    ends: list[tuple[int, int]] = []
    for shard, shard_blocks in enumerate(blocks.tolist()):
        if shard < cycle_length:
            first, at = 0, shard
        else:
            ended, at = heapq.heappop(ends)
            first = ended + 1
        slot[shard], first_round[shard] = at, first
        heapq.heappush(ends, (first + shard_blocks, at))
    return _Schedule(rows=shard_rows, blocks=blocks, slot=slot, first_round=first_round, block_length=block_length)
