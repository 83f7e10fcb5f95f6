"""Measure a sample of rows before the job: output bytes and tokens per row, and the time of tokenizing.

For rows outside the sample (`sample_rows`), a `SizeModel` predicts output, tokens and records from text bytes and from
the position in the split, because its parts may differ in language.

In tests, the last shards of `pack` have up to 1.3 times the target size if rows are sorted by length, because long
documents leave room that a sample cannot show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import zlib
from collections.abc import Mapping

import numpy as np

from pipelines.prepare.layouts import BatchEncoder, Builder, layout_of
from pipelines.prepare.layouts.base import count_tokens
from pipelines.prepare.plan import sample_rows
from pipelines.prepare.plan.planning import ShardSpec
from pipelines.prepare.plan.sample_rows import ReadRows, SampledRows
from pipelines.prepare.sources.rows.reading import SplitSource
from tfrecord_io import records
from tfrecord_io.errors import RowsRejectedError

# Records to compress together: about the window of zlib.
_PACKED_RECORDS = 64
_POINTS = 48
_STRETCHES, _STRETCH_ROWS = 48, 64
# The curve from text bytes to output bytes ends at this multiple of the longest tokenized row.
_BEYOND = 1e6
# Points of a row group's curve, and the maximum number of rows to compute it from.
_LENGTHS, _GROUP_ROWS = 128, 1024
# `size`: bytes in the file. `tokens`: without padding. `framed`: these bytes themselves, if shards are compressed.
_RECORD = np.dtype([*((name, np.int64) for name in ("size", "tokens", "positions")), ("framed", object)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeModel:
    """Predicts a row's output bytes: a function of its text bytes, times a factor that depends on its row index.

    The function is linear between points (`text_bytes`, `output_bytes`), the factor between (`row_indices`, `factors`).
    """

    text_bytes: np.ndarray
    output_bytes: np.ndarray
    row_indices: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))
    factors: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))

    def __call__(self, text_bytes: np.ndarray, row_indices: np.ndarray) -> np.ndarray:
        """Return the predicted output bytes of N rows, float64 [N], from their text bytes and indices, both [N]."""
        along = np.interp(text_bytes, self.text_bytes, self.output_bytes)
        return along * np.interp(row_indices, self.row_indices, self.factors)

    def of_groups(self, text_bytes: np.ndarray, groups: np.ndarray) -> SizeModel:
        """Return a model that predicts the mean output bytes of a row group's rows from their mean text bytes.

        If rows are cut, the spread of lengths in a group matters. It is estimated from a sample of K rows: `text_bytes`
        [K], and `groups` [K], the index of each row's group.
        """
        _, owner = np.unique(groups, return_inverse=True)
        means = np.maximum(np.bincount(owner, weights=text_bytes) / np.bincount(owner), 1e-3)
        relative = (text_bytes / means[owner])[:: -(-len(text_bytes) // _GROUP_ROWS)]
        lengths = np.concatenate([[0.0], np.geomspace(means.min() / 1e3, means.max() * 1e3, _LENGTHS)])
        along = np.interp(np.outer(lengths, relative), self.text_bytes, self.output_bytes).mean(axis=1)
        return dataclasses.replace(self, text_bytes=lengths, output_bytes=along)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Measurements of a split's sample.

    `sizes`: predicts output bytes of other rows. `row_bytes`, `record_bytes`: mean output size of a row and of a
    record. `row_tokens` int64 [N]: tokens per row, including special ones, before truncation. `side_tokens`: for
    preference pairs, tokens of the prompt with each answer. `num_tokens`, `output_bytes`: totals of the sample's
    records. `padding`: its fraction of a record; None if the layout joins rows. `seconds`: time to make the records.
    `length_shares`: fraction of bytes per record length. `fim`: rows of the split by kind of fill-in-the-middle.
    `labels` int64: distinct labels; empty if they have names or fractions.
    """

    sizes: SizeModel
    row_bytes: float
    record_bytes: float
    row_tokens: np.ndarray
    num_tokens: float
    output_bytes: float
    padding: float | None
    seconds: float
    read: ReadRows
    length_shares: tuple[float, ...] = (1.0,)
    fim: Mapping[str, int] = dataclasses.field(default_factory=dict)
    labels: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    notes: tuple[str, ...] = ()
    side_tokens: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def row_lengths(
    spec: ShardSpec, encoder: BatchEncoder, splits: Mapping[str, SplitSource]
) -> tuple[np.ndarray, np.ndarray]:
    """Sample all splits. Return tokens per sampled row, int64 [N], and how many rows each represents, float64 [N].

    Raises: RowsRejectedError if no sampled row can be used.
    """
    row_tokens, row_weights = [np.zeros(0, np.int64)], [np.zeros(0)]
    for split in splits.values():
        with contextlib.suppress(RowsRejectedError):
            sampled = sample_rows.read(spec, encoder, split)
            usable = _with_predicted(sampled, sampled.records > 0, rising=False)
            row_tokens.append(_row_tokens(sampled, sampled.tokens))
            row_weights.append(usable * (split.num_rows / len(usable)))
    lengths, weights = np.concatenate(row_tokens), np.concatenate(row_weights)
    if not weights.any():
        raise RowsRejectedError(
            "none of the sampled rows can be used, so --bucket-lengths auto cannot choose lengths",
            remedy="check --text-column, and that a --filter leaves rows, or give --bucket-lengths 128,512",
        )
    return lengths[weights > 0], weights[weights > 0]


