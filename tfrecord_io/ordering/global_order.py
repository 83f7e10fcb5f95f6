"""Order rows so that each global batch depends only on seed and step, not on the number of hosts.

    an epoch      blocks of K neighbouring rows, permuted by (seed, epoch)             a line of N slots
    a window      the next W slots, which fill T steps of batches                      permuted within the columns
    a batch       G columns; a host reads a range of them

K = 4, G = 4, W = 16, T = 4, on the slots of the permuted blocks c a d b:

        step   0   1   2   3
    column 0  c2  c0  c3  c1         A column of a window has consecutive slots, in random order. So the rows of a batch
           1  a1  a3  a0  a2         come from different blocks, and a host reads each block of its columns once.
           2  d0  d3  d2  d1
           3  b3  b2  b0  b1

Splits of up to 64 MB are kept in memory and fully permuted (K = 1). A mixture spreads each dataset's rows evenly over
the batch's columns: row i of n comes before row k of m if (2 i + 1) / n < (2 k + 1) / m.
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
from tfrecord_io.mixing.mixing_plan import ENDLESS, Schedule, Stage
from tfrecord_io.ordering.permutation import NUMPY, folded, grid, hashed, key, permuted

# CPU time per record: 16 us with blocks of 16, 11 us with 64, 10 us with 128.
USUAL_SHUFFLE = Shuffle(block_length=64, window=16384)

# Size of TensorFlow's requests to gs://.
GCS_BLOCK_SIZE = "GCS_READ_CACHE_BLOCK_SIZE_MB"

_MEMORY_BYTES = 64 << 20
# Estimate: gzip shrinks token ids to a third, and padding to almost nothing.
_GZIP_RATIO = 8

# Purposes of random choices with the same seed.
_BLOCKS, _SLOTS = range(2)


def fits_in_memory(shards: Sequence[Shard], *, compression: str) -> bool:
    num_bytes = sum(shard.num_bytes for shard in shards)
    return num_bytes * (_GZIP_RATIO if compression == "gzip" else 1) <= _MEMORY_BYTES


@dataclasses.dataclass(kw_only=True, eq=False)
class GlobalOrder:
    """Order of one dataset's training rows in one stage of a mixture's weights.

    block, window: number of rows in a block and in a window (see the module's docstring).
    part: the dataset's number in the mixture, or 0.
    earlier: the dataset's order in its previous stage, if this stage begins within a window of blocks.
    """

    # Attributes that `with_values` replaces.
    VALUES = (
        *("part", "first_step", "first_row", "end_row", "num_rows", "free_slots", "_in_cycle", "_per_cycle"),
        *("_num_elements", "_window", "_windows_per_epoch", "_shared_window", "_last_shard", "_shard_parts"),
        *("_block_key", "_slot_key", "_row_grid", "_block_grid"),
    )

    shard_rows: tuple[int, ...]
    seed: int
    block: int
    window: int
    stage: Stage
    part: int = 0
    earlier: GlobalOrder | None = None

    def __post_init__(self) -> None:
        self.rows_PK = rows_PK = self.stage.rows_PK
        self.batch_rows, self.num_rows = int(rows_PK[0].sum()), sum(self.shard_rows)
        self.first_step, self.first_row = self.stage.first, self.stage.before[self.part]
        self.end_row = min(self.rows_before(self.stage.last), ENDLESS)
        counts_P = rows_PK[:, self.part]
        self._in_cycle = np.stack([np.cumsum(counts_P), counts_P], axis=1)
        self._num_elements, self._per_cycle = len(rows_PK), int(counts_P.sum())
        self._window = min(self.window, self.num_rows) if self.block > 1 else self.window
        self._windows_per_epoch = -(-self.num_rows // self._window)
        self._last_shard = len(self.shard_rows) - 1
        self._block_key, self._slot_key = key(self.seed, _BLOCKS), key(self.seed, _SLOTS)
        self._row_grid, self._block_grid = grid(self.num_rows), grid(self.num_rows // self.block)

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
        """Return the order of a split's rows in one `stage` of a `schedule`. `part`: the dataset's number in it."""
        past = [before for before in schedule if before.first < stage.first and before.rows_PK[:, part].any()]
        # The dataset's first stage determines the window of all its stages.
        rows_PK = (past or [stage])[0].rows_PK
        steps = -(-shuffle.window // int(rows_PK[0].sum()))
        order = cls(
            shard_rows=tuple(shard.num_examples for shard in shards),
            seed=seed,
            block=1 if fits_in_memory(shards, compression=compression) else shuffle.block_length,
            window=max(1, round(steps * float(rows_PK[:, part].mean()))),
            stage=stage,
            part=part,
        )
        if order.block == 1 or not past or order.first_row % order.num_rows % order._window == 0:
            return order
        earlier = cls.of(
            shards, compression=compression, seed=seed, shuffle=shuffle, schedule=schedule, stage=past[-1], part=part
        )
        return dataclasses.replace(order, earlier=earlier)

    def with_values(self, values: Mapping[str, Any]) -> GlobalOrder:
        """Return a copy with other values, such as tensors, of the attributes in `VALUES`."""
        order = copy.copy(self)
        vars(order).update(values)
        return order

    def rows_before(self, step: int) -> int:
        return self.stage.rows_before(step)[self.part]

    def place(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this dataset's rows in a step's batch: ascending positions there, and row numbers, both int64 [n]."""
        first, last = self.rows_before(step), self.rows_before(step + 1)
        columns, numbers = np.zeros((2, 0), np.int64)
        window, _ = self.begin(first)
        while len(columns) < last - first:
            steps, *of_window = _whole_window(self, window)
            columns, numbers = (
                np.concatenate([before, more[steps == step]])
                for before, more in zip((columns, numbers), of_window, strict=True)
            )
            window += 1
        return columns, numbers

    def in_batches(self, rows: Any, ops: Any) -> tuple[Any, Any]:
        """Return each row's step and its position in that step's batch, int64 [N]. `rows`: places in the stream."""
        if self.rows_PK.shape[1] == 1:  # faster
            return rows // self.batch_rows, rows % self.batch_rows
        ends_P, counts_P = (ops.constant(self._in_cycle[:, at]) for at in range(2))
        cycles, within = (rows - self.first_row) // self._per_cycle, (rows - self.first_row) % self._per_cycle
        turn = ops.search(ends_P, within)
        counts_NK, count_N1 = ops.gather(ops.constant(self.rows_PK), turn), ops.gather(counts_P, turn)[:, None]
        row_N1 = (within - ops.gather(ends_P, turn))[:, None] + count_N1
        # Rows of each dataset that come before this row. A tie goes to the dataset named first.
        ties_K = ops.where(ops.arange(0, self.rows_PK.shape[1]) >= self.part, 1, 0)
        before_NK = ((2 * row_N1 + 1) * counts_NK + count_N1 - ties_K) // (2 * count_N1)
        return self.first_step + cycles * self._num_elements + turn, ops.total(before_NK)

    def counts(self, first: int, last: int) -> np.ndarray:
        """Return the number of this dataset's rows at positions [first, last) of each batch of the cycle, int64 [P]."""
        rows = np.arange(self.first_row, self.first_row + self._per_cycle, dtype=np.int64)
        steps, columns = self.in_batches(rows, NUMPY)
        own = (columns >= first) & (columns < last)
        return np.bincount(steps[own] - self.first_step, minlength=self._num_elements)

    def begin(self, row: int, *, first: int = 0, last: int | None = None) -> tuple[int, int]:
        """Return the number of a row's window, and the number of its earlier rows at batch positions [first, last)."""
        if self.block > 1:  # a window never crosses epochs
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
        """Return steps, batch positions and numbers of a window's rows at batch positions [first, last), in this order.

        Each is int64 [n]. Rows are sorted by step, then position. `ops`: `NUMPY` or its equivalent for tensors.
        """
        if self.block == 1:
            begin = ops.maximum(window * self._window, self.first_row)
            rows = ops.arange(begin, ops.maximum(begin, ops.minimum((window + 1) * self._window, self.end_row)))
            steps, columns = self.in_batches(rows, ops)
            own = ops.indices((columns >= first) & (columns < last))
            steps, columns, rows = (ops.gather(values, own) for values in (steps, columns, rows))
            epochs_N = folded(self._block_key, rows // self.num_rows, ops)
            numbers = permuted(rows % self.num_rows, epochs_N, ops, limit=self.num_rows, grid=self._row_grid)
            return steps, columns, numbers
        steps, columns, rows, slots = self._in_slots(window, first, last, ops)
        own = ops.indices(rows < self.end_row)
        steps, columns, slots = (ops.gather(values, own) for values in (steps, columns, slots))
        return steps, columns, self._in_shards(self._numbers(slots, window, ops), ops)

    def _in_slots(self, window: Any, first: int, last: int, ops: Any) -> tuple[Any, Any, Any, Any]:
        # Rows are numbers in the stream, slots in the epoch. The stage's end is ignored.
        line = window // self._windows_per_epoch * self.num_rows
        begin = window % self._windows_per_epoch * self._window
        end, begin = ops.minimum(begin + self._window, self.num_rows), ops.maximum(begin, self.first_row - line)
        rows = line + ops.arange(begin, end)
        steps, columns = self.in_batches(rows, ops)
        own, before = ops.indices((columns >= first) & (columns < last)), ops.count(columns < first)
        steps, columns, rows = (ops.gather(values, own) for values in (steps, columns, rows))
        keys = columns * 2**32 + hashed(self._slot_key, rows, ops)
        ranks = before + ops.order(ops.order(keys))
        slots = begin + ranks
        if self.earlier is not None:
            free = ops.gather(self.free_slots, ops.minimum(ranks, ops.count(self.free_slots >= 0) - 1))
            slots = ops.where(window <= self._shared_window, free, slots)
        return steps, columns, rows, slots

    @functools.cached_property
    def free_slots(self) -> np.ndarray:
        """Ascending slots of this stage's first window that earlier stages leave free, int64 [n]."""
        if self.earlier is None:
            return np.zeros(1, np.int64)
        _, _, rows, slots = self.earlier._in_slots(self._shared_window, 0, self.batch_rows, NUMPY)
        return np.sort(slots[rows >= self.first_row])

    @functools.cached_property
    def _shared_window(self) -> int:  # -1: none
        return -1 if self.earlier is None else self.begin(self.first_row)[0]

    def _numbers(self, slots: Any, window: Any, ops: Any) -> Any:
        num_blocks = self.num_rows // self.block
        epoch, first_block = (
            window // self._windows_per_epoch,
            window % self._windows_per_epoch * self._window // self.block,
        )
        # `% limit` keeps blocks after the last whole one in range; their numbers are replaced below.
        blocks = ops.arange(first_block, first_block + self._window // self.block + 2)
        epoch_key, limit = folded(self._block_key, epoch, ops), ops.maximum(num_blocks, 1)
        blocks = permuted(blocks % limit, epoch_key, ops, limit=limit, grid=self._block_grid)
        numbers = ops.gather(blocks, slots // self.block - first_block) * self.block + slots % self.block
        # Leftover rows stay at the end of the line.
        return ops.where(slots < num_blocks * self.block, numbers, slots)

    def _in_shards(self, numbers: Any, ops: Any) -> Any:
        # `numbers` count the rows of all whole blocks, then all leftover rows. The results are rows of the split.
        ends_S, shift_S, left_ends_S, left_shift_S = (ops.constant(self._shard_parts[:, at]) for at in range(4))
        num_whole = ends_S[-1]
        left = ops.where(numbers < num_whole, 0, numbers - num_whole)
        in_whole = numbers + ops.gather(shift_S, ops.minimum(ops.search(ends_S, numbers), self._last_shard))
        in_left = left + ops.gather(left_shift_S, ops.search(left_ends_S, left))
        return ops.where(numbers < num_whole, in_whole, in_left)

    @functools.cached_property
    def _shard_parts(self) -> np.ndarray:
        # For whole blocks, then for leftovers: the end, and the shift to rows of the split.
        rows_S = np.array(self.shard_rows, np.int64)
        whole_S = rows_S // self.block * self.block
        first_S, left_S = np.cumsum(rows_S) - rows_S, rows_S - whole_S
        ends_S, left_ends_S = np.cumsum(whole_S), np.cumsum(left_S)
        # A search for 0 must find a shard even without leftovers.
        left_ends_S[-1] += 1
        shifts = first_S - (ends_S - whole_S), first_S + whole_S - (np.cumsum(left_S) - left_S)
        return np.stack([ends_S, shifts[0], left_ends_S, shifts[1]], axis=1)


@functools.lru_cache(maxsize=16)
def _whole_window(order: GlobalOrder, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return order.of_window(window, 0, order.batch_rows, NUMPY)
