"""The choice of a split's sample: which row groups are read, and which of their rows are tokenized.

It follows from the groups, the ranges and the seed alone, so it is the same wherever the rows are stored. A launcher
far from them should receive only a small share of their bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines.prepare.plan.planning import split_seed
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.sources.parquet.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["ROWS", "SampleChoice", "choices", "in_ranges"]

ROWS = 4096
_RUN_ROWS = 16
# The most that filters may enlarge a sample, and the factor for each time that they leave no row of it.
_MOST_TIMES = 16
# Bytes as fetched: with workers elsewhere, the launcher receives less than 2 % of a source of 400 MB.
_MOST_GROUPS = 256
_MOST_BYTES = 3 << 20
_SHARE = 0.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleChoice:
    """Rows to read, and rows among them to tokenize, as ascending [start, stop) ranges of row indices within the split.

    `read_ranges` int64 [S, 2]; `tokenized_ranges` int64 [R, 2], all short. `whole`: every row of the split is read.
    """

    read_ranges: np.ndarray
    tokenized_ranges: np.ndarray
    whole: bool = False

    @property
    def num_sampled(self) -> int:
        """Number of rows in `tokenized_ranges`."""
        return int((self.tokenized_ranges[:, 1] - self.tokenized_ranges[:, 0]).sum())


def choices(spec: ShardSpec, split: SplitSource) -> Iterator[SampleChoice]:
    """Yield what to read; and, as long as filters leave no row of it, a larger choice to read instead."""
    share = split.reader.share
    times, larger = min(_MOST_TIMES, math.ceil(1 / share)), 1
    covered = cover(split.groups.ends, split.ranges)
    while True:
        yield _choose(spec, split, covered, times=times * larger, larger=larger)
        if share == 1.0 or times * larger * ROWS >= split.num_rows:
            return
        larger *= _MOST_TIMES


def in_ranges(span: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Translate a span of indices among the rows of `ranges` into ranges of row numbers."""
    found = []
    first = 0
    for start, stop in ranges:
        last = first + stop - start
        low, high = max(span[0], first), min(span[1], last)
        if low < high:
            found.append((start + low - first, start + high - first))
        first = last
    return found


def _choose(spec: ShardSpec, split: SplitSource, covered: Cover, *, times: int, larger: int) -> SampleChoice:
    """Choose `times` as many rows as without filters, from `larger` times as many groups."""
    rng = np.random.default_rng([spec.seed, split_seed(split.name), 1])
    rows, most = _RUN_ROWS, ROWS * times
    every = np.array([[0, split.num_rows]])
    stored = split.groups.stored_bytes[covered.groups]
    limit = larger * max(_MOST_BYTES, _SHARE * float(stored.sum()))
    if len(covered) <= larger * _MOST_GROUPS and stored.sum() <= larger * _MOST_BYTES:
        tokenized_ranges = _ranges_of(every, most, rows=rows, all_of_it=times > 1 and most >= split.num_rows, rng=rng)
        return SampleChoice(read_ranges=every, tokenized_ranges=tokenized_ranges, whole=True)
    chosen = _groups(covered, stored, limit=limit, most=larger * _MOST_GROUPS, seed=(spec.seed, split_seed(split.name)))
    stops = covered.ends[chosen]
    read_ranges = np.stack([stops - covered.counts[chosen], stops], axis=1)
    tokenized_ranges = _ranges_of(
        read_ranges, max(1, round(most / len(read_ranges) / rows)) * rows, rows=rows, all_of_it=False, rng=rng
    )
    # The user's functions run on every row that is read: read no more than is tokenized.
    if split.reader.changes is not None:
        return SampleChoice(read_ranges=tokenized_ranges, tokenized_ranges=tokenized_ranges)
    return SampleChoice(read_ranges=read_ranges, tokenized_ranges=tokenized_ranges)


def _groups(covered: Cover, stored: np.ndarray, *, limit: float, most: int, seed: tuple[int, int]) -> np.ndarray:
    """Choose parts of the cover (ascending indices), one from each of equal stretches of the split.

    A part is as likely as it has rows. Together they have at most `limit` bytes, but there is at least one.
    """
    ends = covered.ends
    count = min(most, len(covered))
    while True:
        edges = np.linspace(0, ends[-1], count + 1).astype(np.int64)
        row_indices = np.random.default_rng([*seed, 3]).integers(edges[:-1], np.maximum(edges[1:], edges[:-1] + 1))
        chosen = np.unique(np.searchsorted(ends, row_indices, "right"))
        num_bytes = float(stored[chosen].sum())
        if num_bytes <= limit or count == 1:
            return chosen
        count = max(1, min(count - 1, int(count * limit / num_bytes)))


def _ranges_of(
    read_ranges: np.ndarray, most: int, *, rows: int, all_of_it: bool, rng: np.random.Generator
) -> np.ndarray:
    """Return short ranges of `rows` rows in each read range, one at a random position in each of its equal parts.

    They have about `most` rows for each read range, or cover `all_of_it`.
    """
    found = []
    for first, last in read_ranges.tolist():
        if all_of_it:
            found += [(start, min(start + rows, last)) for start in range(first, last, rows)]
            continue
        count = max(1, min(most, last - first) // rows)
        edges = np.linspace(first, last, count + 1).astype(np.int64).tolist()
        starts = [int(rng.integers(low, max(low + 1, high - rows + 1))) for low, high in itertools.pairwise(edges)]
        found += [(start, min(start + rows, high)) for start, high in zip(starts, edges[1:], strict=True)]
    return np.array(found, np.int64)
