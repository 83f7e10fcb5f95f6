"""Measuring a few thousand rows before the job: how many bytes a row will give, how long rows are, how fast it goes.

    split     |.......|.......|.......|.......|  equal parts, one for each cluster
    sample      ==        ==  ==           ==    a few neighbouring rows, at a seeded place in each

Every fourth cluster is read first, and the others only if the rows are not so long that those are enough. Where the
user's filters leave few rows, there are more clusters, so that about as many rows are measured.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pipelines.prepare import crosscheck, prediction, unencodable
from pipelines.prepare.columns import extract, sizes_of
from pipelines.prepare.crosscheck import CrossCheck, EngineDisproved
from pipelines.prepare.disproof import Disproof
from pipelines.prepare.job import Job
from pipelines.prepare.layouts import Encoded, Family, Tools, families, layout_of
from pipelines.prepare.planning import Segments, split_seed
from pipelines.prepare.prediction import Curve
from pipelines.prepare.shard_files import count_tokens
from pipelines.prepare.shards import batches
from pipelines.prepare.sources import SplitSource
from pipelines.prepare.stepped_files import SteppedFiles
from tfrecord_io import records
from tfrecord_io.errors import RowsRejectedError

__all__ = ["Sample", "measure", "row_lengths"]

_ROWS = 4096
_CLUSTER_ROWS = 16
# A compressed row is smaller behind others like it: rows that stay in their order are measured in longer runs.
_MOST_CLUSTER_ROWS = 64
_ROW_BYTES = 1 << 10
_FIRST = 4
# How much larger a sample may become because of filters, and becomes each time that not one row of it is left.
_MOST_TIMES = 16
# What the first clusters may hold of text and of positions in records for the others to be read too.
_ENOUGH_BYTES = 2 << 20
_ENOUGH_POSITIONS = 16 << 20
_RECORDS_PER_FLUSH = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """What a split's sample showed. `row_tokens` int64 [N] are tokens of each row, special and cut ones included;
    `token_bytes` is what an id takes as a varint.
    `family_shares` are what each length of rows has of the bytes, which go into shards of their own.
    `disproof` is there if the engine gave other tokens than the reference; the sample is the reference's then.
    """

    curve: Curve
    row_bytes: float
    record_bytes: float
    row_tokens: np.ndarray
    text_bytes: int
    num_tokens: int
    token_bytes: float
    seconds: float
    disproof: Disproof | None = None
    family_shares: tuple[float, ...] = (1.0,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rows:
    """N sampled rows, in reading order: their clusters, their places among the rows to be read, the bytes of their
    text, all their tokens, and the records that can be made of them where each row has its own (int64 [N] each).
    """

    clusters: np.ndarray
    places: np.ndarray
    text_bytes: np.ndarray
    tokens: np.ndarray
    records: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Records:
    """The records that they make, in order: framed bytes and tokens that are not padding, int64 [R] each; and, where
    they are to be compressed, the bytes themselves.
    """

    sizes: np.ndarray
    tokens: np.ndarray
    framed: tuple[bytes, ...]
    family_shares: tuple[float, ...] = (1.0,)


def row_lengths(job: Job, tools: Tools) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of sampled rows of all splits, int64 [N], and how many rows each of them stands for, float64 [N].

    Raises: RowsRejectedError if no row of the sample can be used.
    """
    found = [(split, _of_split(job, tools, split)) for split in job.splits.values()]
    lengths = [rows.tokens[rows.records > 0] for _, rows in found]
    weights = [
        np.full(len(tokens), split.num_rows / max(len(rows.tokens), 1))
        for (split, rows), tokens in zip(found, lengths, strict=True)
    ]
    if not sum(map(len, lengths)):
        raise RowsRejectedError(
            "none of the sampled rows can be used, by which --bucket-lengths auto is to choose",
            remedy="check --text-column and what a --filter leaves, or give the lengths",
        )
    return np.concatenate(lengths), np.concatenate(weights)


def _of_split(job: Job, tools: Tools, split: SplitSource) -> _Rows:
    try:
        parts = _sampled(job, tools, split)
    except EngineDisproved:
        assert tools.reference is not None, "it was compared with it"
        parts = _sampled(job, tools.reference, split)
    nothing = np.zeros(0, np.int64)
    empty = _Rows(clusters=nothing, places=nothing, text_bytes=nothing, tokens=nothing, records=nothing)
    return _joined([empty, *(rows for rows, _ in parts)])


def measure(job: Job, tools: Tools, split: SplitSource) -> Sample | None:
    """Tokenizes, lays out and encodes a sample of the split; None if no row of it can be used."""
    try:
        return _measure(job, tools, split)
    except EngineDisproved as found:
        assert tools.reference is not None, "it was compared with it"
        sample = _measure(job, tools.reference, split)
        disproof = Disproof(engine=crosscheck.engine_of(tools), split=split.name, row=found.row)
        return sample and dataclasses.replace(sample, disproof=disproof)


