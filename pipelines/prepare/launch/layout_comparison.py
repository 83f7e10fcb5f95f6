"""What each layout would make of the same rows: records, shards, padding, and tokens that are cut.

    rows of 3, 9 and 4 tokens, L = 8        positions   padding   tokens cut
    pad        x x x . . . . .  x x x x x x x x  x x x x . . . .       24     9 / 24     1 / 16
    pad, 4, 8  x x x .          x x x x x x x x  x x x x               16     1 / 16     1 / 16
    pack       x x x x x x x x  x x x x x x x .  x . . . . . . .       24     8 / 24     0
    concat     x x x x x x x x  x x x x x x x x                        16     0          0

Waste is both together, in tokens for each token of the rows: positions that hold none, and tokens that have no
position. It is told from the sample, scaled to the split, with the sizes of the features that each layout stores.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.layouts.packing import pack
from pipelines.prepare.options.bucket_lengths import bucket_of, choose

__all__ = ["Cost", "compare", "least"]

# Lengths of rows in the line for several of them.
BUCKETS = 4
_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
# A record's frame, and the name of a feature with the sizes around it.
_RECORD_BYTES, _FEATURE_BYTES = 20, 23
_VARINT_EDGE = 1 << 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a layout with rows of `length` would make of a split: shares of positions that are padding, of tokens that
    are in no record, and of rows that lose some. `lengths` are those of its rows, where there are several.
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
        """Padding and cut tokens, for each token of the rows."""
        kept = 1 - self.tokens_cut
        return kept / max(1 - self.padding, 1e-9) - kept + self.tokens_cut


def compare(
    row_tokens: np.ndarray, *, rows: int, length: int, longest: int, token_bytes: float, types: bool, shard_bytes: int
) -> tuple[Cost, ...]:
    """`pad` with each usual length up to `longest` and with `length`, then with the best few lengths up to `length`
    (--bucket-lengths), then `concat` and `pack` with `length`.

    `row_tokens` int64 [N] are the full lengths of sampled rows, of `rows` in all; `token_bytes` is what an id takes,
    `types` whether there are token type ids.
    """
    if not len(row_tokens) or not row_tokens.any():
        return ()
    sampled = _Sampled(row_tokens, scale=rows / len(row_tokens), token_bytes=token_bytes, shard_bytes=shard_bytes)
    usual = {each for each in _LENGTHS if each <= max(longest, _LENGTHS[0])}
    padded = (sampled.pad(each, types=types) for each in sorted({*usual, length}))
    return (*padded, sampled.buckets(length, types=types), sampled.concat(length), sampled.pack(length))


def least(costs: tuple[Cost, ...]) -> Cost:
    """The one that wastes least; of equals the first."""
    return min(costs, key=lambda cost: cost.waste)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Laid:
    """What rows become: records, positions in them, and tokens there; so many features, with `extra` bytes for each
    position beside the id.
    """

    records: int
    positions: int
    kept: int
    features: int
    extra: float
    rows_cut: float = 0.0


class _Sampled:
    """Lengths of sampled rows, each of which stands for `scale` rows."""

    def __init__(self, row_tokens: np.ndarray, *, scale: float, token_bytes: float, shard_bytes: int) -> None:
        self._tokens = row_tokens
        self._total = int(row_tokens.sum())
        self._scale = scale
        self._token_bytes = token_bytes
        self._shard_bytes = shard_bytes

    def pad(self, length: int, *, types: bool) -> Cost:
        """Each row by itself, cut at `length`."""
        return self._padded("pad", (length,), types=types)

    def buckets(self, length: int, *, types: bool) -> Cost:
        """Each row by itself, padded to one of the few lengths up to `length` that waste least."""
        lengths = choose(self._tokens, count=BUCKETS, longest=length, fixed=False)
        return self._padded(f"pad to {','.join(map(str, lengths))}", lengths, types=types)

    def _padded(self, name: str, lengths: tuple[int, ...], *, types: bool) -> Cost:
        longest = lengths[-1]
        beside = 2 if types else 1
        laid = _Laid(
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
        """All rows joined."""
        # Only a shard's last record is padded, which a sample says nothing of.
        records = -(-self._total // length)
        laid = _Laid(records=records, positions=self._total, kept=self._total, features=2, extra=0.0)
        return self._cost("concat", length, laid)

    def pack(self, length: int) -> Cost:
        """Whole rows side by side."""
        records = len(pack(self._tokens, length=length))
        place = 2.0 if length > _VARINT_EDGE else 1.0  # a position within a document; segments take one byte
        laid = _Laid(records=records, positions=records * length, kept=self._total, features=3, extra=1.0 + place)
        return self._cost("pack", length, laid)

    def _cost(self, layout: str, length: int, laid: _Laid) -> Cost:
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
