"""The plan: how many shards, and which rows go into which, decided before anything is written.

    rows of a split    in blocks of at most 1,000 consecutive rows, fewer where rows are long
    blocks             permuted by the seed (or left in source order), each with the bytes that it will give
    shards             equal parts of those bytes, cut to the row

              block 3      block 0      block 7       block 2
          |............|......|.....|..........|............|
    shards    shard 0         |       shard 1  |   shard 2

The predicted bytes come from a small sample (`blocks`). Equal parts keep every shard within a few percent of each
other. That they are also within 10 % of the target is possible only when a whole number of targets comes near the
split's size; from 4.5 targets on it always does.

Everything is in arrays: a large split has ten million blocks.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from pipelines.prepare.sources.formats.groups import Pieces

__all__ = [
    "Blocks",
    "RowRanges",
    "ShardTask",
    "SplitPlan",
    "block_rows",
    "cut_rows",
    "plan_split",
    "require_partition",
    "row_ranges_of",
    "split_seed",
]

RowRanges = tuple[tuple[int, int], ...]

MAX_BLOCK_ROWS = 1_000
# Blocks of one shard come from anywhere in the split: the more there are, the more alike are the shards. And a cut
# inside a block takes its rows for equal, which must not matter.
_BLOCKS_PER_SHARD = 128
# A block may have so many times the bytes of as many average rows.
ROOM = 2.0


@dataclasses.dataclass(frozen=True)
class Blocks:
    """N blocks: rows [start, stop) int64 [N], and the bytes they are predicted to give, float64 [N]."""

    starts: np.ndarray
    stops: np.ndarray
    predicted_bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardTask:
    """The unit of work: shard `index` of `count`, made of `num_rows` rows. `pieces` are these rows in reading order,
    where they were looked up (`plans.task_of`).
    """

    split: str
    index: int
    count: int
    num_rows: int
    pieces: Pieces | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def row_ranges(self) -> RowRanges:
        """The rows as [start, stop) ranges, in reading order."""
        return row_ranges_of(self.found)

    @property
    def found(self) -> Pieces:
        """The pieces of a task that was looked up."""
        assert self.pieces is not None, "plans.task_of looks them up"
        return self.pieces


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SplitPlan:
    """One split's shards, and the row ranges of the source's split `origin` that they share out.

    Shard i reads the S row ranges [starts, stops) int64 from offsets[i] to offsets[i + 1], offsets int64 [shards + 1].
    """

    split: str
    origin: str
    ranges: RowRanges
    predicted_bytes: int
    starts: np.ndarray
    stops: np.ndarray
    offsets: np.ndarray

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.offsets) - 1

    @property
    def shard_rows(self) -> np.ndarray:
        """Rows of each shard, int64 [shards]."""
        return np.add.reduceat(self.stops - self.starts, self.offsets[:-1])

    def spans(self, first: int, last: int) -> np.ndarray:
        """The row ranges of the shards from `first` up to `last`, int64 [n, 2]."""
        inside = slice(self.offsets[first], self.offsets[last])
        return np.stack([self.starts[inside], self.stops[inside]], axis=1)

    def row_ranges(self, index: int) -> RowRanges:
        """The row ranges of one shard."""
        return _as_segments(self.spans(index, index + 1))

    def tasks(self) -> list[ShardTask]:
        """One task for each shard, without its pieces."""
        return [
            ShardTask(split=self.split, index=index, count=self.num_shards, num_rows=rows)
            for index, rows in enumerate(self.shard_rows.tolist())
        ]


def split_seed(split: str) -> int:
    """A split's part of every seed: from its name, so that adding a split changes no other."""
    return zlib.crc32(split.encode())


def row_ranges_of(pieces: Pieces) -> RowRanges:
    """The rows of pieces as [start, stop) ranges in the same order; neighbours are one range."""
    return _as_segments(_merged(pieces.starts, pieces.starts + pieces.counts))


def block_rows(*, row_bytes: float, shard_bytes: int) -> int:
    """Rows in one block: small beside a shard, but never more than 1,000."""
    return int(min(MAX_BLOCK_ROWS, max(1, shard_bytes / (_BLOCKS_PER_SHARD * max(row_bytes, 1.0)))))