def _measure(job: Job, tools: Tools, split: SplitSource) -> Sample | None:
    began = time.perf_counter()
    parts = _sampled(job, tools, split)
    return _told(job, tools, parts, began=began) if parts else None


def _sampled(job: Job, tools: Tools, split: SplitSource) -> list[tuple[_Rows, Encoded]]:
    """The split's sample in reading order; nothing if no row of it can be used."""
    share = split.files.share if isinstance(split.files, SteppedFiles) else 1.0
    times = min(_MOST_TIMES, math.ceil(1 / share))
    parts = _sample_some(job, tools, split, times=times)
    while not parts and share < 1.0 and times * _ROWS < split.num_rows:
        times *= _MOST_TIMES
        parts = _sample_some(job, tools, split, times=times)
    return parts


def _sample_some(job: Job, tools: Tools, split: SplitSource, *, times: int) -> list[tuple[_Rows, Encoded]]:
    clusters = _clusters(job, split, times=times)
    # The first clusters come from all along the split, and are what an engine has to get right before it makes a shard:
    # comparing all of them would take longer than the rest of a small job.
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        checks = CrossCheck(tools, pool=beside)
        parts = list(_read(job, tools, split, clusters[::_FIRST], checks=checks))
        text_bytes = sum(int(rows.text_bytes.sum()) for rows, _ in parts)
        if text_bytes <= _ENOUGH_BYTES and _ROWS * job.length <= _ENOUGH_POSITIONS:
            parts += _read(job, tools, split, [each for index, each in enumerate(clusters) if index % _FIRST])
        checks.finish()
    if not any(rows.records.any() for rows, _ in parts):
        return []
    return sorted(parts, key=lambda part: int(part[0].places[0]))


def _told(job: Job, tools: Tools, parts: Sequence[tuple[_Rows, Encoded]], *, began: float) -> Sample:
    """What a sample shows, once it is laid out and encoded."""
    rows = _joined([rows for rows, _ in parts])
    made = _lay_out(job, tools, [encoded for _, encoded in parts], tokens=int(rows.tokens.sum()))
    stored = _stored(job, made)
    layout = layout_of(job.layout)
    along, inside, total = (_of_joined if layout.joins_rows else _of_rows)(job, rows, made, stored)
    curve = prediction.fit(rows.text_bytes, along, total=total, rising=not layout.one_record)
    return Sample(
        curve=prediction.localize(
            curve, clusters=rows.clusters, places=rows.places, text_bytes=rows.text_bytes, output_bytes=inside
        ),
        row_bytes=total / len(rows.places),
        record_bytes=stored / len(made.sizes),
        row_tokens=rows.tokens,
        text_bytes=int(rows.text_bytes.sum()),
        # A row may be in the sample's records several times, if rows are joined.
        num_tokens=min(int(made.tokens.sum()), int(rows.tokens.sum()) if layout.joins_rows else 2**63),
        token_bytes=_varint_bytes([encoded for _, encoded in parts]),
        seconds=time.perf_counter() - began,
        family_shares=made.family_shares,
    )


def _varint_bytes(parts: Sequence[Encoded]) -> float:
    """Of an id in the mean."""
    ids = np.concatenate([part.runs["input_ids"].ids for part in parts])
    return float(1 + (ids >= 1 << 7).mean() + (ids >= 1 << 14).mean()) if len(ids) else 1.0


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


def _read(
    job: Job,
    tools: Tools,
    split: SplitSource,
    clusters: Sequence[tuple[int, int]],
    *,
    checks: CrossCheck | None = None,
) -> Iterator[tuple[_Rows, Encoded]]:
    """The clusters' usable rows, tokenized, without those that would make a cluster long. All are given to `checks`."""
    segments = tuple(part for cluster in clusters for part in _in_ranges(cluster, split.ranges))
    places = np.concatenate([np.zeros(0, np.int64), *(np.arange(*cluster) for cluster in clusters)])
    numbers = np.repeat([start for start, _ in clusters], [stop - start for start, stop in clusters])
    first = 0
    for row, batch in batches(job, split.name, segments):
        text_bytes = sizes_of(batch, job.columns.content)
        room = (clusters[0][1] - clusters[0][0]) * _ROW_BYTES
        within = max(1, int((np.cumsum(text_bytes) <= room).sum()))
        rows, reasons = extract(batch.slice(0, within), job.columns, first=row)
        usable = np.flatnonzero(reasons == "")
        if len(usable):
            encoded = unencodable.encode(tools, rows, split=split.name, numbers=row + usable)
            if checks is not None:
                checks.add(rows, encoded, numbers=row + usable, which=np.arange(len(usable)))
            yield (
                _Rows(
                    clusters=numbers[first + usable],
                    places=places[first + usable],
                    text_bytes=text_bytes[usable],
                    tokens=encoded.full_lengths,
                    records=encoded.num_runs * (encoded.reasons == ""),
                ),
                encoded,
            )
        first += batch.num_rows