def measure(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> Sample:
    """Tokenize a sample of a split's rows, make records from it, and measure them. Raises: as `sample_rows.read`."""
    rows = sample_rows.read(spec, encoder, split)
    began = time.perf_counter()
    layout = layout_of(spec.layout)
    laid_out, length_shares = _lay_out(spec, encoder, rows)
    stored = _stored_sizes(spec, laid_out)
    row_bytes = _bytes_of_joined_rows(spec, rows, laid_out, stored) if layout.joins_rows else _per_row(rows, stored)
    sizes = fit(rows.text_bytes, row_bytes, rows.row_indices, rising=not layout.one_record)
    num_tokens, padding = _tokens_held(spec, rows, laid_out)
    text_bytes, label, encoded = rows.text_bytes.sum(), spec.columns.label, rows.encoded
    is_plain = label is not None and label.kind in ("int", "float")
    labels = encoded.arrays["label"][encoded.reasons == ""] if is_plain else np.zeros(0)
    if not np.isfinite(labels).all() or (labels % 1 != 0).any():
        labels = labels[:0]
    return Sample(
        sizes=sizes,
        row_bytes=float(row_bytes.mean()),
        record_bytes=float(stored.mean()),
        row_tokens=_row_tokens(rows, rows.tokens),
        side_tokens={side: _row_tokens(rows, tokens) for side, tokens in encoded.side_lengths.items()},
        num_tokens=num_tokens,
        output_bytes=float(row_bytes.sum() + sizes(rows.weighed_bytes, rows.weighed_indices).sum()),
        padding=padding,
        seconds=(rows.seconds + time.perf_counter() - began) * (1 + rows.weighed_bytes.sum() / max(text_bytes, 1)),
        read=rows.read,
        length_shares=length_shares,
        fim={name: round(rows * split.num_rows / len(encoded.reasons)) for name, rows in encoded.fim.items()},
        labels=np.unique(labels).astype(np.int64),
        notes=rows.notes,
    )


def _with_predicted(rows: SampledRows, values: np.ndarray, *, rising: bool) -> np.ndarray:
    model = fit(rows.text_bytes, values.astype(np.float64), rows.row_indices, rising=rising)
    return np.concatenate([values, model(rows.weighed_bytes, rows.weighed_indices)])


def _row_tokens(rows: SampledRows, tokens: np.ndarray) -> np.ndarray:
    return np.rint(_with_predicted(rows, tokens, rising=True)).astype(np.int64)


def _tokens_held(spec: ShardSpec, rows: SampledRows, laid_out: np.ndarray) -> tuple[float, float | None]:
    layout = layout_of(spec.layout)
    if layout.joins_rows:
        # The records may repeat a short sample, and the last record may have been dropped.
        share = min(1.0, laid_out["tokens"].sum() / max(rows.tokens.sum(), 1))
        return float(_with_predicted(rows, rows.tokens * share, rising=True).sum()), None
    tokens, positions = (
        float(_with_predicted(rows, _per_row(rows, laid_out[name]), rising=not layout.one_record).sum())
        for name in ("tokens", "positions")
    )
    return tokens, 1 - tokens / max(positions, 1.0)


def _per_row(rows: SampledRows, values: np.ndarray) -> np.ndarray:
    total = np.concatenate([[0], np.cumsum(values)])
    return np.diff(total[np.concatenate([[0], np.cumsum(rows.records)])])


def _lay_out(spec: ShardSpec, encoder: BatchEncoder, rows: SampledRows) -> tuple[np.ndarray, tuple[float, ...]]:
    builder, times = encoder.builder(), 1
    if layout_of(spec.layout).joins_rows:  # the sample may be too short for one record
        times = max(1, -(-spec.length // max(int(rows.tokens.sum()), 1)))
    for _ in range(times):
        builder.add(rows.encoded)
    builders = builder.by_length()
    parts = [_records_of_length(spec, of_length) for of_length in builders]
    laid_out = np.concatenate(parts)
    if (of_rows := [of_length.rows for of_length in builders if of_length.rows is not None]) and len(laid_out):
        laid_out = laid_out[np.argsort(np.concatenate(of_rows))]
    return laid_out, tuple(float(part["size"].sum() / max(laid_out["size"].sum(), 1)) for part in parts)


def _records_of_length(spec: ShardSpec, builder: Builder) -> np.ndarray:
    schema = spec.schema_of(builder.length)
    num_positions = sum(feature.num_values for feature in schema.token_features)
    parts = [np.zeros(0, _RECORD)]
    for columns in builder.chunks(None):
        frames = records.encode_framed(columns, schema)
        part = np.zeros(len(frames.offsets) - 1, _RECORD)
        part["size"], part["tokens"] = np.diff(frames.offsets), count_tokens(columns, schema)
        part["positions"] = num_positions
        if spec.compression == "gzip":
            data, edges = frames.data.tobytes(), frames.offsets.tolist()
            part["framed"] = [data[start:stop] for start, stop in itertools.pairwise(edges)]
        parts.append(part)
    return np.concatenate(parts)


def _stored_sizes(spec: ShardSpec, laid_out: np.ndarray) -> np.ndarray:
    sizes = laid_out["size"].astype(np.float64)
    if spec.compression == "none":
        return sizes
    # Compress neighbours together, then scale to the size of all records compressed in a shard's order.
    order = np.arange(len(sizes))
    for part in np.array_split(order, max(1, len(order) // _PACKED_RECORDS)):
        sizes[part] *= _packed(laid_out, part) / sizes[part].sum()
    if spec.shuffle:
        np.random.default_rng([spec.seed, 2]).shuffle(order)
    return np.asarray(sizes * (_packed(laid_out, order) / sizes.sum()))


def _packed(laid_out: np.ndarray, order: np.ndarray) -> int:
    return len(zlib.compress(b"".join(laid_out["framed"][order])))


def _bytes_of_joined_rows(spec: ShardSpec, rows: SampledRows, laid_out: np.ndarray, stored: np.ndarray) -> np.ndarray:
    tokens = laid_out["tokens"]
    full = tokens == spec.length
    counted = full if full.any() else np.ones(len(stored), bool)
    token_bytes = stored[counted].sum() / tokens[counted].sum()
    if not full[:-1].all():  # with `pack`, records are not in the order of rows
        return np.asarray(rows.tokens * token_bytes)
    ends = np.cumsum(rows.tokens)
    # Tokens after the last record (the remainder may be dropped) get the mean bytes of the other tokens.
    beyond = max(ends[-1] - tokens.sum(), 0) + 1
    token_edges = np.concatenate([[0], np.cumsum(tokens), [tokens.sum() + beyond]])
    byte_edges = np.concatenate([[0.0], np.cumsum(stored), [stored.sum() + beyond * token_bytes]])
    share = np.diff(np.interp(ends, token_edges, byte_edges), prepend=0.0)
    return np.asarray(share * (token_bytes * ends[-1] / share.sum()))


def fit(text_bytes: np.ndarray, output_bytes: np.ndarray, row_indices: np.ndarray, *, rising: bool) -> SizeModel:
    """Return the `SizeModel` that fits N sampled rows in reading order. All arrays are [N].

    `rising`: whether texts longer than the longest sampled one give proportionally more output, or the same output.
    """
    order = np.argsort(text_bytes, kind="stable")
    # Points are dense where there are many rows or much text: a few long rows may hold half of it.
    along = np.cumsum(text_bytes[order] + max(float(text_bytes.mean()), 1.0))
    point = ((along - along[0]) / along[-1] * _POINTS).astype(np.int64)
    _, point = np.unique(point, return_inverse=True)
    rows = np.bincount(point)
    across, where = np.unique(np.bincount(point, weights=text_bytes[order]) / rows, return_inverse=True)
    up = np.bincount(where, weights=np.bincount(point, weights=output_bytes[order]) / rows) / np.bincount(where)
    if rising:
        across, up = np.append(across, max(across[-1], 1.0) * _BEYOND), np.append(up, up[-1] * _BEYOND)
    expected = np.interp(text_bytes, across, up)
    scale = output_bytes.sum() / max(float(expected.sum()), 1e-9)
    stretches = np.array_split(np.arange(len(order)), max(1, min(_STRETCHES, len(order) // _STRETCH_ROWS)))
    factors = [output_bytes[rows].sum() / max(scale * expected[rows].sum(), 1e-9) for rows in stretches]
    return SizeModel(
        text_bytes=across,
        output_bytes=up * scale,
        row_indices=np.array([row_indices[rows].mean() for rows in stretches]),
        factors=np.array(factors),
    )
