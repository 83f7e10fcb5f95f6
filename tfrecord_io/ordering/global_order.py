"""The global order: row and place in each global batch as a function of seed and step, whatever the hosts.

    an epoch      blocks of K neighbouring rows, permuted by (seed, epoch)             a line of N slots
    a window      W slots of that line, for the next W places in batches, T steps      permuted within the columns
    a batch       G columns; a host reads some of them, one after the other

    K = 4, G = 4, W = 16, T = 4, on the slots of the permuted blocks c a d b:

        step   0   1   2   3
    column 0  c2  c0  c3  c1         Each column of a window has its own slots, in a random order. So a row of a batch
           1  a1  a3  a0  a2         is from another block than its neighbours', and columns [first, last), a host's
           2  d0  d3  d2  d1         part, are slots that follow each other: it reads the blocks of these, once each,
           3  b3  b2  b0  b1         and nothing else of the window but parts of the blocks at its two ends.

With K = 1 that is a full permutation of the split, and nothing else is shuffled. Rows are numbered in the order of the
shards. Blocks never cross a shard's end: what is left at the shards' ends is put together, as the last blocks.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.ordering.array_ops import NUMPY, ArrayOps
from tfrecord_io.ordering.batch_columns import BatchColumns
from tfrecord_io.ordering.permutation import Key, Permutation, folded, hashed, key

__all__ = ["Begun", "GlobalOrder", "Placed"]

# Keep the random choices of one seed apart.
_BLOCKS, _SLOTS = range(2)


class Placed(NamedTuple):
    """What columns of a window get, in order of steps, then columns: int64 [n] each."""

    steps: Any
    columns: Any
    rows: Any


class Begun(NamedTuple):
    """A window, and how many of its rows come before."""

    window: int
    rows: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GlobalOrder:
    """The order of one dataset. `shard_rows` are the records of each shard, none of them empty; `block` and `window`
    are K and W; `batches` says where in batches its stream goes.
    """

    shard_rows: tuple[int, ...]
    seed: int
    block: int
    window: int
    batches: BatchColumns

    @functools.cached_property
    def num_rows(self) -> int:
        """Rows of the split."""
        return sum(self.shard_rows)

    @property
    def in_epochs(self) -> bool:
        """Return whether windows end with their epoch."""
        return self.block > 1

    def rows(self, step: int) -> np.ndarray:
        """This dataset's rows in a global batch, in the order of their columns: int64 [n]."""
        return self.place(step)[1]

    def place(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns of a global batch that have rows of this dataset, ascending, and these rows: int64 [n] twice."""
        first, last = self.batches.rows_before(step), self.batches.rows_before(step + 1)
        found = []
        window = self.begin(first).window
        while True:
            placed = _whole_window(self, window)
            chosen = np.flatnonzero(placed.steps == step)
            found.append((placed.columns[chosen], placed.rows[chosen]))
            if sum(len(columns) for columns, _ in found) == last - first:
                columns, rows = (np.concatenate(each) for each in zip(*found, strict=True))
                return columns, rows
            window += 1

    def begin(self, row: int, *, first: int = 0, last: int | None = None) -> Begun:
        """Locate row `row` of the stream: its window, and how many rows columns [first, last) get of it before."""
        if self.in_epochs:
            epoch, slot = divmod(row, self.num_rows)
            number, before = divmod(slot, self._window)
            window = epoch * self._windows_per_epoch + number
        else:
            window, before = divmod(row, self._window)
        columns = self.batches.place(np.arange(row - before, row, dtype=np.int64), NUMPY)[1]
        last = self.batches.batch_rows if last is None else last
        return Begun(window=window, rows=int(np.count_nonzero((columns >= first) & (columns < last))))

    def of_window(self, window: Any, first: int, last: int, ops: ArrayOps) -> Placed:
        """Return what the columns [first, last) get of window `window`, an int or a tensor []."""
        if not self.in_epochs:
            rows = ops.arange(window * self._window, (window + 1) * self._window)
            placed, _ = self._placed(rows, first, last, ops)
            epochs_N = folded(key(self.seed, _BLOCKS), placed.rows // self.num_rows, ops)
            permuted = Permutation(limit=self.num_rows).of(placed.rows % self.num_rows, epochs_N, ops)
            return placed._replace(rows=permuted)
        epoch, number = window // self._windows_per_epoch, window % self._windows_per_epoch
        begin = number * self._window
        end = ops.minimum(begin + self._window, self.num_rows)
        rows = epoch * self.num_rows + ops.arange(begin, end)
        placed, before = self._placed(rows, first, last, ops)
        keys = placed.columns * 2**32 + hashed(key(self.seed, _SLOTS), placed.rows, ops)
        # The place of each row in the order of the keys.
        numbers = self._numbers(begin + before, ops.order(ops.order(keys)), epoch, ops)
        return placed._replace(rows=self._in_shards(numbers, ops))

    def _placed(self, rows: Any, first: int, last: int, ops: ArrayOps) -> tuple[Placed, Any]:
        """Select the stream rows that land in columns [first, last), and count those that land in columns before."""
        steps, columns = self.batches.place(rows, ops)
        own = ops.indices((columns >= first) & (columns < last))
        return Placed(*(ops.gather(each, own) for each in (steps, columns, rows))), ops.count(columns < first)

    def _numbers(self, first: Any, offsets: Any, epoch: Any, ops: ArrayOps) -> Any:
        """Return the numbers in slots at `offsets`, a permutation of 0 to n - 1, from slot `first` of an epoch on."""
        num_blocks = self.num_rows // self.block
        first_block, slots = first // self.block, first + offsets
        # A slot behind all whole blocks asks for one that is not there, and gets none below.
        blocks = ops.arange(first_block, first_block + ops.count(offsets >= 0) // self.block + 2)
        epoch_key: Key = folded(key(self.seed, _BLOCKS), ops.vector(epoch), ops)
        permuted = Permutation(limit=num_blocks).of(blocks % max(num_blocks, 1), epoch_key, ops)
        numbers = ops.gather(permuted, slots // self.block - first_block) * self.block + slots % self.block
        # The last rows, fewer than a block, stay at the end of the line.
        return ops.where(slots < num_blocks * self.block, numbers, slots)

    def _in_shards(self, numbers: Any, ops: ArrayOps) -> Any:
        """The rows of the split, when the whole blocks of all shards are numbered before what is left of shards."""
        ends_S, shift_S, left_ends_S, left_shift_S = map(ops.constant, self._shard_parts)
        last = len(self.shard_rows) - 1
        num_whole = int(self._shard_parts[0][-1])
        left = ops.where(numbers < num_whole, 0, numbers - num_whole)
        in_whole = numbers + ops.gather(shift_S, ops.minimum(ops.search(ends_S, numbers), last))
        in_left = left + ops.gather(left_shift_S, ops.search(left_ends_S, left))
        return ops.where(numbers < num_whole, in_whole, in_left)

    @functools.cached_property
    def _shard_parts(self) -> tuple[np.ndarray, ...]:
        """Where each shard's whole blocks end among those of all shards, and what to add to such a number for the row
        of the split; the same for what is left of shards. All int64 [S].
        """
        rows_S = np.array(self.shard_rows, np.int64)
        whole_S = rows_S // self.block * self.block
        first_S, left_S = np.cumsum(rows_S) - rows_S, rows_S - whole_S
        ends_S, left_ends_S = np.cumsum(whole_S), np.cumsum(left_S)
        # One more, for numbers that are in no such part.
        left_ends_S[-1] += 1
        return ends_S, first_S - (ends_S - whole_S), left_ends_S, first_S + whole_S - (np.cumsum(left_S) - left_S)

    @property
    def _window(self) -> int:
        return min(self.window, self.num_rows) if self.in_epochs else self.window

    @property
    def _windows_per_epoch(self) -> int:
        return -(-self.num_rows // self._window)


@functools.lru_cache(maxsize=16)
def _whole_window(order: GlobalOrder, window: int) -> Placed:
    """Return what all columns get of a window: many steps ask for the same one."""
    return order.of_window(window, 0, order.batches.batch_rows, NUMPY)