def _joined(parts: Sequence[_Rows]) -> _Rows:
    names = [field.name for field in dataclasses.fields(_Rows)]
    return _Rows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _lay_out(job: Job, tools: Tools, parts: Sequence[Encoded], *, tokens: int) -> _Records:
    """The records of all parts. Where rows are joined, and the sample is too short for one record, it is taken several
    times.
    """
    times = max(1, -(-job.length // max(tokens, 1))) if layout_of(job.layout).joins_rows else 1
    builder = tools.builder()
    for encoded in itertools.chain.from_iterable(itertools.repeat(parts, times)):
        builder.add(encoded)
    every = families(builder)
    laid_out = [_family_records(job, family) for family in every]
    sizes = np.concatenate([part.sizes for part in laid_out])
    counts = np.concatenate([part.tokens for part in laid_out])
    framed = tuple(itertools.chain.from_iterable(part.framed for part in laid_out))
    if (rows := [family.rows for family in every if family.rows is not None]) and len(sizes):
        # Back into the order of the rows, each of which has one record.
        order = np.argsort(np.concatenate(rows))
        sizes, counts = sizes[order], counts[order]
        framed = tuple(framed[at] for at in order) if framed else ()
    shares = tuple(float(part.sizes.sum() / max(sizes.sum(), 1)) for part in laid_out)
    return _Records(sizes=sizes, tokens=counts, framed=framed, family_shares=shares)


def _family_records(job: Job, family: Family) -> _Records:
    schema = job.schema_of(family.length)
    sizes, counts, framed = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    for columns in family.builder.chunks(None):
        frames = records.encode_framed(columns, schema)
        sizes.append(np.diff(frames.offsets))
        counts.append(count_tokens(columns, schema))
        if job.compression == "gzip":
            data, edges = frames.data.tobytes(), frames.offsets.tolist()
            framed += [data[start:stop] for start, stop in itertools.pairwise(edges)]
    return _Records(sizes=np.concatenate(sizes), tokens=np.concatenate(counts), framed=tuple(framed))


def _of_rows(job: Job, rows: _Rows, made: _Records, stored: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Stored bytes of each row as its length tells, as its cluster tells, and of all."""
    first = np.cumsum(rows.records) - rows.records
    total = np.concatenate([[0], np.cumsum(made.sizes)])
    along = (total[first + rows.records] - total[first]).astype(np.float64)
    if job.compression == "none":
        return along, along, stored
    inside = np.zeros(len(rows.places))
    cluster_edges = np.flatnonzero(np.diff(rows.clusters)) + 1
    for values, groups in (
        (along, prediction.groups_of_similar(rows.text_bytes)),
        (inside, np.split(np.arange(len(first)), cluster_edges)),
    ):
        packed = _packed(made.framed, [_own_records(first[group], rows.records[group]) for group in groups])
        for group, size in zip(groups, packed, strict=True):
            values[group] = size / len(group)
    return along, inside, stored


def _own_records(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The numbers of the records of rows that have `count` each, from `first` on."""
    spans = zip(first.tolist(), (first + count).tolist(), strict=True)
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in spans)])


def _of_joined(job: Job, rows: _Rows, made: _Records, stored: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The same for rows that are joined: a row has its share of the records that its tokens are in."""
    sizes = made.sizes.astype(np.float64)
    if job.compression == "gzip":
        groups = np.array_split(np.arange(len(sizes)), max(1, len(sizes) // _RECORDS_PER_FLUSH))
        packed = _packed(made.framed, groups)
        sizes = np.repeat(np.array(packed) / [len(group) for group in groups], [len(group) for group in groups])
    full = made.tokens == job.length
    counted = full if full.any() else np.ones(len(sizes), bool)
    per_token = sizes[counted].sum() / made.tokens[counted].sum()
    ends = np.cumsum(rows.tokens)
    # Beyond the last record, where a remainder was dropped, a token weighs what it does elsewhere.
    token_edges = np.concatenate([[0], np.cumsum(made.tokens), [max(ends[-1], made.tokens.sum()) + 1]])
    byte_edges = np.concatenate([[0.0], np.cumsum(sizes)])
    byte_edges = np.append(byte_edges, byte_edges[-1] + (token_edges[-1] - token_edges[-2]) * per_token)
    share = np.diff(np.interp(ends, token_edges, byte_edges), prepend=0.0)
    return share, share, float(per_token * ends[-1] * (stored / sizes.sum()))


def _stored(job: Job, made: _Records) -> float:
    """Bytes of all records as a shard would hold them."""
    if job.compression == "none":
        return float(made.sizes.sum())
    order = np.arange(len(made.framed))
    if job.shuffle:
        np.random.default_rng([job.seed, 2]).shuffle(order)
    return float(len(zlib.compress(b"".join(made.framed[index] for index in order))))


def _packed(framed: Sequence[bytes], groups: Iterable[np.ndarray]) -> list[int]:
    """What each group of records adds to one compressed stream."""
    packer = zlib.compressobj()
    return [
        len(packer.compress(b"".join(framed[index] for index in group))) + len(packer.flush(zlib.Z_SYNC_FLUSH))
        for group in groups
    ]


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
