"""The rows of a sample: a few row groups are read, and short runs of neighbouring rows in them are tokenized.

    split     |.......|.......|.......|.......|  at most 256 groups from all along it: 0.5 % of its bytes or 3 MB
    read         |===|      |===|   |===|        each group as a whole, since it is decoded as a whole
    sample        = =        = =     = =         a few neighbouring rows, at random positions

Every row that is read is weighed: the bytes of its text are counted. A split of up to 3 MB is read completely, so that
nothing has to be estimated from groups. With user functions, which would run on every row that is read, only the runs
are read; and where filters leave few rows there are more runs, so that about as many rows are measured.

Every fourth run is tokenized first, and the others only if those hold too little text. Tokenizing every long row would
take too long, but without long rows all rows would seem short. So each usable row of a run counts: a row that is not
tokenized is weighed.

    a run       |== ==== =====|=========== ==      tokenized up to a limit of bytes, the rest is weighed
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
from pipelines.prepare.sources.columns.extraction import extract, text_bytes_of, validate
from pipelines.prepare.sources.columns.rejected import RejectedRow
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["ReadRows", "SampledRows", "TokenizedRows", "read", "reasons"]

_ROW_BYTES = 1 << 10
# The first row of a run may exceed the run's limit of bytes. On average such rows get at most this many bytes a run: of
# rows twice as long every second one is tokenized, and so on.
_LONG_ROW_BYTES = 1 << 15
_FIRST = 4
# The other runs are tokenized only if the first ones have at most this much text and this many positions in records.
_ENOUGH_BYTES = 2 << 20
_ENOUGH_POSITIONS = 16 << 20
# The first runs have at most this many positions in records.
_MOST_POSITIONS = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedRows:
    """N tokenized rows in reading order; every field is int64 [N].

    `clusters`: the row's run, or its group where the runs come from few groups. `row_indices`: its index among the
    split's rows. `tokens`: all its tokens, cut ones included. `records`: how many it makes, with a layout that does not
    join rows.
    """

    clusters: np.ndarray
    row_indices: np.ndarray
    text_bytes: np.ndarray
    tokens: np.ndarray
    records: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadRows:
    """K rows that were read, tokenized or not, in reading order.

    `numbers` and `text_bytes` int64 [K]: their row numbers in the split and the bytes of their text. `reasons` object
    [K]: why a row cannot be used, '' if it can (see `columns.extraction`). `whole`: these are all rows of the split.
    `in_whole_groups`: they are all selected rows of their groups. `refused`: rows that only tokenizing showed to be
    unusable, such as too long ones.
    """

    numbers: np.ndarray
    text_bytes: np.ndarray
    reasons: np.ndarray
    whole: bool
    in_whole_groups: bool
    refused: tuple[RejectedRow, ...] = ()

    @property
    def usable(self) -> np.ndarray:
        """Whether each row can be used, bool [K]."""
        return np.asarray(self.reasons == "", bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRows:
    """A split's sample: N tokenized rows and M rows of the runs that were only weighed.

    `encoded` are the tokenized rows' tokens, in batches. `weighed_indices` and `weighed_bytes` int64 [M]: row indices
    and bytes of text. `read` are all rows that were read; `seconds` is how long tokenizing took.
    """

    tokenized: TokenizedRows
    encoded: Sequence[Encoded]
    weighed_indices: np.ndarray
    weighed_bytes: np.ndarray
    read: ReadRows
    seconds: float


def read(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> SampledRows | None:
    """Read and tokenize the split's sample; None if no row of it can be used.

    Raises: TokensDiffer if the engine gives other tokens for a row than the reference tokenizer.
    """
    for choice in sample_choice.choices(spec, split):
        if (sample := _read_chosen(spec, encoder, split, choice)) is not None:
            return sample
    return None


def reasons(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> dict[str, int]:
    """Count the reasons for which the first rows of the split cannot be used."""
    counted: collections.Counter[str] = collections.Counter()
    first = sample_choice.in_ranges((0, min(sample_choice.ROWS, split.num_rows)), split.ranges)
    for row, batch in split.read(first, spec.columns.names):
        rows, why = extract(batch, spec.columns, first=row)
        usable = np.flatnonzero(why == "")
        if len(usable):
            why[usable] = unencodable.encode(encoder, rows, split=split.name, numbers=row + usable).reasons
        counted.update(why[why != ""].tolist())
    return dict(sorted(counted.items()))


def _read_chosen(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource, choice: Choice) -> SampledRows | None:
    positions = choice.num_sampled * spec.length
    stride = _FIRST * max(1, positions // (_FIRST * _MOST_POSITIONS))
    reading = _Reading(spec, encoder, split, choice, stride=stride)
    # An engine has to get the first runs, from all along the split, right before it makes a shard. Comparing all runs
    # with the reference would take longer than the rest of a small job.
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        checks = CrossCheck(encoder, split=split.name, pool=beside)
        reading.read(checks)
        reading.end(tokenize=reading.text_bytes <= _ENOUGH_BYTES and positions <= _ENOUGH_POSITIONS)
        reading.require_one()
        checks.finish()
    return reading.sample()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """Part of run `index`: n rows from `row_index` on, of `text_bytes` int64 [n]; `first` is the first row's number."""

    index: int
    row_index: int
    first: int
    rows: pa.RecordBatch
    text_bytes: np.ndarray

    def part(self, start: int, stop: int) -> _Run:
        """Return the rows from `start` up to `stop`."""
        return dataclasses.replace(
            self,
            row_index=self.row_index + start,
            first=self.first + start,
            rows=self.rows.slice(start, stop - start),
            text_bytes=self.text_bytes[start:stop],
        )

    def copied(self) -> _Run:
        """Return a copy, which does not keep the batch that the rows are a part of in memory."""
        return dataclasses.replace(self, rows=self.rows.take(pa.array(np.arange(len(self.text_bytes)))))


