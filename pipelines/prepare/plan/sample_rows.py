"""The rows of a sample: a few row groups are read, and short runs of neighbouring rows in them are tokenized.

    split     |.......|.......|.......|.......|  at most 256 groups from all along it: 0.5 % of its bytes or 3 MB
    read         |===|      |===|   |===|        each group as a whole, since it is decoded as a whole
    sample        = =        = =     = =         a few neighbouring rows, at random positions

Every row that is read is weighed: the bytes of its text are counted. A split of up to 3 MB is read completely, so that
nothing has to be estimated from groups. With user functions, which would run on every row that is read, only the runs
are read; and where filters leave few rows there are more runs, so that about as many rows are measured.

Tokenizing every long row would take too long, but without long rows all rows would seem short. So each usable row of a
run counts: a run is tokenized up to a limit of bytes, and the rest of it is only weighed. Every fourth run comes first;
the others are tokenized only if those hold little text.

The choice follows from the groups, the ranges and the seed alone, so it is the same wherever the rows are stored. A
launcher far from them receives only a small share of their bytes.
"""

import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.crosscheck import comparing
from pipelines.prepare.crosscheck.comparing import CrossCheck
from pipelines.prepare.layouts import BatchEncoder, Encoded
from pipelines.prepare.plan.planning import ShardSpec, split_seed
from pipelines.prepare.sources.columns.extraction import extract, text_bytes_of, validate
from pipelines.prepare.sources.parquet.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.unused_rows import RejectedRow

