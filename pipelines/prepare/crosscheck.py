"""Comparing a fast engine with the reference while a job runs: one row in two hundred is encoded by both.

Which rows those are follows from the seed and the row's number alone, so that it is the same rows on any runner and
when a shard is made again. Whole rows are compared, with special tokens, truncation and what was rejected.
"""

from __future__ import annotations

import numpy as np

from pipelines.prepare.builders import Encoded, Tools
from pipelines.prepare.columns import Rows
from pipelines.prepare.runs import TokenRuns

__all__ = ["ONE_IN", "EngineDisproved", "chosen", "compare", "engine_of"]

ONE_IN = 200
# The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
_GAMMA, _MIX = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def chosen(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Which of the rows (numbers int64 [N]) are compared, as indices."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) + np.uint64(seed % 2**64) * _GAMMA + _GAMMA
        x = (x ^ (x >> np.uint64(30))) * _MIX[0]
        x = (x ^ (x >> np.uint64(27))) * _MIX[1]
        x ^= x >> np.uint64(31)
    return np.flatnonzero(x < np.uint64(2**64 // ONE_IN))


class EngineDisproved(Exception):
    """The engine gives other tokens for this row (its number in the split) than the reference."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def engine_of(tools: Tools) -> str:
    """The engine's name and version, as receipts and manifests have it."""
    return f"{tools.engine} {tools.engine_version}"


def compare(tools: Tools, rows: Rows, encoded: Encoded, *, numbers: np.ndarray, which: np.ndarray) -> int:
    """Encodes the rows `which` (indices into `rows` and their `numbers`) by the reference too. Returns how many.

    Raises: EngineDisproved if `encoded` has something else for one of them.
    """
    if tools.reference is None or not len(which):
        return 0
    expected = tools.reference.encode(rows.take(which))
    differ = (encoded.full_lengths[which] != expected.full_lengths) | (encoded.reasons[which] != expected.reasons)
    differ |= _runs_differ(encoded.runs.take(which), expected.runs)
    if encoded.types is not None and expected.types is not None:
        types = TokenRuns(encoded.types, encoded.runs.offsets).take(which)
        differ |= _runs_differ(types, TokenRuns(expected.types, expected.runs.offsets))
    if differ.any():
        raise EngineDisproved(int(numbers[which[np.flatnonzero(differ)[0]]]))
    return len(which)


def _runs_differ(one: TokenRuns, other: TokenRuns) -> np.ndarray:
    """Bool [N]."""
    differ = one.lengths != other.lengths
    for index in np.flatnonzero(~differ):
        ours, theirs = (runs.ids[runs.offsets[index] : runs.offsets[index + 1]] for runs in (one, other))
        differ[index] = not np.array_equal(ours, theirs)
    return differ
