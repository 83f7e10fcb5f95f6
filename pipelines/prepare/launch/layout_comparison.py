"""Comparing layouts for the same rows: records, shards, padding, and tokens that are cut.

    rows of 3, 9 and 4 tokens, L = 8        positions   padding   tokens cut
    pad        x x x . . . . .  x x x x x x x x  x x x x . . . .       24     9 / 24     1 / 16
    pad, 4, 8  x x x .          x x x x x x x x  x x x x               16     1 / 16     1 / 16
    pack       x x x x x x x x  x x x x x x x .  x . . . . . . .       24     8 / 24     0
    concat     x x x x x x x x  x x x x x x x x                        16     0          0

Waste adds padded positions and cut tokens, per token of the rows. It is computed from the sample; records are scaled to
the split.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """A split in one layout with records of `length`.

    `padding`: share of positions that are padding. `tokens_cut`: share of tokens that are in no record. `rows_cut`:
    share of rows that lose tokens. `lengths`: the lengths of its records, if there are several.
    """

    layout: str
    length: int
    records: int
    padding: float
    tokens_cut: float
    rows_cut: float
    lengths: tuple[int, ...] = ()

    @property
    def waste(self) -> float:
        """Padding and cut tokens, per token of the rows."""
        kept = 1 - self.tokens_cut
        return kept / max(1 - self.padding, 1e-9) - kept + self.tokens_cut


def compare(row_tokens: np.ndarray, *, rows: int, length: int, longest: int) -> tuple[Cost, ...]:
    """Return the costs of `pad` with each usual length up to `longest` and with `length`, of `pad` with the best few
    lengths up to `length` (--bucket-lengths), and of `concat` and `pack` with `length`.

    `row_tokens` int64 [N]: the full lengths of sampled rows of `rows` in all.
    """
    total = int(row_tokens.sum())
    if not total:
        return ()

    def cost(layout: str, length: int, *, records: int, positions: int, kept: int = total) -> Cost:
        return Cost(
            layout=layout,
            length=length,
            records=max(1, round(records * rows / len(row_tokens))),
            padding=1 - kept / positions,
            tokens_cut=1 - kept / total,
            rows_cut=float((row_tokens > length).mean()) if kept < total else 0.0,
        )

    def padded(name: str, lengths: tuple[int, ...]) -> Cost:
        positions = int(np.array(lengths)[bucket_of(lengths, row_tokens)].sum())
        kept = int(np.minimum(row_tokens, lengths[-1]).sum())
        return cost(name, lengths[-1], records=len(row_tokens), positions=positions, kept=kept)

    usual = {each for each in _LENGTHS if each <= max(longest, _LENGTHS[0])}
    lengths = choose(row_tokens, count=_BUCKETS, longest=length, fixed=False)
    buckets = padded(f"pad to {','.join(map(str, lengths))}", lengths)
    packed = len(pack(row_tokens, length=length))
    return (
        *(padded("pad", (each,)) for each in sorted({*usual, length})),
        dataclasses.replace(buckets, lengths=lengths if len(lengths) > 1 else ()),
        # Only the last record is padded, which a sample cannot show.
        cost("concat", length, records=-(-total // length), positions=total),
        cost("pack", length, records=packed, positions=packed * length),
    )


def least(costs: tuple[Cost, ...]) -> Cost:
    """Return the first of those with the least waste."""
    return min(costs, key=lambda cost: cost.waste)