ROWS = 4096
_RUN_ROWS = 16
# The most that filters may enlarge a sample, and the factor for each time that they leave no row of it.
_MOST_TIMES = 16
# Bytes as fetched: with workers elsewhere, the launcher receives less than 2 % of a source of 400 MB.
_MOST_GROUPS = 256
_MOST_BYTES = 3 << 20
_SHARE = 0.005
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
class SampleChoice:
    """Rows to read, and rows among them to tokenize, as ascending [start, stop) ranges of row indices within the split.

    `read_ranges` int64 [S, 2]; `tokenized_ranges` int64 [R, 2], all short. `whole`: every row of the split is read.
    """

    read_ranges: np.ndarray
    tokenized_ranges: np.ndarray
    whole: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadRows:
    """K rows that were read, tokenized or not, in reading order.

    `numbers` and `text_bytes` int64 [K]: their row numbers in the split and the bytes of their text. `reasons` object
    [K]: why a row cannot be used, '' if it can (see `columns.extraction`). `whole`: these are all rows of the split.
    `refused`: rows that only tokenizing showed to be unusable, such as too long ones.
    """

    numbers: np.ndarray
    text_bytes: np.ndarray
    reasons: np.ndarray
    whole: bool
    refused: tuple[RejectedRow, ...] = ()

    @property
    def usable(self) -> np.ndarray:
        """Return whether each row can be used, bool [K]."""
        return np.asarray(self.reasons == "", bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRows:
    """A split's sample: N tokenized rows in reading order, and M rows of the same runs that were only weighed.

    `row_indices` int64 [N]: their indices among the split's rows. `text_bytes`, `tokens` int64 [N]: all their tokens,
    cut ones included. `records` int64 [N]: how many each makes, with a layout that does not join rows. `encoded`: their
    tokens. `weighed_indices` and `weighed_bytes` int64 [M]: row indices and bytes of text. `read` are all rows that
    were read; `seconds` is how long tokenizing took.
    """

    row_indices: np.ndarray
    text_bytes: np.ndarray
    tokens: np.ndarray
    records: np.ndarray
    encoded: Encoded
    weighed_indices: np.ndarray
    weighed_bytes: np.ndarray
    read: ReadRows
    seconds: float


def read(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> SampledRows | None:
    """Read and tokenize the split's sample; None if no row of it can be used.

    Raises: TokenizerError if the engine gives other tokens for a row than the reference tokenizer.
    """
    for choice in choices(spec, split):
        if (sample := _sampled(spec, encoder, split, _collect(spec, split, choice))) is not None:
            return sample
    return None


def reasons(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> dict[str, int]:
    """Count the reasons for which the first rows of the split cannot be used."""
    counted: collections.Counter[str] = collections.Counter()
    first = in_ranges((0, min(ROWS, split.num_rows)), split.ranges)
    for row, batch in split.read(first, spec.columns.names):
        rows, why = extract(batch, spec.columns, first=row)
        usable = np.flatnonzero(why == "")
        if len(usable):
            why[usable] = comparing.encode(encoder, rows, split=split.name).reasons
        counted.update(why[why != ""].tolist())
    return dict(sorted(counted.items()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Collected:
    """What was read. Of each usable row in a run (R in all): its `runs`, `row_indices`, `numbers` and `text_bytes`,
    int64 [R], and whether it may be tokenized, `fits` bool [R]; the `rows` that fit, in the same order.
    """

    runs: np.ndarray
    row_indices: np.ndarray
    numbers: np.ndarray
    text_bytes: np.ndarray
    fits: np.ndarray
    rows: pa.Table
    read: ReadRows


def _collect(spec: ShardSpec, split: SplitSource, choice: SampleChoice) -> _Collected:
    read, chosen, fitting, tables = [], [], [], []
    runs = 0
    starts, stops = choice.tokenized_ranges.T
    for row_index, first, batch in _batches(split, choice, spec.columns.names):
        numbers, text_bytes = first + np.arange(batch.num_rows), text_bytes_of(batch, spec.columns.content)
        why, row_indices = validate(batch, spec.columns), row_index + np.arange(batch.num_rows)
        read.append((numbers, text_bytes, why))
        run = np.minimum(np.searchsorted(stops, row_indices, "right"), len(stops) - 1)
        inside = np.flatnonzero((starts[run] <= row_indices) & (row_indices < stops[run]) & (why == ""))
        _, run = np.unique(run[inside], return_inverse=True)
        # Rows up to the run's limit of bytes may be tokenized, and some first rows beyond it.
        sizes, begins = text_bytes[inside], np.diff(run, prepend=-1) != 0
        ends = np.cumsum(sizes)
        fits = ends - (ends - sizes)[begins][run] <= int(stops[0] - starts[0]) * _ROW_BYTES
        fits |= begins & ((runs + run) % np.maximum(-(-sizes // _LONG_ROW_BYTES), 1) == 0)
        chosen.append((runs + run, row_indices[inside], numbers[inside], sizes))
        fitting.append(fits)
        # Copies, which do not keep the batch in memory, and without the column of what is left out, if it is there.
        rows = pa.Table.from_batches([batch.take(pa.array(inside[fits]))])
        tables.append(rows.select(spec.columns.names))
        runs += int(run.max(initial=-1)) + 1
    numbers, sizes, why = (np.concatenate(each) for each in zip(*read, strict=True))
    every = (np.concatenate(each) for each in zip(*chosen, strict=True))
    return _Collected(
        **dict(zip(("runs", "row_indices", "numbers", "text_bytes"), every, strict=True)),
        fits=np.concatenate(fitting),
        rows=pa.concat_tables(tables),
        read=ReadRows(numbers=numbers, text_bytes=sizes, reasons=why, whole=choice.whole),
    )


def _sampled(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource, found: _Collected) -> SampledRows | None:
    """Tokenize the collected rows; None if no record can be made of them."""
    positions = len(found.runs) * spec.length
    first = found.runs % (_FIRST * max(1, positions // (_FIRST * _MOST_POSITIONS))) == 0
    fits, table = found.fits, found.rows
    if found.text_bytes[fits & first].sum() > _ENOUGH_BYTES or positions > _ENOUGH_POSITIONS:
        fits, table = fits & first, table.filter(pa.array(first[fits]))
    if not fits.any():
        return None
    numbers = found.numbers[fits]
    (batch,) = table.combine_chunks().to_batches()
    rows = dataclasses.replace(extract(batch, spec.columns)[0], numbers=numbers)
    began = time.perf_counter()
    encoded = comparing.encode(encoder, rows, split=split.name)
    seconds = time.perf_counter() - began
    # An engine has to get the first runs, from all along the split, right before it makes a shard. Comparing all runs
    # with the reference would take longer than the rest of a small job.
    checks = CrossCheck(encoder, split=split.name)
    checks.add(rows, encoded, which=np.flatnonzero(first[fits]))
    checks.finish()
    records = encoded.num_sequences * (encoded.reasons == "")
    if not records.any():
        return None
    refused = np.flatnonzero(encoded.reasons != "").tolist()
    return SampledRows(
        row_indices=found.row_indices[fits],
        text_bytes=found.text_bytes[fits],
        tokens=encoded.full_lengths,
        records=records,
        encoded=encoded,
        weighed_indices=found.row_indices[~fits],
        weighed_bytes=found.text_bytes[~fits],
        read=dataclasses.replace(
            found.read,
            refused=tuple(RejectedRow(row=int(numbers[at]), reason=str(encoded.reasons[at])) for at in refused),
        ),
        seconds=seconds,
    )


def _batches(
    split: SplitSource, choice: SampleChoice, columns: tuple[str, ...]
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Yield (row index, row number in the split, rows) of successive rows."""
    spans = choice.read_ranges
    row_ranges = [part for span in spans.tolist() for part in in_ranges(span, split.ranges)]
    ends = np.cumsum(spans[:, 1] - spans[:, 0])
    done = 0
    for first, batch in split.read(row_ranges, columns):
        start = 0
        while start < batch.num_rows:
            span = int(np.searchsorted(ends, done, "right"))
            count = min(batch.num_rows - start, int(ends[span]) - done)
            yield int(spans[span, 1]) - int(ends[span]) + done, first + start, batch.slice(start, count)
            start, done = start + count, done + count


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
