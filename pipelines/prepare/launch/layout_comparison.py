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
    scale = rows / len(row_tokens)
    sampled = _RowLengths(tokens=row_tokens, scale=scale, token_bytes=token_bytes, shard_bytes=shard_bytes)
    usual = {each for each in _LENGTHS if each <= max(longest, _LENGTHS[0])}
    padded = (sampled.padded("pad", (each,), types=types) for each in sorted({*usual, length}))
    lengths = choose(row_tokens, count=_BUCKETS, longest=length, fixed=False)
    buckets = sampled.padded(f"pad to {','.join(map(str, lengths))}", lengths, types=types)
    return (*padded, buckets, sampled.concat(length), sampled.pack(length))


def least(costs: tuple[Cost, ...]) -> Cost:
    """Return the first of those with the least waste."""
    return min(costs, key=lambda cost: cost.waste)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RowLengths:
    """Lengths of sampled rows, int64 [N], each of which stands for `scale` rows."""

    tokens: np.ndarray
    scale: float
    token_bytes: float
    shard_bytes: int

    def padded(self, name: str, lengths: tuple[int, ...], *, types: bool) -> Cost:
        """Return the cost of one record a row, padded to the smallest of `lengths` that holds it, else cut."""
        cost = self._cost(
            name,
            lengths[-1],
            records=len(self.tokens),
            positions=int(np.array(lengths)[bucket_of(lengths, self.tokens)].sum()),
            kept=int(np.minimum(self.tokens, lengths[-1]).sum()),
            extra_bytes=(1, 1) if types else (1,),
        )
        rows_cut = float((self.tokens > lengths[-1]).mean())
        return dataclasses.replace(cost, rows_cut=rows_cut, lengths=lengths if len(lengths) > 1 else ())

    def concat(self, length: int) -> Cost:
        """Return the cost of joining all rows. Only the last record is padded, which a sample cannot show."""
        total = int(self.tokens.sum())
        return self._cost("concat", length, records=-(-total // length), positions=total, kept=total, extra_bytes=(0,))

    def pack(self, length: int) -> Cost:
        """Return the cost of whole rows side by side."""
        records = len(pack(self.tokens, length=length))
        position_bytes = 2 if length > _VARINT_EDGE else 1  # within a document; segment ids take one byte
        return self._cost(
            "pack",
            length,
            records=records,
            positions=records * length,
            kept=int(self.tokens.sum()),
            extra_bytes=(1, position_bytes),
        )

    def _cost(
        self, layout: str, length: int, *, records: int, positions: int, kept: int, extra_bytes: tuple[int, ...]
    ) -> Cost:
        """Return a cost; `extra_bytes`: of each feature besides the ids, for a position."""
        num_bytes = (
            records * (_RECORD_BYTES + (1 + len(extra_bytes)) * _FEATURE_BYTES)
            + kept * self.token_bytes
            + (positions - kept)
            + positions * sum(extra_bytes)
        )
        return Cost(
            layout=layout,
            length=length,
            records=max(1, round(records * self.scale)),
            shards=max(1, round(num_bytes * self.scale / self.shard_bytes)),
            padding=1 - kept / positions,
            tokens_cut=1 - kept / int(self.tokens.sum()),
            rows_cut=0.0,
        )
