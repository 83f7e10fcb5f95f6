"""The plan: how many shards, and which rows go into which, decided before anything is written.

    rows of a split    in blocks of at most 1,000 consecutive rows, fewer where rows are long
    blocks             permuted by the seed (or left in source order), each with the bytes that it will give
    shards             equal parts of those bytes, cut to the row

              block 3      block 0      block 7       block 2
          |............|......|.....|..........|............|
    shards    shard 0         |       shard 1  |   shard 2

The predicted bytes come from a small sample, as a function of the text's length (`prediction`). Equal parts keep
every shard within a few percent of each other. That they are also within 10 % of the target is possible only when a
whole number of targets comes near the split's size; from 4.5 targets on it always does.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tfrecord_io.errors import FormatError
from tfrecord_io.json_fields import NAME, WRONG, count, items, mapping, text

__all__ = ["BlockCutter", "Blocks", "Segments", "ShardTask", "SplitPlan", "block_rows", "plan_split", "split_seed"]

Segments = tuple[tuple[int, int], ...]

MAX_BLOCK_ROWS = 1_000
# Blocks of one shard come from anywhere in the split: the more there are, the more alike are the shards. And a cut
# inside a block takes its rows for equal, which must not matter.
_BLOCKS_PER_SHARD = 128
_ROOM = 2.0


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
    """The unit of work: shard `index` of `count`, made of the rows in `segments`, read in that order."""

    split: str
    index: int
    count: int
    segments: Segments

    @property
    def num_rows(self) -> int:
        """Rows to be read."""
        return _num_rows(self.segments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """One split's shards, and the row ranges of the source that they share out."""

    split: str
    ranges: Segments
    predicted_bytes: int
    shards: tuple[Segments, ...]

    def tasks(self) -> list[ShardTask]:
        """One task for each shard."""
        return [
            ShardTask(split=self.split, index=index, count=len(self.shards), segments=segments)
            for index, segments in enumerate(self.shards)
        ]

    def to_json(self) -> dict[str, Any]:
        """As plan files hold it."""
        # Not dataclasses.asdict, which copies every number and takes longer than all the rest of a plan.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, document: Any, *, place: str) -> SplitPlan:
        """Raises: FormatError if `document` is not what `to_json` gave."""
        try:
            fields = mapping(document)
            plan = cls(
                split=text(fields["split"], NAME),
                ranges=_segments(fields["ranges"]),
                predicted_bytes=count(fields["predicted_bytes"]),
                shards=tuple(map(_segments, items(fields["shards"]))),
            )
            _require_partition(plan)
        except WRONG as error:
            raise FormatError(f"{place}: not a plan ({error!r})", remedy="start over with --overwrite") from error
        return plan


def split_seed(split: str) -> int:
    """A split's part of every seed: from its name, so that adding a split changes no other."""
    return zlib.crc32(split.encode())


def block_rows(*, row_bytes: float, shard_bytes: int) -> int:
    """Rows in one block: small beside a shard, but never more than 1,000."""
    return int(min(MAX_BLOCK_ROWS, max(1, shard_bytes / (_BLOCKS_PER_SHARD * max(row_bytes, 1.0)))))


