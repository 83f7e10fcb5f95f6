"""Comparing layouts for the same rows: records, shards, padding, and tokens that are cut.

    rows of 3, 9 and 4 tokens, L = 8        positions   padding   tokens cut
    pad        x x x . . . . .  x x x x x x x x  x x x x . . . .       24     9 / 24     1 / 16
    pad, 4, 8  x x x .          x x x x x x x x  x x x x               16     1 / 16     1 / 16
    pack       x x x x x x x x  x x x x x x x .  x . . . . . . .       24     8 / 24     0
    concat     x x x x x x x x  x x x x x x x x                        16     0          0

Waste adds padded positions and cut tokens, per token of the rows. It is computed from the sample, scaled to the split,
with the sizes of the features that each layout stores.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.layouts.packing import pack
from pipelines.prepare.options.bucket_lengths import bucket_of, choose

__all__ = ["Cost", "compare", "least"]

# How many lengths the line with several lengths has.
_BUCKETS = 4
_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Bytes of a record's frame, and of a feature's name with the sizes around it.
_RECORD_BYTES, _FEATURE_BYTES = 20, 23
_VARINT_EDGE = 1 << 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """A split in one layout with records of `length`.

    `padding`: share of positions that are padding. `tokens_cut`: share of tokens that are in no record. `rows_cut`:
    share of rows that lose tokens. `lengths`: the lengths of its records, if there are several.
    """

    layout: str
    length: int
    records: int
    shards: int
    padding: float
    tokens_cut: float
    rows_cut: float
    lengths: tuple[int, ...] = ()

    @property
    def waste(self) -> float:
        """Padding and cut tokens, per token of the rows."""
        kept = 1 - self.tokens_cut
        return kept / max(1 - self.padding, 1e-9) - kept + self.tokens_cut


def compare(
    row_tokens: np.ndarray, *, rows: int, length: int, longest: int, token_bytes: float, types: bool, shard_bytes: int
) -> tuple[Cost, ...]:
    """Return the costs of `pad` with each usual length up to `longest` and with `length`, of `pad` with the best few
    lengths up to `length` (--bucket-lengths), and of `concat` and `pack` with `length`.

    `row_tokens` int64 [N]: the full lengths of sampled rows of `rows` in all. `token_bytes`: mean bytes of an id.
    `types`: whether there are token type ids.
    """
    if not len(row_tokens) or not row_tokens.any():
        return ()
    sampled = _RowLengths(row_tokens, scale=rows / len(row_tokens), token_bytes=token_bytes, shard_bytes=shard_bytes)
    usual = {each for each in _LENGTHS if each <= max(longest, _LENGTHS[0])}
    padded = (sampled.pad(each, types=types) for each in sorted({*usual, length}))
    return (*padded, sampled.buckets(length, types=types), sampled.concat(length), sampled.pack(length))


def least(costs: tuple[Cost, ...]) -> Cost:
    """Return the first of those with the least waste."""
    return min(costs, key=lambda cost: cost.waste)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LaidOut:
    """Rows as a layout stores them: records, positions, and tokens `kept`; `extra` bytes a position besides the id."""

    records: int
    positions: int
    kept: int
    features: int
    extra: float
    rows_cut: float = 0.0


class _RowLengths:
    """Lengths of sampled rows, each of which stands for `scale` rows."""

    def __init__(self, row_tokens: np.ndarray, *, scale: float, token_bytes: float, shard_bytes: int) -> None:
        self._tokens = row_tokens
        self._total = int(row_tokens.sum())
        self._scale = scale
        self._token_bytes = token_bytes
        self._shard_bytes = shard_bytes

    def pad(self, length: int, *, types: bool) -> Cost:
        """Return the cost of one record a row, cut at `length`."""
        return self._padded("pad", (length,), types=types)

    def buckets(self, length: int, *, types: bool) -> Cost:
        """Return the cost of one record a row, padded to one of a few lengths chosen for the least waste."""
        lengths = choose(self._tokens, count=_BUCKETS, longest=length, fixed=False)
        return self._padded(f"pad to {','.join(map(str, lengths))}", lengths, types=types)

    def _padded(self, name: str, lengths: tuple[int, ...], *, types: bool) -> Cost:
        longest = lengths[-1]
        beside = 2 if types else 1
        laid = _LaidOut(
            records=len(self._tokens),
            positions=int(np.array(lengths)[bucket_of(lengths, self._tokens)].sum()),
            kept=int(np.minimum(self._tokens, longest).sum()),
            features=1 + beside,
            extra=beside,
            rows_cut=float((self._tokens > longest).mean()),
        )
        cost = self._cost(name, longest, laid)
        return dataclasses.replace(cost, lengths=lengths) if len(lengths) > 1 else cost

    def concat(self, length: int) -> Cost:
        """Return the cost of joining all rows."""
        # Only the last record of a shard is padded, which a sample cannot show.
        records = -(-self._total // length)
        laid = _LaidOut(records=records, positions=self._total, kept=self._total, features=2, extra=0.0)
        return self._cost("concat", length, laid)

    def pack(self, length: int) -> Cost:
        """Return the cost of whole rows side by side."""
        records = len(pack(self._tokens, length=length))
        position_bytes = 2.0 if length > _VARINT_EDGE else 1.0  # within a document; segment ids take one byte
        laid = _LaidOut(
            records=records, positions=records * length, kept=self._total, features=3, extra=1.0 + position_bytes
        )
        return self._cost("pack", length, laid)

    def _cost(self, layout: str, length: int, laid: _LaidOut) -> Cost:
        num_bytes = (
            laid.records * (_RECORD_BYTES + laid.features * _FEATURE_BYTES)
            + laid.kept * self._token_bytes
            + (laid.positions - laid.kept)
            + laid.positions * laid.extra
        )
        return Cost(
            layout=layout,
            length=length,
            records=max(1, round(laid.records * self._scale)),
            shards=max(1, round(num_bytes * self._scale / self._shard_bytes)),
            padding=1 - laid.kept / laid.positions,
            tokens_cut=1 - laid.kept / self._total,
            rows_cut=laid.rows_cut,
        )
