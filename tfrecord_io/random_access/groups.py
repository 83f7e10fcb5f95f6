"""Maps row numbers to bytes of shards: which groups of records to read, and where in them each row is.

An index has the byte of every `stride`-th record, so what can be read by itself is a group of that many records:

    row of the split   ─►  shard, record of it  ─►  group = record // stride,  skip = record % stride
    groups of a shard        │ 0 ........ │ 1 ........ │ 2 ...... │         edges: where they begin, and the shard's end
    to read                  └────── one span ─────────┘                    neighbours are read together
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["Groups", "Placed", "Shards", "Spans", "place"]


class Spans(NamedTuple):
    """Bytes [start, stop) of shards that are each read at once: int64 [R] three times."""

    shards_R: np.ndarray
    starts_R: np.ndarray
    stops_R: np.ndarray


class Groups(NamedTuple):
    """Bytes of some groups, and the N records that are wanted of them: number `skips_N` of the group that lies in
    `data` from byte `starts_N` to `stops_N`. All int64 [N], in the order of the request.
    """

    data: np.ndarray
    starts_N: np.ndarray
    stops_N: np.ndarray
    skips_N: np.ndarray

    def only(self, at: int) -> Groups:
        """The one record at a place of the request."""
        here = slice(at, at + 1)
        return Groups(self.data, self.starts_N[here], self.stops_N[here], self.skips_N[here])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """The shards of a split: names, and records of each."""

    names: tuple[str, ...]
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @functools.cached_property
    def ends(self) -> list[int]:
        """The first row behind each shard."""
        return np.cumsum(self.rows, dtype=np.int64).tolist()

    @functools.cached_property
    def ends_S(self) -> np.ndarray:
        """Rows up to the end of each shard, int64 [S]."""
        return np.array(self.ends, np.int64)

    def locate(self, row: int) -> tuple[int, int]:
        """The shard of a row, and its record there."""
        shard = bisect.bisect_right(self.ends, row)
        return shard, row - (self.ends[shard - 1] if shard else 0)

    def locate_all(self, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Locate many rows: `locate` for row numbers int64 [N]."""
        shards_N = np.searchsorted(self.ends_S, rows_N, side="right")
        firsts_N = np.where(shards_N > 0, self.ends_S[shards_N - 1], 0)
        return shards_N, rows_N - firsts_N


class Placed(NamedTuple):
    """What to read for N rows: spans, which lie one behind the other once they are read, and where each row's group is
    among their bytes (see `Groups`).
    """

    spans: Spans
    starts_N: np.ndarray
    stops_N: np.ndarray
    skips_N: np.ndarray


def place(
    shards_N: np.ndarray, records_N: np.ndarray, *, stride: int, edges: Callable[[int], np.ndarray], gap: int
) -> Placed:
    """Where these records are, given the edges of each shard's groups; those at most `gap` bytes apart are one span."""
    entries_N, skips_N = np.divmod(records_N, stride)
    # Sorted by shard and group, each group once.
    key_N = (shards_N << 40) | entries_N
    key_G, group_N = np.unique(key_N, return_inverse=True)
    shard_G, entry_G = key_G >> 40, key_G & ((1 << 40) - 1)
    start_G, stop_G = _bounds(shard_G, entry_G, edges)
    new_G = np.ones(len(key_G), np.bool_)
    new_G[1:] = (shard_G[1:] != shard_G[:-1]) | (start_G[1:] - stop_G[:-1] > gap)
    first_R = np.flatnonzero(new_G)
    last_R = np.append(first_R[1:], len(key_G)) - 1
    start_R, stop_R = start_G[first_R], stop_G[last_R]
    sizes_R = stop_R - start_R
    # How far the bytes of a span are shifted when all spans lie one behind the other.
    shift_G = (np.cumsum(sizes_R) - sizes_R - start_R)[np.cumsum(new_G) - 1]
    return Placed(
        spans=Spans(shard_G[first_R], start_R, stop_R),
        starts_N=(start_G + shift_G)[group_N],
        stops_N=(stop_G + shift_G)[group_N],
        skips_N=skips_N,
    )


def _bounds(
    shard_G: np.ndarray, entry_G: np.ndarray, edges: Callable[[int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [start, stop) of groups that are sorted by shard, int64 [G] twice."""
    start_G, stop_G = np.empty((2, len(shard_G)), np.int64)
    firsts = np.flatnonzero(np.diff(shard_G, prepend=-1)).tolist()
    for first, last in zip(firsts, [*firsts[1:], len(shard_G)], strict=True):
        edges_E, entries = edges(int(shard_G[first])), entry_G[first:last]
        start_G[first:last], stop_G[first:last] = edges_E[entries], edges_E[entries + 1]
    return start_G, stop_G