def cut_rows(numbers: np.ndarray, weights: np.ndarray, *, rows: int, row_bytes: float) -> Blocks:
    """Blocks of the rows `numbers` int64 [n], in their order, which are predicted to give `weights` bytes, float64 [n].

    A block has at most `rows` rows, and ends early where its bytes come to about twice those of as many average rows;
    a row that comes to that alone is a block of its own.
    """
    if not len(numbers):
        return Blocks(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    limit = max(ROOM * rows * row_bytes, 1.0)
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    # Both parts only grow, so that their sum changes where one of them does.
    period = np.arange(len(numbers)) // rows + before // limit
    long = weights >= limit
    begins = (np.diff(period, prepend=-1.0) != 0) | long | np.concatenate([[False], long[:-1]])
    begins[1:] |= np.diff(numbers) != 1
    edges = np.flatnonzero(begins)
    last = np.append(edges[1:], len(numbers)) - 1
    return Blocks(numbers[edges], numbers[last] + 1, np.add.reduceat(weights, edges))


def plan_split(
    blocks: Blocks,
    *,
    split: str,
    origin: str,
    ranges: Sequence[tuple[int, int]],
    shard_bytes: int,
    seed: int,
    shuffle: bool,
) -> SplitPlan:
    """Shares the blocks out. Every row goes into exactly one shard, and every shard has at least one."""
    starts, stops, weights = blocks.starts, blocks.stops, blocks.predicted_bytes
    if shuffle:
        order = np.arange(len(blocks))
        np.random.default_rng([seed, split_seed(split)]).shuffle(order)
        starts, stops, weights = starts[order], stops[order], weights[order]
    sizes = stops - starts
    total = float(weights.sum())
    count = _shard_count(total, shard_bytes=shard_bytes, rows=int(sizes.sum()))
    cuts = _cut_positions(sizes, weights, count=count)
    found, offsets = _shards(starts, sizes, cuts, ascending=shuffle)
    return SplitPlan(
        split=split,
        origin=origin,
        ranges=tuple((int(start), int(stop)) for start, stop in ranges),
        predicted_bytes=round(total),
        starts=found[:, 0],
        stops=found[:, 1],
        offsets=offsets,
    )


def require_partition(ranges: Sequence[tuple[int, int]], spans: np.ndarray) -> None:
    """Every row is in as many `spans` int64 [n, 2] as `ranges`: mostly one, but joined slices may have rows in common.

    Raises: ValueError.
    """
    wanted = np.asarray(ranges, np.int64).reshape(-1, 2)
    # How often rows are covered is compared by where it changes.
    edges = np.concatenate([wanted[:, 0], spans[:, 1], wanted[:, 1], spans[:, 0]])
    rows, places = np.unique(edges, return_inverse=True)
    signs = np.ones(len(edges), np.int64)
    signs[len(wanted) + len(spans) :] = -1
    changes = np.zeros(len(rows), np.int64)
    np.add.at(changes, places.reshape(-1), signs)
    if changes.any():
        raise ValueError(f"the shards have not the rows of the ranges, from row {rows[changes != 0][0]} on")


def _shard_count(total_bytes: float, *, shard_bytes: int, rows: int) -> int:
    """The number of equal shards whose size comes nearest to the target."""
    low = max(1, int(total_bytes // shard_bytes))
    count = min((low, low + 1), key=lambda candidate: abs(total_bytes / candidate / shard_bytes - 1.0))
    return 1 if total_bytes <= shard_bytes else min(count, rows)


def _cut_positions(sizes: np.ndarray, weights: np.ndarray, *, count: int) -> np.ndarray:
    """Row positions int64 [count + 1], strictly increasing from 0 to the number of rows, that part the weights
    equally.
    """
    rows = np.concatenate(([0], np.cumsum(sizes)))
    total = np.concatenate(([0.0], np.cumsum(np.maximum(weights, 1e-9))))
    wanted = np.linspace(0.0, total[-1], count + 1)
    cuts = np.rint(np.interp(wanted, total, rows)).astype(np.int64)
    steps = np.arange(count + 1)
    cuts = np.maximum.accumulate(cuts - steps) + steps
    return np.minimum(cuts, rows[-1] - (count - steps))


def _shards(
    starts: np.ndarray, sizes: np.ndarray, cuts: np.ndarray, *, ascending: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The blocks' parts between successive cuts: row ranges int64 [S, 2], and where each shard's begin and end, int64
    [shards + 1]. `ascending` sorts them, where a later shuffle decides the order anyway.
    """
    ends = np.cumsum(sizes)
    # A part ends where a block ends, or a shard.
    stops = np.unique(np.concatenate([ends, cuts[1:]]))
    begins = np.concatenate([[0], stops[:-1]])
    block = np.searchsorted(ends, begins, "right")
    shard = np.searchsorted(cuts, begins, "right") - 1
    lows = starts[block] + begins - (ends - sizes)[block]
    highs = lows + stops - begins
    if ascending:
        order = np.lexsort((lows, shard))
        lows, highs = lows[order], highs[order]  # the shards are in order already
    merged = _merged(lows, highs, owners=shard)
    return merged, np.searchsorted(np.cumsum(merged[:, 1] - merged[:, 0]), cuts, "right")


def _merged(starts: np.ndarray, stops: np.ndarray, owners: np.ndarray | None = None) -> np.ndarray:
    """Row ranges int64 [n, 2] with neighbours of the same owner joined."""
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] != stops[:-1]
    if owners is not None:
        begins[1:] |= owners[1:] != owners[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(starts)) - 1
    return np.stack([starts[first], stops[last]], axis=1)


def _as_segments(spans: np.ndarray) -> RowRanges:
    return tuple((start, stop) for start, stop in spans.tolist())
