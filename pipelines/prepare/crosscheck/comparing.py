"""Comparing a fast engine with the reference tokenizer while a job runs: some rows are encoded by both.

These are one row in 200 of a split's first 20,000 and one in 2,000 of its others, whatever they hold, and rows with
content that engines get wrong, as long as those are rare (`odd_rows`). The choice depends on the seed, the row numbers
and the content of the shard's rows only, so it is the same on any runner and when a shard is made again. Whole rows are
compared: special tokens, truncation, reasons for rejection.

One row in 200 throughout took an eighth of a build's CPU time, since the reference takes so much longer: of 155,000
rows 7.0 s with byte-level BPE and 5.7 s with WordPiece, of which 6.1 s and 5.0 s were left without any comparison. As
it is now, they take 6.3 s and 5.6 s.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.prepare.crosscheck.odd_rows import OddRows
from pipelines.prepare.layouts import BatchEncoder, Encoded
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.ragged import RaggedTokens

__all__ = ["CrossCheck", "EngineMismatch", "TokensDiffer", "chosen", "engine_of"]

_FIRST_ROWS = 20_000
_ONE_IN, _LATER_ONE_IN = 200, 2_000
_ROWS_AT_ONCE = 64
# The most comparisons that may be under way or queued beside the work.
_BATCHES_BEHIND = 16
# The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
_GAMMA, _MIX = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def chosen(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Return the indices of the rows (numbers int64 [N]) that are compared whatever they hold."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) + np.uint64(seed % 2**64) * _GAMMA + _GAMMA
        x = (x ^ (x >> np.uint64(30))) * _MIX[0]
        x = (x ^ (x >> np.uint64(27))) * _MIX[1]
        x ^= x >> np.uint64(31)
    is_first = numbers < _FIRST_ROWS
    return np.flatnonzero(x < np.where(is_first, np.uint64(2**64 // _ONE_IN), np.uint64(2**64 // _LATER_ONE_IN)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineMismatch:
    """An engine that gave other tokens than the reference, and the first such row (its number in the split)."""

    engine: str
    split: str
    row: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)


class TokensDiffer(Exception):
    """The engine gives other tokens than the reference for a row (its number in the split)."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def engine_of(encoder: BatchEncoder) -> str:
    """Return the engine's name and version, as receipts and manifests have it."""
    return f"{encoder.engine} {encoder.engine_version}"


class CrossCheck:
    """Compares rows of a shard with the reference, many at a time: calls with two or three rows take twice as long.

    `rows_checked` counts rows that were equal. With a `pool`, comparisons run beside the caller's work, which waits
    only if the reference falls behind.
    """

    def __init__(self, encoder: BatchEncoder, *, pool: concurrent.futures.Executor | None = None) -> None:
        self.rows_checked = 0
        self._reference = encoder.reference
        self._odd_rows = OddRows(encoder.added) if encoder.reference is not None else None
        self._pool = pool
        self._waiting: list[_Sampled] = []
        self._begun: collections.deque[concurrent.futures.Future[int]] = collections.deque()

    def add(self, rows: Rows, encoded: Encoded, *, numbers: np.ndarray, which: np.ndarray) -> None:
        """Queue rows for comparison with the reference; `which` are indices into `rows`, `encoded` and `numbers`.

        Raises: TokensDiffer if the reference gives something else for a row that was queued, now or before.
        """
        if self._reference is None or not len(which):
            return
        self._waiting.append(_Sampled.of(rows, encoded, numbers=numbers, which=which))
        if sum(len(sampled.numbers) for sampled in self._waiting) >= _ROWS_AT_ONCE:
            self._begin(self._reference)

    def add_some(self, rows: Rows, encoded: Encoded, *, numbers: np.ndarray, seed: int) -> None:
        """Choose and queue some of the shard's next rows for comparison. Raises: as `add`."""
        if self._odd_rows is not None:
            which = np.union1d(chosen(numbers, seed=seed), self._odd_rows.chosen(rows))
            self.add(rows, encoded, numbers=numbers, which=which)

    def finish(self) -> None:
        """Compare all rows that are still queued. Raises: as `add`."""
        if self._reference is None:
            return
        if self._waiting:
            self._begin(self._reference)
        while self._begun:
            self._await()

    def _begin(self, reference: BatchEncoder) -> None:
        sampled = _Sampled.joined(self._waiting)
        self._waiting.clear()
        if self._pool is None:
            self.rows_checked += sampled.compared(reference)
            return
        while len(self._begun) >= _BATCHES_BEHIND:
            self._await()
        self._begun.append(self._pool.submit(sampled.compared, reference))

    def _await(self) -> None:
        self.rows_checked += self._begun.popleft().result()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sampled:
    """Rows, their numbers in the split, and what the engine made of them."""

    rows: Rows
    numbers: np.ndarray
    encoded: Encoded

    @classmethod
    def of(cls, rows: Rows, encoded: Encoded, *, numbers: np.ndarray, which: np.ndarray) -> _Sampled:
        return cls(rows=rows.take(which), numbers=numbers[which], encoded=encoded.take(which))

    @classmethod
    def joined(cls, parts: Sequence[_Sampled]) -> _Sampled:
        return cls(
            rows=Rows.joined([part.rows for part in parts]),
            numbers=np.concatenate([part.numbers for part in parts]),
            encoded=Encoded.joined([part.encoded for part in parts]),
        )

    def compared(self, reference: BatchEncoder) -> int:
        """Return the number of rows. Raises: TokensDiffer if the reference gives something else for one of them."""
        differ = self.differ_from(reference.encode(self.rows))
        if differ.any():
            raise TokensDiffer(int(self.numbers[np.flatnonzero(differ)[0]]))
        return len(self.numbers)

    def differ_from(self, expected: Encoded) -> np.ndarray:
        """Return which rows differ from what the reference gives, bool [N]."""
        ours = self.encoded
        differ = (ours.full_lengths != expected.full_lengths) | (ours.reasons != expected.reasons)
        differ |= ours.num_sequences != expected.num_sequences
        if not np.array_equal(ours.row_of_sequence, expected.row_of_sequence):
            return differ  # a row has more or fewer sequences
        for name, ragged in ours.ragged.items():
            differ[ours.row_of_sequence[_sequences_differ(ragged, expected.ragged[name])]] = True
        return differ


def _sequences_differ(one: RaggedTokens, other: RaggedTokens) -> np.ndarray:
    """Return which sequences differ, bool [N]."""
    differ = one.lengths != other.lengths
    for index in np.flatnonzero(~differ):
        ours, theirs = (ragged.ids[ragged.offsets[index] : ragged.offsets[index + 1]] for ragged in (one, other))
        differ[index] = not np.array_equal(ours, theirs)
    return differ
