"""Measuring a few thousand rows before the job: bytes of output per row, tokens per row, seconds of tokenizing.

`sample_rows` chooses them. For rows that were only weighed, a curve through the tokenized rows predicts tokens and
records from the bytes of their text.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pipelines.prepare.layouts import BatchEncoder, Encoded, LengthGroup, layout_of, length_groups
from pipelines.prepare.layouts.token_counts import count_tokens
from pipelines.prepare.plan import sample_rows, size_curve
from pipelines.prepare.plan.sample_rows import ReadRows, SampledRows, TokenizedRows
from pipelines.prepare.plan.size_curve import Curve
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.sources.rows.reading import SplitSource
from tfrecord_io import records
from tfrecord_io.errors import RowsRejectedError
from tfrecord_io.schema import Role, Schema

__all__ = ["Sample", "measure", "row_lengths"]

_RECORDS_PER_FLUSH = 8
_LAST_ROWS = 64
_TOKENS: tuple[Role, ...] = ("token_ids", "target_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """What a split's sample showed.

    `curve` predicts a row's bytes of output; `row_bytes` and `record_bytes` are the means of a row and of a record.
    `row_tokens` int64 [N]: each row's tokens, special and cut ones included. `num_tokens` of them are in records, which
    take `output_bytes`. `padding`: the share of positions without a token, None with a layout that joins rows.
    `text_bytes` of text were tokenized in `seconds`. `token_bytes`: mean bytes of an id as a varint.
    `read`: all rows that were read, most of which were only weighed.
    `length_shares`: the share of the bytes that records of each length have, which go into shards of their own.
    `encoded`: the tokens of the rows that were tokenized.
    """

    curve: Curve
    row_bytes: float
    record_bytes: float
    row_tokens: np.ndarray
    num_tokens: float
    output_bytes: float
    padding: float | None
    text_bytes: int
    token_bytes: float
    seconds: float
    read: ReadRows
    length_shares: tuple[float, ...] = (1.0,)
    encoded: Sequence[Encoded] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Records:
    """R records in order: `sizes` in framed bytes, `tokens` without padding, `positions`; int64 [R] each.

    `framed` are the bytes themselves if shards are compressed, else empty.
    """

    sizes: np.ndarray
    tokens: np.ndarray
    positions: np.ndarray
    framed: tuple[bytes, ...]
    length_shares: tuple[float, ...] = (1.0,)


def row_lengths(
    spec: ShardSpec, encoder: BatchEncoder, splits: Mapping[str, SplitSource]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the sampled rows of all splits, int64 [N], and how many rows each stands for, float64 [N].

    Raises: RowsRejectedError if no sampled row can be used.
    """
    found = [_lengths_of_split(spec, encoder, split) for split in splits.values()]
    lengths, weights = (np.concatenate(each) for each in zip(*found, strict=True))
    if not weights.any():
        raise RowsRejectedError(
            "none of the sampled rows can be used, so --bucket-lengths auto has nothing to choose by",
            remedy="check --text-column and what a --filter leaves, or give the lengths",
        )
    return lengths[weights > 0], weights[weights > 0]