class BlockCutter:
    """Cuts rows into blocks as they are read: of at most `rows` rows, ended early where their bytes come to about
    twice those of as many average rows; a row that comes to that alone is a block of its own.
    """

    def __init__(self, *, rows: int, row_bytes: float) -> None:
        self._rows = rows
        self._bytes = max(_ROOM * rows * row_bytes, 1.0)
        self._starts: list[np.ndarray] = []
        self._stops: list[np.ndarray] = []
        self._sums: list[np.ndarray] = []
        self._next = -1
        self._num_rows, self._num_bytes, self._open_bytes = 0, 0.0, 0.0
        self._period, self._after_long = -1.0, False

    def add(self, first: int, weights: np.ndarray) -> None:
        """Takes the rows from number `first` on, with the bytes that each is predicted to give, float64 [n]."""
        if not len(weights):
            return
        total = self._num_bytes + np.cumsum(weights)
        turn = (self._num_rows + np.arange(len(weights))) // self._rows
        # Both parts only grow, so that their sum changes where one of them does.
        period = turn + np.concatenate([[self._num_bytes], total[:-1]]) // self._bytes
        long = weights >= self._bytes
        begins = (np.diff(period, prepend=self._period) != 0) | long | np.concatenate([[self._after_long], long[:-1]])
        begins[0] |= first != self._next
        self._begin(first, np.flatnonzero(begins), weights)
        self._next = first + len(weights)
        self._num_rows += len(weights)
        self._num_bytes = float(total[-1])
        self._period, self._after_long = float(period[-1]), bool(long[-1])

    def blocks(self) -> Blocks:
        """The blocks of all rows so far."""
        if not self._starts:
            return Blocks(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        stops = np.concatenate([*self._stops, [self._next]])
        return Blocks(np.concatenate(self._starts), stops, np.concatenate([*self._sums, [self._open_bytes]]))

    def _begin(self, first: int, edges: np.ndarray, weights: np.ndarray) -> None:
        """Adds the weights before the first edge to the open block, closes it, and begins one at each edge."""
        inner = edges[0] if len(edges) else len(weights)
        self._open_bytes += float(weights[:inner].sum())
        if not len(edges):
            return
        sums = np.add.reduceat(weights, edges)
        if self._starts:
            # Where rows do not go on, the open block ends where they broke off.
            self._stops.append(np.array([self._next if inner == 0 else first + inner], np.int64))
            self._sums.append(np.array([self._open_bytes]))
        self._starts.append(first + edges.astype(np.int64))
        self._stops.append(first + edges[1:].astype(np.int64))
        self._sums.append(sums[:-1])
        self._open_bytes = float(sums[-1])


def plan_split(
    blocks: Blocks, *, split: str, ranges: Sequence[tuple[int, int]], shard_bytes: int, seed: int, shuffle: bool
) -> SplitPlan:
    """Shares the blocks out. Every row goes into exactly one shard, and every shard has at least one."""
    order = np.arange(len(blocks))
    if shuffle:
        np.random.default_rng([seed, split_seed(split)]).shuffle(order)
    starts, stops = blocks.starts[order], blocks.stops[order]
    weights = blocks.predicted_bytes[order]
    count = _shard_count(float(weights.sum()), shard_bytes=shard_bytes, rows=int((stops - starts).sum()))
    cuts = _cut_positions(stops - starts, weights, count=count)
    return SplitPlan(
        split=split,
        ranges=tuple((int(start), int(stop)) for start, stop in ranges),
        predicted_bytes=round(float(weights.sum())),
        shards=tuple(_shards(starts, stops, cuts, ascending=shuffle)),
    )


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


def _shards(starts: np.ndarray, stops: np.ndarray, cuts: np.ndarray, *, ascending: bool) -> list[Segments]:
    """The blocks' parts between successive cuts. `ascending` sorts them, where a later shuffle decides the order
    anyway.
    """
    ends = np.cumsum(stops - starts)
    begins = ends - (stops - starts)
    shards = []
    for first, last in itertools.pairwise(cuts):
        inside = np.arange(np.searchsorted(ends, first, "right"), np.searchsorted(begins, last, "left"))
        lows = starts[inside] + np.maximum(first - begins[inside], 0)
        highs = stops[inside] - np.maximum(ends[inside] - last, 0)
        parts = sorted(zip(lows, highs, strict=True)) if ascending else list(zip(lows, highs, strict=True))
        shards.append(_merged(parts))
    return shards


def _merged(parts: Sequence[tuple[int, int]]) -> Segments:
    merged: list[tuple[int, int]] = []
    for start, stop in parts:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], int(stop))
        else:
            merged.append((int(start), int(stop)))
    return tuple(merged)


def _num_rows(segments: Segments) -> int:
    return sum(stop - start for start, stop in segments)


def _segments(value: Any) -> Segments:
    segments = tuple((count(start), count(stop)) for start, stop in map(items, items(value)))
    if not segments or any(stop <= start for start, stop in segments):
        raise ValueError("row ranges, expected [start, stop) with 0 <= start < stop")
    return segments


def _require_partition(plan: SplitPlan) -> None:
    """Every row is in as many shards as ranges: mostly one, but joined slices may have rows in common.

    Raises: ValueError. How often rows are covered is compared by where it changes, in arrays: a large plan has a
    million segments, and every worker reads it.
    """
    wanted, got = _edges(plan.ranges), _edges(itertools.chain.from_iterable(plan.shards))
    rows, places = np.unique(np.concatenate([wanted, got]), return_inverse=True)
    signs = np.ones(len(places), np.int64)
    signs[1::2] = -1  # starts and stops take turns
    signs[len(wanted) :] *= -1
    changes = np.zeros(len(rows), np.int64)
    np.add.at(changes, places.reshape(-1), signs)
    if changes.any():
        raise ValueError(f"the shards have not the rows of the ranges, from row {rows[changes != 0][0]} on")


def _edges(segments: Iterable[tuple[int, int]]) -> np.ndarray:
    """Start, stop, start, stop, ... int64."""
    return np.fromiter(itertools.chain.from_iterable(segments), np.int64)
