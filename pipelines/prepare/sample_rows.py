"""The rows of a sample: short runs of neighbours from all along a split, tokenized, or where they are long, weighed.

    split     |.......|.......|.......|.......|  equal parts, one for each cluster
    sample      ==        ==  ==           ==    a few neighbouring rows, at a seeded place in each

Every fourth cluster is tokenized first, and the others only if the rows are not so long that those are enough. Where
the user's filters leave few rows, there are more clusters, so that about as many rows are measured.

Tokenizing every long row would take too long, but without them all rows would seem short. So each usable row counts:
one that is not tokenized is weighed, by the bytes of its text.

    a cluster   |== ==== =====|=========== ==      tokenized as far as its room goes, the rest is weighed
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare import unencodable
from pipelines.prepare.columns import extract, sizes_of, validate
from pipelines.prepare.crosscheck import CrossCheck
from pipelines.prepare.job import Job
from pipelines.prepare.layouts import Encoded, Tools
from pipelines.prepare.planning import Segments, split_seed
from pipelines.prepare.shards import batches
from pipelines.prepare.opened import SplitSource
from pipelines.prepare.stepped_files import SteppedFiles

__all__ = ["SampledRows", "TokenizedRows", "read"]

_ROWS = 4096
_CLUSTER_ROWS = 16
# A compressed row is smaller behind others like it: rows that stay in their order are measured in longer runs.
_MOST_CLUSTER_ROWS = 64
_ROW_BYTES = 1 << 10
# The first row of a cluster may be longer than its room. All of them together are to have at most so many bytes for
# each cluster, so that of rows of twice as many only every second is tokenized, and so on.
_LONG_ROW_BYTES = 1 << 15
_FIRST = 4
# How much larger a sample may become because of filters, and becomes each time that not one row of it is left.
_MOST_TIMES = 16
# What the first clusters may hold of text and of positions in records for the others to be read too, and how many
# positions they may have at all.
_ENOUGH_BYTES = 2 << 20
_ENOUGH_POSITIONS = 16 << 20
_MOST_POSITIONS = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedRows:
    """N rows in reading order: their clusters, their places among the rows to be read, the bytes of their text, all
    their tokens, and the records that can be made of them where each row has its own (int64 [N] each).
    """

    clusters: np.ndarray
    places: np.ndarray
    text_bytes: np.ndarray
    tokens: np.ndarray
    records: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRows:
    """A split's sample: N tokenized rows with what became of them, and M rows that were weighed: their places, and the
    bytes of their text, int64 [M] each.
    """

    tokenized: TokenizedRows
    encoded: Sequence[Encoded]
    weighed_places: np.ndarray
    weighed_bytes: np.ndarray


def read(job: Job, tools: Tools, split: SplitSource) -> SampledRows | None:
    """The split's sample; None if no row of it can be used.

    Raises: EngineDisproved if the engine gives other tokens for one of the rows than the reference.
    """
    share = split.files.share if isinstance(split.files, SteppedFiles) else 1.0
    times = min(_MOST_TIMES, math.ceil(1 / share))
    found = _read_some(job, tools, split, times=times)
    while found is None and share < 1.0 and times * _ROWS < split.num_rows:
        times *= _MOST_TIMES
        found = _read_some(job, tools, split, times=times)
    return found


def reasons(job: Job, tools: Tools, split: SplitSource) -> dict[str, int]:
    """Why the first rows of the split cannot be used: how many for each reason."""
    counted: collections.Counter[str] = collections.Counter()
    first = tuple(_in_ranges((0, min(_ROWS, split.num_rows)), split.ranges))
    for row, batch in batches(job, split.name, first):
        rows, found = extract(batch, job.columns, first=row)
        usable = np.flatnonzero(found == "")
        if len(usable):
            found[usable] = unencodable.encode(tools, rows, split=split.name, numbers=row + usable).reasons
        counted.update(found[found != ""].tolist())
    return dict(sorted(counted.items()))


def _read_some(job: Job, tools: Tools, split: SplitSource, *, times: int) -> SampledRows | None:
    clusters = _clusters(job, split, times=times)
    positions = min(_ROWS, sum(stop - start for start, stop in clusters)) * job.length
    step = _FIRST * max(1, positions // (_FIRST * _MOST_POSITIONS))
    others = [index for index in range(len(clusters)) if index % step]
    reading = _Reading(job, tools, split, clusters)
    # The first clusters come from all along the split, and are what an engine has to get right before it makes a shard:
    # comparing all of them would take longer than the rest of a small job.
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        checks = CrossCheck(tools, pool=beside)
        reading.tokenize(range(0, len(clusters), step), checks=checks)
        if reading.text_bytes <= _ENOUGH_BYTES and positions <= _ENOUGH_POSITIONS:
            reading.tokenize(others)
        else:
            reading.weigh(others)
        reading.require_one()
        checks.finish()
    return reading.found()


def _clusters(job: Job, split: SplitSource, *, times: int = 1) -> list[tuple[int, int]]:
    """Short runs of places, one at a seeded place in each of equal parts of the rows to be read; `times` as many."""
    rng = np.random.default_rng([job.seed, split_seed(split.name), 1])
    rows, most = _CLUSTER_ROWS, _ROWS
    if job.compression == "gzip" and not job.shuffle:
        most = 2 * _ROWS
        rows = min(max(split.num_rows * _MOST_CLUSTER_ROWS // most, rows), _MOST_CLUSTER_ROWS)
    if times > 1 and times * most >= split.num_rows:
        return [(start, min(start + rows, split.num_rows)) for start in range(0, split.num_rows, rows)]
    count = max(1, min(times * most, split.num_rows) // rows)
    edges = np.linspace(0, split.num_rows, count + 1).astype(np.int64).tolist()
    starts = [int(rng.integers(low, max(low + 1, high - rows + 1))) for low, high in itertools.pairwise(edges)]
    return [(start, min(start + rows, high)) for start, high in zip(starts, edges[1:], strict=True)]


class _Reading:
    """Reads clusters of a split. `text_bytes` are those of the rows that were tokenized."""

    def __init__(self, job: Job, tools: Tools, split: SplitSource, clusters: Sequence[tuple[int, int]]) -> None:
        self.text_bytes = 0
        self._job, self._tools, self._split = job, tools, split
        self._clusters = clusters
        self._parts: list[tuple[TokenizedRows, Encoded]] = []
        self._weighed: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]

    def tokenize(self, which: Sequence[int], *, checks: CrossCheck | None = None) -> None:
        """Tokenizes rows of some clusters as far as there is room, for `checks` to compare, and weighs the others."""
        places, owners = self._places(which)
        first = 0
        for row, batch in batches(self._job, self._split.name, self._segments(which)):
            cluster, these = int(owners[first]), places[first : first + batch.num_rows]
            text_bytes = sizes_of(batch, self._job.columns.content)
            within = self._within(text_bytes, these[0], cluster=cluster)
            if within:
                start = self._clusters[cluster][0]
                self._tokenize(batch.slice(0, within), row, these, text_bytes, start=start, checks=checks)
            if within < batch.num_rows:
                self._weigh(batch.slice(within), these[within:], text_bytes[within:])
            first += batch.num_rows

    def weigh(self, which: Sequence[int]) -> None:
        """Weighs all rows of some clusters, without reading their texts."""
        if isinstance(self._split.files, SteppedFiles):
            return  # the user's functions would have to read them, for longer than all the rest takes
        places, _ = self._places(which)
        first = 0
        columns = self._job.columns
        for _, batch in self._split.read(self._segments(which), columns.names, unread=columns.texts):
            self._weigh(batch, places[first : first + batch.num_rows], sizes_of(batch, columns.content))
            first += batch.num_rows

    def require_one(self) -> None:
        """Tokenizes the shortest row that was weighed, if there are no others: nothing could be told from none."""
        places, text_bytes = (np.concatenate(each) for each in zip(*self._weighed, strict=True))
        if self._parts or not len(places):
            return
        shortest = int(text_bytes.argmin())
        place = int(places[shortest])
        self._weighed = [(np.delete(places, shortest), np.delete(text_bytes, shortest))]
        segments = tuple(_in_ranges((place, place + 1), self._split.ranges))
        for row, batch in batches(self._job, self._split.name, segments):
            self._tokenize(batch, row, np.array([place]), text_bytes[[shortest]], start=place)

    def found(self) -> SampledRows | None:
        """What was read; None if no record can be made of it."""
        if not any(rows.records.any() for rows, _ in self._parts):
            return None
        parts = sorted(self._parts, key=lambda part: int(part[0].places[0]))
        names = [field.name for field in dataclasses.fields(TokenizedRows)]
        places, text_bytes = (np.concatenate(each) for each in zip(*self._weighed, strict=True))
        return SampledRows(
            tokenized=TokenizedRows(
                **{name: np.concatenate([getattr(rows, name) for rows, _ in parts]) for name in names}
            ),
            encoded=[encoded for _, encoded in parts],
            weighed_places=places,
            weighed_bytes=text_bytes,
        )

    def _places(self, which: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The places of some clusters' rows, and each row's cluster, int64 [n] each."""
        spans = [self._clusters[index] for index in which]
        places = np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in spans)])
        return places, np.repeat(np.asarray(which, np.int64), [stop - start for start, stop in spans])

    def _segments(self, which: Sequence[int]) -> Segments:
        return tuple(part for index in which for part in _in_ranges(self._clusters[index], self._split.ranges))

    def _within(self, text_bytes: np.ndarray, place: int, *, cluster: int) -> int:
        """How many rows of a batch from `place` on are tokenized."""
        start, stop = self._clusters[0]
        fit = int((np.cumsum(text_bytes) <= (stop - start) * _ROW_BYTES).sum())
        if fit or place != self._clusters[cluster][0]:
            return fit
        return int(cluster % -(-int(text_bytes[0]) // _LONG_ROW_BYTES) == 0)

    def _tokenize(
        self,
        batch: pa.RecordBatch,
        row: int,
        places: np.ndarray,
        text_bytes: np.ndarray,
        *,
        start: int,
        checks: CrossCheck | None = None,
    ) -> None:
        rows, reasons = extract(batch, self._job.columns, first=row)
        usable = np.flatnonzero(reasons == "")
        if not len(usable):
            return
        encoded = unencodable.encode(self._tools, rows, split=self._split.name, numbers=row + usable)
        if checks is not None:
            checks.add(rows, encoded, numbers=row + usable, which=np.arange(len(usable)))
        tokenized = TokenizedRows(
            clusters=np.full(len(usable), start),
            places=places[usable],
            text_bytes=text_bytes[usable],
            tokens=encoded.full_lengths,
            records=encoded.num_runs * (encoded.reasons == ""),
        )
        self._parts.append((tokenized, encoded))
        self.text_bytes += int(tokenized.text_bytes.sum())

    def _weigh(self, batch: pa.RecordBatch, places: np.ndarray, text_bytes: np.ndarray) -> None:
        usable = validate(batch, self._job.columns) == ""
        self._weighed.append((places[usable], text_bytes[usable]))


def _in_ranges(span: tuple[int, int], ranges: Segments) -> list[tuple[int, int]]:
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