def _lengths_of_split(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> tuple[np.ndarray, np.ndarray]:
    sampled = sample_rows.read(spec, encoder, split)
    if sampled is None:
        return np.zeros(0, np.int64), np.zeros(0)
    usable = _with_predicted(sampled, (sampled.tokenized.records > 0).astype(np.float64), rising=False)
    return _row_tokens(sampled), usable * (split.num_rows / len(usable))


def measure(spec: ShardSpec, encoder: BatchEncoder, split: SplitSource) -> Sample | None:
    """Tokenize, lay out and encode a sample of the split; None if no row of it can be used."""
    sampled = sample_rows.read(spec, encoder, split)
    return _summarize(spec, encoder, sampled) if sampled else None


def _summarize(spec: ShardSpec, encoder: BatchEncoder, sampled: SampledRows) -> Sample:
    """Lay out and encode the sampled rows, and fit the curve."""
    began = time.perf_counter()
    rows = sampled.tokenized
    sampled_records = _lay_out(spec, encoder, sampled.encoded, tokens=int(rows.tokens.sum()))
    stored_bytes = _stored_bytes(spec, sampled_records)
    layout = layout_of(spec.layout)
    along, inside, total = (_bytes_of_joined_rows if layout.joins_rows else _bytes_of_rows)(
        spec, rows, sampled_records, stored_bytes
    )
    curve = size_curve.fit(rows.text_bytes, along, total=total, rising=not layout.one_record)
    curve = size_curve.localize(
        curve, clusters=rows.clusters, row_indices=rows.row_indices, text_bytes=rows.text_bytes, output_bytes=inside
    )
    num_tokens, padding = _tokens_held(spec, sampled, sampled_records)
    weighed = curve(sampled.weighed_bytes, sampled.weighed_indices)
    return Sample(
        curve=curve,
        row_bytes=total / len(rows.row_indices),
        record_bytes=stored_bytes / len(sampled_records.sizes),
        row_tokens=_row_tokens(sampled),
        num_tokens=num_tokens,
        output_bytes=float(curve(rows.text_bytes, rows.row_indices).sum() + weighed.sum()),
        padding=padding,
        text_bytes=int(rows.text_bytes.sum()),
        token_bytes=_varint_bytes(sampled.encoded),
        seconds=sampled.seconds + time.perf_counter() - began,
        read=sampled.read,
        length_shares=sampled_records.length_shares,
        encoded=sampled.encoded,
    )


def _with_predicted(sampled: SampledRows, values: np.ndarray, *, rising: bool) -> np.ndarray:
    """Return `values` of the N tokenized rows followed by predicted ones of the M weighed rows: float64 [N + M].

    `rising`: for rows longer than all tokenized ones, values grow in proportion to the text.
    """
    rows = sampled.tokenized
    if not len(sampled.weighed_indices):
        return values
    # Predictions beyond the longest rows rest on those alone, so they are averaged over many rows.
    total = float(values.sum())
    curve = size_curve.fit(rows.text_bytes, values, total=total, rising=rising, last_rows=_LAST_ROWS)
    curve = size_curve.localize(
        curve, clusters=rows.clusters, row_indices=rows.row_indices, text_bytes=rows.text_bytes, output_bytes=values
    )
    return np.concatenate([values, curve(sampled.weighed_bytes, sampled.weighed_indices)])


def _row_tokens(sampled: SampledRows) -> np.ndarray:
    every = _with_predicted(sampled, sampled.tokenized.tokens.astype(np.float64), rising=True)
    return np.rint(every).astype(np.int64)


def _tokens_held(spec: ShardSpec, sampled: SampledRows, sampled_records: _Records) -> tuple[float, float | None]:
    """Return the tokens that the records of all sampled rows hold, and the share of positions that is padding.

    The share is None with a layout that joins rows.
    """
    layout, rows = layout_of(spec.layout), sampled.tokenized
    if layout.joins_rows:
        # A row may be in the sample's records several times, and the last record may have been dropped.
        held = min(1.0, sampled_records.tokens.sum() / max(rows.tokens.sum(), 1))
        return float(_with_predicted(sampled, rows.tokens * held, rising=True).sum()), None
    first, rising = np.cumsum(rows.records) - rows.records, not layout.one_record
    tokens, positions = (
        _with_predicted(sampled, _sums(values, first, rows.records).astype(np.float64), rising=rising).sum()
        for values in (sampled_records.tokens, sampled_records.positions)
    )
    return float(tokens), 1 - float(tokens) / max(float(positions), 1.0)


def _sums(values: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the sum of `values` over each row's records: `count` of them from index `first` on."""
    total = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(total[first + count] - total[first])


def _varint_bytes(parts: Sequence[Encoded]) -> float:
    """Mean encoded bytes per token id."""
    ids = np.concatenate([part.ragged["input_ids"].ids for part in parts])
    return float(1 + (ids >= 1 << 7).mean() + (ids >= 1 << 14).mean()) if len(ids) else 1.0


def _lay_out(spec: ShardSpec, encoder: BatchEncoder, parts: Sequence[Encoded], *, tokens: int) -> _Records:
    """Make the records of all parts. If rows are joined and the sample is too short for one record, repeat it."""
    times = max(1, -(-spec.length // max(tokens, 1))) if layout_of(spec.layout).joins_rows else 1
    builder = encoder.builder()
    for encoded in itertools.chain.from_iterable(itertools.repeat(parts, times)):
        builder.add(encoded)
    every = length_groups(builder)
    laid_out = [_records_of_length(spec, length_group) for length_group in every]
    sizes = np.concatenate([part.sizes for part in laid_out])
    counts = np.concatenate([part.tokens for part in laid_out])
    positions = np.concatenate([part.positions for part in laid_out])
    framed = tuple(itertools.chain.from_iterable(part.framed for part in laid_out))
    if (rows := [length_group.rows for length_group in every if length_group.rows is not None]) and len(sizes):
        # Each row has one record: put the records back into the order of the rows.
        order = np.argsort(np.concatenate(rows))
        sizes, counts, positions = sizes[order], counts[order], positions[order]
        framed = tuple(framed[at] for at in order) if framed else ()
    shares = tuple(float(part.sizes.sum() / max(sizes.sum(), 1)) for part in laid_out)
    return _Records(sizes=sizes, tokens=counts, positions=positions, framed=framed, length_shares=shares)


def _records_of_length(spec: ShardSpec, length_group: LengthGroup) -> _Records:
    schema = spec.schema_of(length_group.length)
    sizes, counts, framed = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    for columns in length_group.builder.chunks(None):
        frames = records.encode_framed(columns, schema)
        sizes.append(np.diff(frames.offsets))
        counts.append(count_tokens(columns, schema))
        if spec.compression == "gzip":
            data, edges = frames.data.tobytes(), frames.offsets.tolist()
            framed += [data[start:stop] for start, stop in itertools.pairwise(edges)]
    every = np.concatenate(sizes)
    return _Records(
        sizes=every,
        tokens=np.concatenate(counts),
        positions=np.full(len(every), _num_positions(schema)),
        framed=tuple(framed),
    )


def _num_positions(schema: Schema) -> int:
    """Return the number of token positions in one record."""
    return sum(feature.num_values for role in _TOKENS if (feature := schema.with_role(role)) is not None)


def _bytes_of_rows(
    spec: ShardSpec, rows: TokenizedRows, sampled_records: _Records, stored_bytes: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return stored bytes: of each row by its length, of each row by its cluster, and of all rows."""
    first = np.cumsum(rows.records) - rows.records
    along = _sums(sampled_records.sizes, first, rows.records).astype(np.float64)
    if spec.compression == "none":
        return along, along, stored_bytes
    inside = np.zeros(len(rows.row_indices))
    cluster_edges = np.flatnonzero(np.diff(rows.clusters)) + 1
    for values, groups in (
        (along, size_curve.groups_of_similar(rows.text_bytes)),
        (inside, np.split(np.arange(len(first)), cluster_edges)),
    ):
        packed = _packed(sampled_records.framed, [_own_records(first[group], rows.records[group]) for group in groups])
        for group, size in zip(groups, packed, strict=True):
            values[group] = size / len(group)
    return along, inside, stored_bytes


def _own_records(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the indices of the records of some rows: `count` each, from index `first` on."""
    spans = zip(first.tolist(), (first + count).tolist(), strict=True)
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in spans)])


def _bytes_of_joined_rows(
    spec: ShardSpec, rows: TokenizedRows, sampled_records: _Records, stored_bytes: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the same as `_bytes_of_rows` for joined rows: each has its share of the records that its tokens are in."""
    sizes = sampled_records.sizes.astype(np.float64)
    if spec.compression == "gzip":
        groups = np.array_split(np.arange(len(sizes)), max(1, len(sizes) // _RECORDS_PER_FLUSH))
        packed = _packed(sampled_records.framed, groups)
        sizes = np.repeat(np.array(packed) / [len(group) for group in groups], [len(group) for group in groups])
    full = sampled_records.tokens == spec.length
    counted = full if full.any() else np.ones(len(sizes), bool)
    per_token = sizes[counted].sum() / sampled_records.tokens[counted].sum()
    ends = np.cumsum(rows.tokens)
    # Past the last record (a remainder may be dropped), a token has the mean bytes of the others.
    token_edges = np.concatenate(
        [[0], np.cumsum(sampled_records.tokens), [max(ends[-1], sampled_records.tokens.sum()) + 1]]
    )
    byte_edges = np.concatenate([[0.0], np.cumsum(sizes)])
    byte_edges = np.append(byte_edges, byte_edges[-1] + (token_edges[-1] - token_edges[-2]) * per_token)
    share = np.diff(np.interp(ends, token_edges, byte_edges), prepend=0.0)
    return share, share, float(per_token * ends[-1] * (stored_bytes / sizes.sum()))


def _stored_bytes(spec: ShardSpec, sampled_records: _Records) -> float:
    """Return the bytes of all records as a shard would hold them."""
    if spec.compression == "none":
        return float(sampled_records.sizes.sum())
    order = np.arange(len(sampled_records.framed))
    if spec.shuffle:
        np.random.default_rng([spec.seed, 2]).shuffle(order)
    return float(len(zlib.compress(b"".join(sampled_records.framed[index] for index in order))))


def _packed(framed: Sequence[bytes], groups: Iterable[np.ndarray]) -> list[int]:
    """Return the bytes that each group of records adds to one compressed stream."""
    packer = zlib.compressobj()
    return [
        len(packer.compress(b"".join(framed[index] for index in group))) + len(packer.flush(zlib.Z_SYNC_FLUSH))
        for group in groups
    ]
