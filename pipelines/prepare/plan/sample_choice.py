"""Which groups of a split are read for its sample, and which rows of them are tokenized.

It follows from the groups, the ranges and the seed alone, so that it is the same wherever the rows are: a launcher far
from them is to receive a small share of their bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines.prepare.plan.planning import split_seed
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.sources.formats.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["ROWS", "Choice", "choices", "in_ranges"]

ROWS = 4096
_RUN_ROWS = 16
# A compressed row is smaller behind others like it: rows that stay in their order are measured in longer runs.
_MOST_RUN_ROWS = 64
# How much larger a sample may become because of filters, and becomes each time that not one row of it is left.
_MOST_TIMES = 16
# Bytes as they are fetched. With workers elsewhere the launcher is to receive less than 2 % of a source of 400 MB.
_MOST_GROUPS = 256
_MOST_BYTES = 3 << 20
_SHARE = 0.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What is read and tokenized, as [start, stop) ranges of places, ascending: `spans` int64 [S, 2] are read, and in
    them the `runs` int64 [R, 2] tokenized, which belong to `clusters` int64 [R]. `whole` if every row is read, and
    `in_whole_groups` if every row of the groups that are touched.
    """

    spans: np.ndarray
    runs: np.ndarray
    clusters: np.ndarray
    whole: bool = False
    in_whole_groups: bool = True

    @property
    def num_sampled(self) -> int:
        """Rows of the runs."""
        return int((self.runs[:, 1] - self.runs[:, 0]).sum())

    def run_of(self, place: int) -> int:
        """The first run that ends behind a place."""
        return int(np.searchsorted(self.runs[:, 1], place, "right"))


def choices(spec: ShardSpec, split: SplitSource) -> Iterator[Choice]:
    """What to read; and, as long as no row of that is left by filters, what to read instead."""
    share = split.reader.share
    times, larger = min(_MOST_TIMES, math.ceil(1 / share)), 1
    found = cover(split.groups.ends, split.ranges)
    while True:
        yield _choose(spec, split, found, times=times * larger, larger=larger)
        if share == 1.0 or times * larger * ROWS >= split.num_rows:
            return
        larger *= _MOST_TIMES


def in_ranges(span: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places among the rows of `ranges`, as row numbers."""
    found = []
    first = 0
    for start, stop in ranges:
        last = first + stop - start
        low, high = max(span[0], first), min(span[1], last)
        if low < high:
            found.append((start + low - first, start + high - first))
        first = last
    return found


def _choose(spec: ShardSpec, split: SplitSource, found: Cover, *, times: int, larger: int) -> Choice:
    """`times` as many runs as of rows that are all left, of `larger` groups."""
    rng = np.random.default_rng([spec.seed, split_seed(split.name), 1])
    rows, most = _RUN_ROWS, ROWS
    if spec.compression == "gzip" and not spec.shuffle:
        most = 2 * ROWS
        rows = min(max(split.num_rows * _MOST_RUN_ROWS // most, rows), _MOST_RUN_ROWS)
    most *= times
    every = np.array([[0, split.num_rows]])
    # Of an ingested file a batch is fetched with all its columns.
    stored = np.maximum(split.groups.stored_bytes, split.groups.length)[found.groups]
    limit = larger * max(_MOST_BYTES, _SHARE * float(stored.sum()))
    if len(found) <= larger * _MOST_GROUPS and stored.sum() <= larger * _MOST_BYTES:
        runs = _runs(every, most, rows=rows, all_of_it=times > 1 and most >= split.num_rows, rng=rng)
        return Choice(spans=every, runs=runs, clusters=runs[:, 0], whole=True)
    chosen = _groups(found, stored, limit=limit, most=larger * _MOST_GROUPS, seed=(spec.seed, split_seed(split.name)))
    stops = found.ends[chosen]
    spans = np.stack([stops - found.counts[chosen], stops], axis=1)
    runs = _runs(spans, max(1, round(most / len(spans) / rows)) * rows, rows=rows, all_of_it=False, rng=rng)
    clusters = spans[np.searchsorted(spans[:, 1], runs[:, 0], "right"), 0]
    # Of what the user's functions would have to go over, no more than is needed.
    if split.reader.changes is not None:
        return Choice(spans=runs, runs=runs, clusters=clusters, in_whole_groups=False)
    return Choice(spans=spans, runs=runs, clusters=clusters)


def _groups(found: Cover, stored: np.ndarray, *, limit: float, most: int, seed: tuple[int, int]) -> np.ndarray:
    """Parts of the cover, ascending: each as likely as it has rows, one from each of equal stretches of the split, and
    as many as have at most `limit` bytes together, but at least one.
    """
    ends = found.ends
    count = min(most, len(found))
    while True:
        edges = np.linspace(0, ends[-1], count + 1).astype(np.int64)
        places = np.random.default_rng([*seed, 3]).integers(edges[:-1], np.maximum(edges[1:], edges[:-1] + 1))
        chosen = np.unique(np.searchsorted(ends, places, "right"))
        num_bytes = float(stored[chosen].sum())
        if num_bytes <= limit or count == 1:
            return chosen
        count = max(1, min(count - 1, int(count * limit / num_bytes)))


def _runs(spans: np.ndarray, most: int, *, rows: int, all_of_it: bool, rng: np.random.Generator) -> np.ndarray:
    """Short runs of places in each span, one at a seeded place in each of its equal parts, for about `most` rows a
    span; or `all_of_it`.
    """
    found = []
    for first, last in spans.tolist():
        if all_of_it:
            found += [(start, min(start + rows, last)) for start in range(first, last, rows)]
            continue
        count = max(1, min(most, last - first) // rows)
        edges = np.linspace(first, last, count + 1).astype(np.int64).tolist()
        starts = [int(rng.integers(low, max(low + 1, high - rows + 1))) for low, high in itertools.pairwise(edges)]
        found += [(start, min(start + rows, high)) for start, high in zip(starts, edges[1:], strict=True)]
    return np.array(found, np.int64)
