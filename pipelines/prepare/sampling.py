"""Measuring a few thousand rows before the job: how many bytes a row will give, how long rows are, how fast it goes.

The size of a row is predicted from the bytes of its text by a curve through the sample's averages, for example for
`pad`:

    bytes of the record
      |            . . . . . . . .     longer texts are cut to L: the curve is flat
      |        . '
      |   . '
      +---------------------------- bytes of text
"""

from __future__ import annotations

import dataclasses
import time
import zlib

import numpy as np

from pipelines.prepare.builders import Builder, Tools
from pipelines.prepare.columns import extract, sizes_of
from pipelines.prepare.job import Job
from pipelines.prepare.planning import Segments, split_seed
from pipelines.prepare.shards import batches, count_tokens
from pipelines.prepare.sources import SplitSource
from tfrecord_io import examples, records

__all__ = ["Curve", "Sample", "measure"]

_SAMPLE_ROWS = 2048
_CLUSTERS = 64
_CLUSTER_BYTES = 64 << 10
_POINTS = 48
_BEYOND = 1000.0
# A TFRecord is its data, a length of 8 bytes, and two checksums of 4.
_FRAME_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Curve:
    """Bytes of output as a function of bytes of text, through points of increasing `text_bytes`."""

    text_bytes: np.ndarray
    output_bytes: np.ndarray

    def __call__(self, text_bytes: np.ndarray) -> np.ndarray:
        """Predicted output bytes, float64 [N]."""
        return np.interp(text_bytes, self.text_bytes, self.output_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """What a split's sample showed. `row_tokens` int64 [N] are tokens of each row, special and cut ones included."""

    curve: Curve
    row_bytes: float
    record_bytes: float
    row_tokens: np.ndarray
    text_bytes: int
    num_tokens: int
    seconds: float


def measure(job: Job, tools: Tools, split: SplitSource) -> Sample | None:
    """Tokenizes, lays out and encodes a sample of the split; None if no row of it can be used."""
    began = time.perf_counter()
    builder = tools.builder()
    sizes: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    for _, batch in batches(job, split.name, _sample_segments(job, split)):
        in_reach = np.cumsum(sizes_of(batch, job.columns.texts)) <= _CLUSTER_BYTES
        batch = batch.slice(0, max(1, int(in_reach.sum())))
        rows, reasons = extract(batch, job.columns)
        if not len(rows):
            continue
        encoded = tools.encode(rows)
        builder.add(encoded)
        possible = encoded.reasons == ""
        sizes.append(sizes_of(batch, job.columns.texts)[reasons == ""][possible])
        tokens.append(encoded.full_lengths[possible])
    if not sum(map(len, sizes)):
        return None
    return _sample(job, builder, np.concatenate(sizes), np.concatenate(tokens), began)


def _sample(job: Job, builder: Builder, text_bytes: np.ndarray, row_tokens: np.ndarray, began: float) -> Sample:
    record_bytes, num_tokens = _encode(job, builder)
    concat = job.layout.name == "concat"
    output = row_tokens * (record_bytes.sum() / row_tokens.sum()) if concat else record_bytes
    return Sample(
        curve=_fit(text_bytes, output, rising=concat),
        row_bytes=float(output.mean()),
        record_bytes=float(record_bytes.mean()),
        row_tokens=row_tokens,
        text_bytes=int(text_bytes.sum()),
        num_tokens=num_tokens,
        seconds=time.perf_counter() - began,
    )


def _encode(job: Job, builder: Builder) -> tuple[np.ndarray, int]:
    """Stored bytes of each record, in row order, and tokens that are not padding."""
    sizes, packed, plain, num_tokens = [], 0, 0, 0
    for columns in builder.chunks(None):
        payloads = examples.encode(columns, job.schema)
        sizes.append(np.diff(payloads.offsets) + _FRAME_BYTES)
        num_tokens += count_tokens(columns)
        if job.compression == "gzip":
            framed = records.frame(payloads)
            packed += len(zlib.compress(framed.data))
            plain += len(framed)
    every = np.concatenate(sizes)
    return every * (packed / plain if plain else 1.0), num_tokens


def _fit(text_bytes: np.ndarray, output_bytes: np.ndarray, *, rising: bool) -> Curve:
    """Averages over groups of rows of similar length; `rising` goes on in proportion beyond the longest."""
    order = np.argsort(text_bytes, kind="stable")
    groups = np.array_split(order, min(_POINTS, len(order)))
    across = np.array([text_bytes[group].mean() for group in groups])
    up = np.array([output_bytes[group].mean() for group in groups])
    distinct, where = np.unique(across, return_inverse=True)
    heights = np.bincount(where, weights=up) / np.bincount(where)
    if rising:
        distinct = np.append(distinct, max(distinct[-1], 1.0) * _BEYOND)
        heights = np.append(heights, heights[-1] * _BEYOND)
    return Curve(distinct, heights)


def _sample_segments(job: Job, split: SplitSource) -> Segments:
    """Short runs of rows, one at a seeded place in each of `_CLUSTERS` equal parts of the split."""
    rng = np.random.default_rng([job.seed, split_seed(split.name), 1])
    total = split.num_rows
    clusters = min(_CLUSTERS, total)
    each = max(1, _SAMPLE_ROWS // clusters)
    edges = np.linspace(0, total, clusters + 1).astype(np.int64)
    chosen: list[tuple[int, int]] = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        start = int(rng.integers(low, max(low + 1, high - each + 1)))
        chosen.append((start, min(start + each, high)))
    return tuple(part for span in chosen for part in _in_ranges(span, split.ranges))


def _in_ranges(span: tuple[int, int], ranges: Segments) -> list[tuple[int, int]]:
    """Positions among the rows of `ranges`, as row numbers."""
    found = []
    first = 0
    for start, stop in ranges:
        last = first + stop - start
        low, high = max(span[0], first), min(span[1], last)
        if low < high:
            found.append((start + low - first, start + high - first))
        first = last
    return found
