"""Sample rows of a split. Row groups are decoded whole, so a few groups are read, and runs of their rows tokenized.

A run has a few neighbouring rows at a random position in a group, and is tokenized up to a limit of bytes. The run's
other rows are only weighed: their bytes of text are counted. The sample depends only on the row groups, the row ranges
and the seed.
"""

import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines.prepare.layouts import BatchEncoder, Encoded, crosscheck
from pipelines.prepare.plan.planning import ShardSpec, split_seed
from pipelines.prepare.sources.columns.extraction import extract, text_bytes_of, validate
from pipelines.prepare.sources.parquet.groups import Cover, cover, in_ranges
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.unused_rows import RejectedRow, remedy_of, words_of
from tfrecord_io.errors import RowsRejectedError
from tfrecord_io.manifest import HELD_OUT, NOT_HELD_OUT, is_filtered

ROWS = 4096
_RUN_ROWS = 16
# A sample is enlarged by at most this factor to make up for filters, and again if filters leave no row.
_MOST_TIMES = 16
# Limits of the fetched groups and bytes: less than 2 % of a 400 MB source.
_MOST_GROUPS = 256
_MOST_BYTES = 3 << 20
_SHARE = 0.005
_ROW_BYTES = 1 << 10
# If a run's first row exceeds the limit, it is tokenized in one of n such runs: n is its size divided by this.
_LONG_ROW_BYTES = 1 << 15
_FIRST = 4
# The other runs are tokenized only if the first runs have at most this many bytes of text and positions.
_ENOUGH_BYTES = 2 << 20
_ENOUGH_POSITIONS = 16 << 20
_NOTED_ROWS = 256
# Maximum positions of the first runs.
_MOST_POSITIONS = 64 << 20
# A usable row of a run; `fits`: whether it may be tokenized.
_IN_RUN = np.dtype([*((name, np.int64) for name in ("run", "index", "number", "text_bytes")), ("fits", bool)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleChoice:
    """Rows of a split to read and to tokenize: ascending ranges [start, stop), int64 [n, 2]. `whole`: read all rows."""

    read_ranges: np.ndarray
    tokenized_ranges: np.ndarray
    whole: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadRows:
    """The K rows of a split that were read for a sample, tokenized or not, in reading order.

    `numbers` int64 [K]: row numbers in the source split. `text_bytes` int64 [K]: bytes of text per row. `reasons`
    object [K]: why a row cannot be used, or ''. `whole`: whether these are all rows of the split. `refused`: rows that
    tokenization rejected, which are not in `reasons`.
    """

    numbers: np.ndarray
    text_bytes: np.ndarray
    reasons: np.ndarray
    whole: bool
    refused: tuple[RejectedRow, ...] = ()

    @property
    def usable(self) -> np.ndarray:
        """Mask of the usable rows, bool [K]."""
        return np.asarray(self.reasons == "", bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRows:
    """Sample of a split: N tokenized rows in reading order, and M weighed rows, with only their bytes of text counted.

    Arrays are int64 [N], and `weighed_*` int64 [M]. `row_indices`: indices among the split's rows. `tokens`: tokens per
    row before truncation. `records`: records per row, if the layout does not join rows. `seconds`: time to tokenize.
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
    notes: tuple[str, ...] = ()


def read(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> SampledRows:
    """Read and tokenize a sample of the rows of `split`.

    Raises: RowsRejectedError if no row can be used; TokenizerError if the engine and the reference tokenizer disagree.
    """
    reasons, refused = collections.Counter[str](), list[RejectedRow]()
    for choice in choices(spec, split):
        rows, table, read_rows = _collect(spec, split, choice)
        if len(rows):
            sampled = _tokenize(spec, encoder, split, rows, table, read_rows)
            if sampled.records.any():
                return sampled
            read_rows = sampled.read
        refused = sorted(read_rows.refused, key=lambda row: row.row)
        reasons = collections.Counter([*read_rows.reasons, *(row.reason for row in refused)])
    del reasons[""]
    causes = ", ".join(f"{words_of(reason)} in {count:,}" for reason, count in sorted(reasons.items()))
    if first := next((row for row in refused if row.detail), None):
        causes += f"; {split.name}[{first.row}]: {first.detail}"
    flags = spec.columns.flags
    remedy = remedy_of(reasons) or f"check {flags}, and that a --filter leaves rows, or choose another --split"
    if reasons and all(reason.startswith("label_") for reason in reasons):
        remedy = "choose the splits that have labels with --split, and build this split alone without --label-column"
    if reasons and set(reasons) <= {HELD_OUT, NOT_HELD_OUT}:
        remedy = "change the number of rows to hold out, or append more rows at once: this split has no sampled row"
    raise RowsRejectedError(
        f"split {split.name!r}: none of the sampled rows can be used{f' ({causes})' if causes else ''}", remedy=remedy
    )


def _collect(spec: ShardSpec, split: SplitSource, choice: SampleChoice) -> tuple[np.ndarray, pa.Table, ReadRows]:
    parts, chosen, tables = [], [], []
    runs = done = 0
    starts, stops = choice.tokenized_ranges.T
    spans = choice.read_ranges.tolist()
    every_index = np.concatenate([np.arange(first, last) for first, last in spans])
    ranges = [part for span in spans for part in in_ranges(span, split.ranges)]
    for first, batch in split.read(ranges, spec.columns.names):
        numbers, text_bytes = first + np.arange(batch.num_rows), text_bytes_of(batch, spec.columns.content)
        reasons, row_indices = validate(batch, spec.columns), every_index[done : done + batch.num_rows]
        parts.append((numbers, text_bytes, reasons))
        done += batch.num_rows
        run = np.minimum(np.searchsorted(stops, row_indices, "right"), len(stops) - 1)
        inside = np.flatnonzero((starts[run] <= row_indices) & (row_indices < stops[run]) & (reasons == ""))
        _, run = np.unique(run[inside], return_inverse=True)
        sizes, begins = text_bytes[inside], np.diff(run, prepend=-1) != 0
        ends = np.cumsum(sizes)
        fits = ends - (ends - sizes)[begins][run] <= int(stops[0] - starts[0]) * _ROW_BYTES
        fits |= begins & ((runs + run) % np.maximum(-(-sizes // _LONG_ROW_BYTES), 1) == 0)
        rows = np.empty(len(inside), _IN_RUN)
        rows["run"], rows["index"], rows["number"] = runs + run, row_indices[inside], numbers[inside]
        rows["text_bytes"], rows["fits"] = sizes, fits
        chosen.append(rows)
        # a copy, so that the batch can be freed
        table = pa.Table.from_batches([batch.take(pa.array(inside[fits]))])
        tables.append(table.select(spec.columns.names))
        runs += int(run.max(initial=-1)) + 1
    numbers, sizes, reasons = (np.concatenate(column) for column in zip(*parts, strict=True))
    read_rows = ReadRows(numbers=numbers, text_bytes=sizes, reasons=reasons, whole=choice.whole)
    return np.concatenate(chosen), pa.concat_tables(tables), read_rows


def _tokenize(
    spec: ShardSpec, encoder: BatchEncoder, split: SplitSource, in_run: np.ndarray, table: pa.Table, read: ReadRows
) -> SampledRows:
    positions = len(in_run) * spec.length
    first = in_run["run"] % (_FIRST * max(1, positions // (_FIRST * _MOST_POSITIONS))) == 0
    fits = in_run["fits"]
    if in_run["text_bytes"][fits & first].sum() > _ENOUGH_BYTES or positions > _ENOUGH_POSITIONS:
        fits, table = fits & first, table.filter(pa.array(first[fits]))
    numbers = in_run["number"][fits]
    (batch,) = table.combine_chunks().to_batches()
    rows = dataclasses.replace(extract(batch, spec.columns)[0], numbers=numbers, split=split.name)
    began = time.perf_counter()
    encoded = crosscheck.encode(encoder, rows, split=split.name)
    seconds = time.perf_counter() - began
    # To check all runs would take longer than the rest of a small job.
    crosscheck.compare(encoder, rows, encoded, indices=np.flatnonzero(first[fits]), split=split.name)
    refused = tuple(
        RejectedRow(row=int(numbers[at]), reason=str(encoded.reasons[at]), detail=encoded.details.get(at, ""))
        for at in np.flatnonzero(encoded.reasons != "").tolist()
        if not is_filtered(encoded.reasons[at])
    )
    return SampledRows(
        row_indices=in_run["index"][fits],
        text_bytes=in_run["text_bytes"][fits],
        tokens=encoded.full_lengths,
        records=encoded.num_sequences * (encoded.reasons == ""),
        encoded=encoded,
        weighed_indices=in_run["index"][~fits],
        weighed_bytes=in_run["text_bytes"][~fits],
        read=dataclasses.replace(read, refused=refused),
        seconds=seconds,
        notes=encoder.notes_on(rows.take(np.arange(0, len(rows), -(-len(rows) // _NOTED_ROWS)))),
    )


def choices(spec: ShardSpec, split: SplitSource) -> Iterator[SampleChoice]:
    """Yield a random choice of rows to read and tokenize, then larger choices, for use if filters leave no row."""
    share = split.reader.share
    times, larger = min(_MOST_TIMES, math.ceil(1 / share)), 1
    covered = cover(split.groups.ends, split.ranges)
    while True:
        yield _choose(spec, split, covered, times=times * larger, larger=larger)
        if share == 1.0 or times * larger * ROWS >= split.num_rows:
            return
        larger *= _MOST_TIMES


def _choose(spec: ShardSpec, split: SplitSource, covered: Cover, *, times: int, larger: int) -> SampleChoice:
    rng, most = np.random.default_rng([spec.seed, split_seed(split.name), 1]), ROWS * times
    stored = split.groups.stored_bytes[covered.groups]
    limit = larger * max(_MOST_BYTES, _SHARE * float(stored.sum()))
    if len(covered) <= larger * _MOST_GROUPS and stored.sum() <= larger * _MOST_BYTES:
        read_ranges = np.array([[0, split.num_rows]])
        runs = _runs(read_ranges, most, whole=times > 1 and most >= split.num_rows, rng=rng)
        return SampleChoice(read_ranges=read_ranges, tokenized_ranges=runs, whole=True)
    chosen = _groups(covered, stored, limit=limit, most=larger * _MOST_GROUPS, seed=(spec.seed, split_seed(split.name)))
    stops = covered.ends[chosen]
    read_ranges = np.stack([stops - covered.counts[chosen], stops], axis=1)
    most = max(1, round(most / len(read_ranges) / _RUN_ROWS)) * _RUN_ROWS
    runs = _runs(read_ranges, most, whole=False, rng=rng)
    # User functions run on every row read, so read only the runs.
    return SampleChoice(read_ranges=read_ranges if split.reader.functions is None else runs, tokenized_ranges=runs)


def _groups(covered: Cover, stored: np.ndarray, *, limit: float, most: int, seed: tuple[int, int]) -> np.ndarray:
    """Draw a random row from each of up to `most` equal parts of a split; return their groups, up to `limit` bytes."""
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


def _runs(read_ranges: np.ndarray, most: int, *, whole: bool, rng: np.random.Generator) -> np.ndarray:
    rows = _RUN_ROWS
    runs = []
    for first, last in read_ranges.tolist():
        if whole:
            runs += [(start, min(start + rows, last)) for start in range(first, last, rows)]
            continue
        count = max(1, min(most, last - first) // rows)
        edges = np.linspace(first, last, count + 1).astype(np.int64).tolist()
        starts = [int(rng.integers(low, max(low + 1, high - rows + 1))) for low, high in itertools.pairwise(edges)]
        runs += [(start, min(start + rows, high)) for start, high in zip(starts, edges[1:], strict=True)]
    return np.array(runs, np.int64)
