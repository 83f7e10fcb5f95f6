"""The rows of a sample: those of a few groups are read, and short runs of neighbours among them are tokenized.

    split     |.......|.......|.......|.......|  groups from all along it: at most 256, of 0.5 % of its bytes or 3 MB
    read         |===|      |===|   |===|        each of them as a whole, since it is decoded as a whole
    sample        = =        = =     = =         a few neighbouring rows, at seeded places

Every row that is read is weighed, by the bytes of its text. Of a split of no more than 3 MB all rows are read, so that
nothing has to be guessed from groups. Where the user's functions would have to go over all that is read, only the runs
are, and where filters leave few rows, there are more runs, so that about as many rows are measured.

Every fourth run is tokenized first, and the others only if the rows are not so long that those are enough. Tokenizing
every long row would take too long, but without them all rows would seem short. So each usable row of a run counts: one
that is not tokenized is weighed.

    a run       |== ==== =====|=========== ==      tokenized as far as its room goes, the rest is weighed
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.crosscheck import unencodable
from pipelines.prepare.crosscheck.comparing import CrossCheck
from pipelines.prepare.layouts import BatchEncoder, Encoded
from pipelines.prepare.plan import sample_choice
from pipelines.prepare.plan.sample_choice import Choice
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.sources.columns.extraction import extract, sizes_of, validate
from pipelines.prepare.sources.columns.rejected import RejectedRow
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["ReadRows", "SampledRows", "TokenizedRows", "read", "reasons"]

_ROW_BYTES = 1 << 10
# The first row of a run may be longer than its room. All of them together are to have at most so many bytes for each
# run, so that of rows of twice as many only every second is tokenized, and so on.
_LONG_ROW_BYTES = 1 << 15
_FIRST = 4
# What the first runs may hold of text and of positions in records for the others to be tokenized too, and how many
# positions they may have at all.
_ENOUGH_BYTES = 2 << 20
_ENOUGH_POSITIONS = 16 << 20
_MOST_POSITIONS = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedRows:
    """N rows in reading order: their clusters, their places among the rows to be read, the bytes of their text, all
    their tokens, and the records that can be made of them where each row has its own (int64 [N] each). A cluster is a
    run, or all runs of one group, where these come from few groups.
    """

    clusters: np.ndarray
    places: np.ndarray
    text_bytes: np.ndarray
    tokens: np.ndarray
    records: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadRows:
    """K rows that were read, tokenized or not, in reading order: their numbers in the split and the bytes of their
    text, int64 [K], and why they cannot be used ('' where they can, see `columns`), object [K]. `whole` if these are
    all rows, `in_whole_groups` if they are all rows of their groups that are in the ranges. `refused` are rows that
    turned out when they were tokenized to be of no use, such as too long ones.
    """

    numbers: np.ndarray
    text_bytes: np.ndarray
    reasons: np.ndarray
    whole: bool
    in_whole_groups: bool
    refused: tuple[RejectedRow, ...] = ()

    @property
    def usable(self) -> np.ndarray:
        """Whether each can be used, bool [K]."""
        return np.asarray(self.reasons == "", bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRows:
    """A split's sample: N tokenized rows with what became of them, M rows of the runs that were only weighed: their
    places, and the bytes of their text, int64 [M] each; all rows that were read; and the seconds that tokenizing took.
    """

    tokenized: TokenizedRows
    encoded: Sequence[Encoded]
    weighed_places: np.ndarray
    weighed_bytes: np.ndarray
    read: ReadRows
    seconds: float


def read(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> SampledRows | None:
    """The split's sample; None if no row of it can be used.

    Raises: TokensDiffer if the engine gives other tokens for one of the rows than the reference.
    """
    for choice in sample_choice.choices(spec, split):
        if (found := _read_chosen(spec, encoder, split, choice)) is not None:
            return found
    return None


def reasons(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> dict[str, int]:
    """Why the first rows of the split cannot be used: how many for each reason."""
    counted: collections.Counter[str] = collections.Counter()
    first = sample_choice.in_ranges((0, min(sample_choice.ROWS, split.num_rows)), split.ranges)
    for row, batch in split.read(first, spec.columns.names):
        rows, found = extract(batch, spec.columns, first=row)
        usable = np.flatnonzero(found == "")
        if len(usable):
            found[usable] = unencodable.encode(encoder, rows, split=split.name, numbers=row + usable).reasons
        counted.update(found[found != ""].tolist())
    return dict(sorted(counted.items()))


def _read_chosen(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource, choice: Choice) -> SampledRows | None:
    positions = choice.num_sampled * spec.length
    step = _FIRST * max(1, positions // (_FIRST * _MOST_POSITIONS))
    reading = _Reading(spec, encoder, split, choice, step=step)
    # The first runs come from all along the split, and are what an engine has to get right before it makes a shard:
    # comparing all of them would take longer than the rest of a small spec.
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        checks = CrossCheck(encoder, pool=beside)
        reading.read(checks)
        reading.end(tokenize=reading.text_bytes <= _ENOUGH_BYTES and positions <= _ENOUGH_POSITIONS)
        reading.require_one()
        checks.finish()
    return reading.found()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """Rows of a run from `place` on, which is number `first` of the split, with the bytes of their text, int64 [n]."""

    index: int
    place: int
    first: int
    rows: pa.RecordBatch
    text_bytes: np.ndarray

    def part(self, start: int, stop: int) -> _Run:
        """Some of the rows."""
        return dataclasses.replace(
            self,
            place=self.place + start,
            first=self.first + start,
            rows=self.rows.slice(start, stop - start),
            text_bytes=self.text_bytes[start:stop],
        )

    def copied(self) -> _Run:
        """The same, without the batch that they are a part of."""
        return dataclasses.replace(self, rows=self.rows.take(pa.array(np.arange(len(self.text_bytes)))))


class _Reading:
    """Reads what was chosen of a split. Every `step`-th run is tokenized at once; `text_bytes` are those of the rows
    that were tokenized.
    """

    def __init__(
        self, spec: ShardSpec, encoder: BatchEncoder, split: SplitSource, choice: Choice, *, step: int
    ) -> None:
        self.text_bytes = 0
        self._spec, self._encoder, self._split = spec, encoder, split
        self._choice, self._step = choice, step
        self._seconds = 0.0
        self._waiting: list[_Run] = []
        self._parts: list[tuple[TokenizedRows, Encoded]] = []
        self._weighed: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        self._read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._refused: list[RejectedRow] = []

    def read(self, checks: CrossCheck) -> None:
        """Reads and weighs all rows, and tokenizes the first runs as far as there is room, for `checks` to compare."""
        for place, first, batch in self._batches():
            text_bytes = sizes_of(batch, self._spec.columns.content)
            numbers = np.arange(first, first + batch.num_rows)
            self._read.append((numbers, text_bytes, validate(batch, self._spec.columns)))
            every = _Run(index=-1, place=place, first=first, rows=batch, text_bytes=text_bytes)
            for run in self._runs(every):
                self._take(run, checks)

    def end(self, *, tokenize: bool) -> None:
        """Tokenizes what has waited for it, or weighs it."""
        for run in self._waiting:
            if tokenize:
                self._tokenize(run)
            else:
                self._weigh(run)

    def require_one(self) -> None:
        """Tokenizes the shortest row that was weighed, if there are no others: nothing could be told from none."""
        places, text_bytes = (np.concatenate(each) for each in zip(*self._weighed, strict=True))
        if self._parts or not len(places):
            return
        shortest = int(text_bytes.argmin())
        place = int(places[shortest])
        self._weighed = [(np.delete(places, shortest), np.delete(text_bytes, shortest))]
        row_ranges = sample_choice.in_ranges((place, place + 1), self._split.ranges)
        for row, batch in self._split.read(row_ranges, self._spec.columns.names):
            index = self._choice.run_of(place)
            self._tokenize(_Run(index=index, place=place, first=row, rows=batch, text_bytes=text_bytes[[shortest]]))

    def found(self) -> SampledRows | None:
        """What was read; None if no record can be made of it."""
        if not any(rows.records.any() for rows, _ in self._parts):
            return None
        parts = sorted(self._parts, key=lambda part: int(part[0].places[0]))
        names = [field.name for field in dataclasses.fields(TokenizedRows)]
        places, text_bytes = (np.concatenate(each) for each in zip(*self._weighed, strict=True))
        numbers, sizes, why = (np.concatenate(each) for each in zip(*self._read, strict=True))
        return SampledRows(
            tokenized=TokenizedRows(
                **{name: np.concatenate([getattr(rows, name) for rows, _ in parts]) for name in names}
            ),
            encoded=[encoded for _, encoded in parts],
            weighed_places=places,
            weighed_bytes=text_bytes,
            read=ReadRows(
                numbers=numbers,
                text_bytes=sizes,
                reasons=why,
                whole=self._choice.whole,
                in_whole_groups=self._choice.in_whole_groups,
                refused=tuple(sorted(self._refused, key=lambda row: row.row)),
            ),
            seconds=self._seconds,
        )

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """(place, number in the split, rows) of successive rows."""
        spans = self._choice.spans
        row_ranges = [part for span in spans.tolist() for part in sample_choice.in_ranges(span, self._split.ranges)]
        ends = np.cumsum(spans[:, 1] - spans[:, 0])
        done = 0
        for first, batch in self._split.read(row_ranges, self._spec.columns.names):
            start = 0
            while start < batch.num_rows:
                span = int(np.searchsorted(ends, done, "right"))
                count = min(batch.num_rows - start, int(ends[span]) - done)
                yield int(spans[span, 1]) - int(ends[span]) + done, first + start, batch.slice(start, count)
                start, done = start + count, done + count

    def _runs(self, every: _Run) -> Iterator[_Run]:
        """The parts of runs among some rows."""
        runs, stop = self._choice.runs, every.place + len(every.text_bytes)
        for index in range(self._choice.run_of(every.place), len(runs)):
            low, high = max(int(runs[index, 0]), every.place), min(int(runs[index, 1]), stop)
            if low >= high:
                return
            yield dataclasses.replace(every.part(low - every.place, high - every.place), index=index)

    def _take(self, run: _Run, checks: CrossCheck) -> None:
        within = self._within(run)
        if within and run.index % self._step == 0:
            self._tokenize(run.part(0, within), checks=checks)
        elif within:
            self._waiting.append(run.part(0, within).copied())
        if within < len(run.text_bytes):
            self._weigh(run.part(within, len(run.text_bytes)))

    def _within(self, run: _Run) -> int:
        """How many rows of a run are tokenized."""
        start, stop = self._choice.runs[0].tolist()
        fit = int((np.cumsum(run.text_bytes) <= (stop - start) * _ROW_BYTES).sum())
        if fit or run.place != self._choice.runs[run.index, 0]:
            return fit
        return int(run.index % -(-int(run.text_bytes[0]) // _LONG_ROW_BYTES) == 0)

    def _tokenize(self, run: _Run, *, checks: CrossCheck | None = None) -> None:
        rows, why = extract(run.rows, self._spec.columns, first=run.first)
        usable = np.flatnonzero(why == "")
        if not len(usable):
            return
        began = time.perf_counter()
        encoded = unencodable.encode(self._encoder, rows, split=self._split.name, numbers=run.first + usable)
        self._seconds += time.perf_counter() - began
        if checks is not None:
            checks.add(rows, encoded, numbers=run.first + usable, which=np.arange(len(usable)))
        self._refused += [
            RejectedRow(row=run.first + int(usable[index]), reason=str(encoded.reasons[index]))
            for index in np.flatnonzero(encoded.reasons != "").tolist()
        ]
        tokenized = TokenizedRows(
            clusters=np.full(len(usable), self._choice.clusters[run.index]),
            places=run.place + usable,
            text_bytes=run.text_bytes[usable],
            tokens=encoded.full_lengths,
            records=encoded.num_runs * (encoded.reasons == ""),
        )
        self._parts.append((tokenized, encoded))
        self.text_bytes += int(tokenized.text_bytes.sum())

    def _weigh(self, run: _Run) -> None:
        usable = np.flatnonzero(validate(run.rows, self._spec.columns) == "")
        self._weighed.append((run.place + usable, run.text_bytes[usable]))
