"""Global order: the rows and columns of each global batch as a function of seed and step, on any number of hosts.

    an epoch      blocks of K neighbouring rows, permuted by (seed, epoch)             a line of N slots
    a window      the next W slots of that line, which fill T steps of batches         permuted within the columns
    a batch       G columns; a host reads a range of them

    K = 4, G = 4, W = 16, T = 4, on the slots of the permuted blocks c a d b:

        step   0   1   2   3
    column 0  c2  c0  c3  c1         Each column of a window has its own slots, in random order. So neighbouring rows
           1  a1  a3  a0  a2         of a batch come from different blocks, and a host's columns [first, last) are
           2  d0  d3  d2  d1         consecutive slots: the host reads each of their blocks once. From the rest of the
           3  b3  b2  b0  b1         window it reads only parts of the blocks at both ends.

Splits of up to 64 MB are read into memory with K = 1: a full permutation. Rows are numbered in the order of the shards.
Blocks never cross a shard's end: the leftover rows of all shards together form the last blocks.

In a mixture, `mixing_plan` decides the number of rows of each dataset in a batch. They are spread evenly over the
batch's columns, so that every replica gets its share: row i of n comes before row k of m if
(2 i + 1) / n < (2 k + 1) / m. With 5 rows of a and 3 of b:

    column       0 1 2 3 4 5 6 7
    dataset      a b a a b a b a        the column of each row in a batch follows from the counts alone

If the weights change within a window, the rows before the change have the slots that they would have without it, and
the rows after it share the window's other slots. So a change never alters earlier batches, and every row still comes
once in each epoch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.input_pipeline.host_plan import Shuffle
from tfrecord_io.manifest import Shard
from tfrecord_io.mixing.mixing_plan import Cycle, Schedule, Stage
from tfrecord_io.ordering.permutation import NUMPY, folded, grid, hashed, key, permuted

# One read fetches a block of 64 records, at 11 us of CPU time per record. Blocks of 16 would cost 5 us more per record,
# and 128 would save 1 us. All hosts share one window.
USUAL_SHUFFLE = Shuffle(block_length=64, window=16384)

# Environment variable for the size of TensorFlow's requests to gs://, read when TensorFlow is imported.
GCS_BLOCK_SIZE = "GCS_READ_CACHE_BLOCK_SIZE_MB"

_MEMORY_BYTES = 64 << 20
# The unpacked size of a gzip shard is unknown before reading: token ids shrink to a third, padding to nothing.
_GZIP_RATIO = 8

# Keep the random choices of one seed apart.
_BLOCKS, _SLOTS = range(2)
# More rows or steps than any run reaches.
ENDLESS = 1 << 62


def fits_in_memory(shards: Sequence[Shard], *, compression: str) -> bool:
    num_bytes = sum(shard.num_bytes for shard in shards)
    return num_bytes * (_GZIP_RATIO if compression == "gzip" else 1) <= _MEMORY_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GlobalOrder:
    """Global order of dataset number `part` of the mixture with this `cycle`; a single dataset is number 0 of one.

    shard_rows: the number of records in each shard, never 0. block, window: K and W. first_step, first_row, end_row:
    where the stage of this cycle begins, and the row of the dataset's stream at which it ends. earlier: the previous
    stage's order, if this stage begins within a window of blocks.
    """

    # Attributes that differ between the datasets of a stage. A graph has them as tensors, see `with_numbers`.
    NUMBERS = (
        *("part", "first_row", "end_row", "num_rows", "_window", "_windows_per_epoch", "_per_cycle", "_ends_P"),
        *("_num_whole", "_last_shard", "_block_key", "_slot_key", "_row_grid", "_block_grid", "_shared_window"),
    )

    shard_rows: tuple[int, ...]
    seed: int
    block: int
    window: int
    cycle: Cycle
    part: int = 0
    first_step: int = 0
    first_row: int = 0
    end_row: int = ENDLESS
    earlier: GlobalOrder | None = None

    @classmethod
    def of(
        cls,
        shards: Sequence[Shard],
        *,
        compression: str,
        seed: int,
        shuffle: Shuffle,
        schedule: Schedule,
        stage: Stage,
        part: int = 0,
    ) -> GlobalOrder:
        """Return the order of a split's rows in a stage, for dataset number `part` of a mixture, or a single one."""
        stages = [each for each in schedule.stages if part in each.parts and each.first <= stage.first]
        # The window is the same in all stages, and does not depend on stages after the dataset's first one.
        cycle = stages[0].cycle
        steps = -(-shuffle.window // int(cycle.rows_PK[0].sum()))
        order = cls(
            shard_rows=tuple(shard.num_examples for shard in shards),
            seed=seed,
            block=1 if fits_in_memory(shards, compression=compression) else shuffle.block_length,
            window=max(1, round(steps * float(cycle.rows_PK[:, part].mean()))),
            cycle=stage.cycle,
            part=part,
            first_step=stage.first,
            first_row=stage.before[part],
            end_row=ENDLESS if stage.last is None else stage.rows_before(stage.last)[part],
        )
        if order.block == 1 or order.first_row % order.num_rows % order._window == 0:
            return order
        earlier = cls.of(
            shards, compression=compression, seed=seed, shuffle=shuffle, schedule=schedule, stage=stages[-2], part=part
        )
        return dataclasses.replace(order, earlier=earlier)

    def with_numbers(self, numbers: Mapping[str, Any], *, shard_parts: tuple[Any, ...], free_slots: Any) -> GlobalOrder:
        """Return this order with another dataset's NUMBERS and arrays, as tensors, for the same stage and block."""
        order = copy.copy(self)
        vars(order).update(numbers, _shard_parts=shard_parts, free_slots=free_slots)
        return order

    @property
    def batch_rows(self) -> int:
        return int(self.cycle.rows_PK[0].sum())

    @functools.cached_property
    def num_rows(self) -> int:
        return sum(self.shard_rows)

    def rows_before(self, step: int) -> int:
        return self.first_row + self.cycle.rows_before(step - self.first_step)[self.part]

    def place(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this dataset's columns of a batch, ascending, and its rows there: int64 [n] twice."""
        first, last = self.rows_before(step), self.rows_before(step + 1)
        found = []
        window, _ = self.begin(first)
        while True:
            steps, columns, rows = _whole_window(self, window)
            chosen = np.flatnonzero(steps == step)
            found.append((columns[chosen], rows[chosen]))
            if sum(len(columns) for columns, _ in found) == last - first:
                columns, rows = (np.concatenate(each) for each in zip(*found, strict=True))
                return columns, rows
            window += 1

    def in_batches(self, rows: Any, ops: Any) -> tuple[Any, Any]:
        """Return step and column of rows of this dataset's stream in this stage, int64 [N] each."""
        if self.cycle.rows_PK.shape == (1, 1):  # a single dataset: every host does this for all rows of a window
            return rows // self.batch_rows, rows % self.batch_rows
        ends_P = ops.constant(self._ends_P)
        cycles, within = (rows - self.first_row) // self._per_cycle, (rows - self.first_row) % self._per_cycle
        turn = ops.search(ends_P, within)
        counts_NK = ops.gather(ops.constant(self.cycle.rows_PK), turn)
        count_N1 = ops.gather(ops.constant(self.cycle.rows_PK.T), self.part)
        count_N1 = ops.gather(count_N1, turn)[:, None]
        row_N1 = (within - ops.gather(ends_P, turn))[:, None] + count_N1
        # The rows of each dataset before this one. In a tie, the dataset named first comes first.
        ties_K = ops.where(ops.arange(0, self.cycle.rows_PK.shape[1]) >= self.part, 1, 0)
        before_NK = ((2 * row_N1 + 1) * counts_NK + count_N1 - ties_K) // (2 * count_N1)
        return self.first_step + cycles * len(self.cycle.rows_PK) + turn, ops.total(before_NK)

    def counts(self, first: int, last: int) -> np.ndarray:
        """Count this dataset's rows in the columns [first, last) of each batch of the cycle: int64 [P]."""
        rows = np.arange(self.first_row, self.first_row + self._per_cycle, dtype=np.int64)
        steps, columns = self.in_batches(rows, NUMPY)
        own = (columns >= first) & (columns < last)
        return np.bincount(steps[own] - self.first_step, minlength=len(self._ends_P))

    @functools.cached_property
    def _ends_P(self) -> np.ndarray:
        return np.cumsum(self.cycle.rows_PK[:, self.part])

    @functools.cached_property
    def _per_cycle(self) -> int:
        return int(self._ends_P[-1])

    def begin(self, row: int, *, first: int = 0, last: int | None = None) -> tuple[int, int]:
        """Return the window of the stream's row `row`, and the number of earlier rows in its columns [first, last)."""
        if self.block > 1:  # windows end with their epoch
            epoch, slot = divmod(row, self.num_rows)
            number, before = divmod(slot, self._window)
            window = epoch * self._windows_per_epoch + number
        else:
            window, before = divmod(row, self._window)
        before = min(before, row - self.first_row)
        _, columns = self.in_batches(np.arange(row - before, row, dtype=np.int64), NUMPY)
        last = self.batch_rows if last is None else last
        return window, int(np.count_nonzero((columns >= first) & (columns < last)))

    def of_window(self, window: Any, first: int, last: int, ops: Any) -> tuple[Any, Any, Any]:
        """Return steps, columns and rows, int64 [n] each, of a window's rows in columns [first, last).

        They are in order of steps, then columns. window: an int or a tensor [].
        """
        if self.block == 1:
            begin = ops.maximum(window * self._window, self.first_row)
            rows = ops.arange(begin, ops.maximum(begin, ops.minimum((window + 1) * self._window, self.end_row)))
            steps, columns = self.in_batches(rows, ops)
            own = ops.indices((columns >= first) & (columns < last))
            steps, columns, rows = (ops.gather(each, own) for each in (steps, columns, rows))
            epochs_N = folded(self._block_key, rows // self.num_rows, ops)
            numbers = permuted(rows % self.num_rows, epochs_N, ops, limit=self.num_rows, grid=self._row_grid)
            return steps, columns, numbers
        steps, columns, rows, slots = self._in_slots(window, first, last, ops)
        own = ops.indices(rows < self.end_row)
        steps, columns, slots = (ops.gather(each, own) for each in (steps, columns, slots))
        return steps, columns, self._in_shards(self._numbers(slots, window, ops), ops)

    def _in_slots(self, window: Any, first: int, last: int, ops: Any) -> tuple[Any, Any, Any, Any]:
        """Return steps, columns, stream's rows and slots of the epoch, int64 [n], as if this stage had no end."""
        line = window // self._windows_per_epoch * self.num_rows
        begin = window % self._windows_per_epoch * self._window
        end, begin = ops.minimum(begin + self._window, self.num_rows), ops.maximum(begin, self.first_row - line)
        rows = line + ops.arange(begin, end)
        steps, columns = self.in_batches(rows, ops)
        own, before = ops.indices((columns >= first) & (columns < last)), ops.count(columns < first)
        steps, columns, rows = (ops.gather(each, own) for each in (steps, columns, rows))
        keys = columns * 2**32 + hashed(self._slot_key, rows, ops)
        # The rank of each row in the order of the keys.
        ranks = before + ops.order(ops.order(keys))
        slots = begin + ranks
        if self.first_step:
            free = ops.gather(self.free_slots, ops.minimum(ranks, ops.count(self.free_slots >= 0) - 1))
            slots = ops.where(window <= self._shared_window, free, slots)
        return steps, columns, rows, slots

    @functools.cached_property
    def free_slots(self) -> np.ndarray:
        """Slots that earlier stages leave in the window where this one begins, ascending: int64 [n], or else [0]."""
        if self.earlier is None:
            return np.zeros(1, np.int64)
        _, _, rows, slots = self.earlier._in_slots(self._shared_window, 0, self.batch_rows, NUMPY)
        return np.sort(slots[rows >= self.first_row])

    @functools.cached_property
    def _shared_window(self) -> int:  # no window has this number if there is none
        return -1 if self.earlier is None else self.begin(self.first_row)[0]

    def _numbers(self, slots: Any, window: Any, ops: Any) -> Any:
        """Return the row numbers in slots of a window."""
        num_blocks = self.num_rows // self.block
        epoch, first_block = (
            window // self._windows_per_epoch,
            window % self._windows_per_epoch * self._window // self.block,
        )
        # A slot after all whole blocks has no block: its number is replaced below.
        blocks = ops.arange(first_block, first_block + self._window // self.block + 2)
        epoch_key, limit = folded(self._block_key, epoch, ops), ops.maximum(num_blocks, 1)
        blocks = permuted(blocks % limit, epoch_key, ops, limit=limit, grid=self._block_grid)
        numbers = ops.gather(blocks, slots // self.block - first_block) * self.block + slots % self.block
        # The last rows, fewer than a block, stay at the end of the line.
        return ops.where(slots < num_blocks * self.block, numbers, slots)

    def _in_shards(self, numbers: Any, ops: Any) -> Any:
        """Convert numbers, which count the whole blocks of all shards before leftover rows, to rows of the split."""
        ends_S, shift_S, left_ends_S, left_shift_S = map(ops.constant, self._shard_parts)
        last, num_whole = self._last_shard, self._num_whole
        left = ops.where(numbers < num_whole, 0, numbers - num_whole)
        in_whole = numbers + ops.gather(shift_S, ops.minimum(ops.search(ends_S, numbers), last))
        in_left = left + ops.gather(left_shift_S, ops.search(left_ends_S, left))
        return ops.where(numbers < num_whole, in_whole, in_left)

    @functools.cached_property
    def _shard_parts(self) -> tuple[np.ndarray, ...]:
        """Return ends of the shards' whole blocks and shifts to rows of the split; same for leftovers: int64 [S]."""
        rows_S = np.array(self.shard_rows, np.int64)
        whole_S = rows_S // self.block * self.block
        first_S, left_S = np.cumsum(rows_S) - rows_S, rows_S - whole_S
        ends_S, left_ends_S = np.cumsum(whole_S), np.cumsum(left_S)
        # One more, for numbers that are no leftover rows.
        left_ends_S[-1] += 1
        return ends_S, first_S - (ends_S - whole_S), left_ends_S, first_S + whole_S - (np.cumsum(left_S) - left_S)

    @functools.cached_property
    def _num_whole(self) -> int:
        return int(self._shard_parts[0][-1])

    @functools.cached_property
    def _last_shard(self) -> int:
        return len(self.shard_rows) - 1

    @functools.cached_property
    def _block_key(self) -> Any:
        return key(self.seed, _BLOCKS)

    @functools.cached_property
    def _slot_key(self) -> Any:
        return key(self.seed, _SLOTS)

    @functools.cached_property
    def _row_grid(self) -> Any:
        return grid(self.num_rows)

    @functools.cached_property
    def _block_grid(self) -> Any:
        return grid(self.num_rows // self.block)

    @functools.cached_property
    def _window(self) -> int:
        return min(self.window, self.num_rows) if self.block > 1 else self.window

    @functools.cached_property
    def _windows_per_epoch(self) -> int:
        return -(-self.num_rows // self._window)


@functools.lru_cache(maxsize=16)
def _whole_window(order: GlobalOrder, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return order.of_window(window, 0, order.batch_rows, NUMPY)