class _Reading:
    """Reads the chosen rows of a split. Every `stride`-th run is tokenized at once.

    `text_bytes` counts the text of the rows that were tokenized.
    """

    def __init__(
        self, spec: ShardSpec, encoder: BatchEncoder, split: SplitSource, choice: Choice, *, stride: int
    ) -> None:
        self.text_bytes = 0
        self._spec, self._encoder, self._split = spec, encoder, split
        self._choice, self._stride = choice, stride
        self._seconds = 0.0
        self._waiting: list[_Run] = []
        self._parts: list[tuple[TokenizedRows, Encoded]] = []
        self._weighed: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        self._read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._refused: list[RejectedRow] = []

    def read(self, checks: CrossCheck) -> None:
        """Read and weigh all rows; tokenize the first runs up to their limit and pass them to `checks`."""
        for row_index, first, batch in self._batches():
            text_bytes = text_bytes_of(batch, self._spec.columns.content)
            numbers = np.arange(first, first + batch.num_rows)
            self._read.append((numbers, text_bytes, validate(batch, self._spec.columns)))
            every = _Run(index=-1, row_index=row_index, first=first, rows=batch, text_bytes=text_bytes)
            for run in self._runs(every):
                self._take(run, checks)

    def end(self, *, tokenize: bool) -> None:
        """Tokenize the runs that were put off, or weigh them."""
        for run in self._waiting:
            if tokenize:
                self._tokenize(run)
            else:
                self._weigh(run)

    def require_one(self) -> None:
        """Tokenize the shortest weighed row if no row is tokenized yet: an estimate needs at least one."""
        row_indices, text_bytes = (np.concatenate(each) for each in zip(*self._weighed, strict=True))
        if self._parts or not len(row_indices):
            return
        shortest = int(text_bytes.argmin())
        row_index = int(row_indices[shortest])
        self._weighed = [(np.delete(row_indices, shortest), np.delete(text_bytes, shortest))]
        row_ranges = sample_choice.in_ranges((row_index, row_index + 1), self._split.ranges)
        for row, batch in self._split.read(row_ranges, self._spec.columns.names):
            index = self._choice.tokenized_range_at(row_index)
            self._tokenize(
                _Run(index=index, row_index=row_index, first=row, rows=batch, text_bytes=text_bytes[[shortest]])
            )

    def sample(self) -> SampledRows | None:
        """Return the sample; None if no record can be made of it."""
        if not any(rows.records.any() for rows, _ in self._parts):
            return None
        parts = sorted(self._parts, key=lambda part: int(part[0].row_indices[0]))
        names = [field.name for field in dataclasses.fields(TokenizedRows)]
        row_indices, text_bytes = (np.concatenate(each) for each in zip(*self._weighed, strict=True))
        numbers, sizes, why = (np.concatenate(each) for each in zip(*self._read, strict=True))
        return SampledRows(
            tokenized=TokenizedRows(
                **{name: np.concatenate([getattr(rows, name) for rows, _ in parts]) for name in names}
            ),
            encoded=[encoded for _, encoded in parts],
            weighed_indices=row_indices,
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
        """Yield (row index, row number in the split, rows) of successive rows."""
        spans = self._choice.read_ranges
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
        """Yield the parts of runs among some rows."""
        tokenized_ranges, stop = self._choice.tokenized_ranges, every.row_index + len(every.text_bytes)
        for index in range(self._choice.tokenized_range_at(every.row_index), len(tokenized_ranges)):
            low, high = (
                max(int(tokenized_ranges[index, 0]), every.row_index),
                min(int(tokenized_ranges[index, 1]), stop),
            )
            if low >= high:
                return
            yield dataclasses.replace(every.part(low - every.row_index, high - every.row_index), index=index)

    def _take(self, run: _Run, checks: CrossCheck) -> None:
        within = self._within(run)
        if within and run.index % self._stride == 0:
            self._tokenize(run.part(0, within), checks=checks)
        elif within:
            self._waiting.append(run.part(0, within).copied())
        if within < len(run.text_bytes):
            self._weigh(run.part(within, len(run.text_bytes)))

    def _within(self, run: _Run) -> int:
        """Return how many rows of a run are tokenized."""
        start, stop = self._choice.tokenized_ranges[0].tolist()
        fit = int((np.cumsum(run.text_bytes) <= (stop - start) * _ROW_BYTES).sum())
        if fit or run.row_index != self._choice.tokenized_ranges[run.index, 0]:
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
            row_indices=run.row_index + usable,
            text_bytes=run.text_bytes[usable],
            tokens=encoded.full_lengths,
            records=encoded.num_sequences * (encoded.reasons == ""),
        )
        self._parts.append((tokenized, encoded))
        self.text_bytes += int(tokenized.text_bytes.sum())

    def _weigh(self, run: _Run) -> None:
        usable = np.flatnonzero(validate(run.rows, self._spec.columns) == "")
        self._weighed.append((run.row_index + usable, run.text_bytes[usable]))
