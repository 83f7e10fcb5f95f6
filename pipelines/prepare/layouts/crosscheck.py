"""Compare a fast engine with the reference tokenizer during a build: both encode one row in 2,000.

The choice of rows depends only on the seed and their numbers. If the tokens of a row or the reasons to reject it
differ, the build ends with an error that names the row.
"""

from __future__ import annotations

import numpy as np

from pipelines.prepare.layouts.base import BatchEncoder, Encoded
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.row_draws import GAMMA, mixed
from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

_ONE_IN = 2_000
_ROWS_AT_ONCE = 64


def chosen(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Return the indices of the rows to compare, from their `numbers`, int64 [N]."""
    with np.errstate(over="ignore"):
        states = numbers.astype(np.uint64) + np.uint64(seed % 2**64) * GAMMA + GAMMA
    return np.flatnonzero(mixed(states) < np.uint64(2**64 // _ONE_IN))


class CrossCheck:
    """Comparison of a split's rows with the reference tokenizer.

    It collects 64 rows for each call of the reference, which takes twice as long per row for only two or three rows.
    """

    def __init__(self, encoder: BatchEncoder, *, split: str) -> None:
        self.rows_checked = 0
        self._encoder = encoder
        self._split = split
        self._waiting: list[tuple[Rows, Encoded]] = []

    def add(self, rows: Rows, encoded: Encoded, *, which: np.ndarray) -> None:
        """Queue the rows at the indices `which`. Raises: as `finish`."""
        if self._encoder.reference is None or not len(which):
            return
        self._waiting.append((rows.take(which), encoded.take(which)))
        if sum(len(waiting) for waiting, _ in self._waiting) >= _ROWS_AT_ONCE:
            self.finish()

    def finish(self) -> None:
        """Compare all queued rows. Raises: TokenizerError if the reference encodes one differently."""
        if self._encoder.reference is None or not self._waiting:
            return
        batches, encoded = zip(*self._waiting, strict=True)
        self._waiting.clear()
        rows = Rows.joined(batches)
        differ = _differing(Encoded.joined(encoded), self._encoder.reference.encode(rows))
        if differ.any():
            row = int(rows.numbers[np.flatnonzero(differ)[0]])
            raise TokenizerError(
                f"row {row:,} of {self._split}: the engine {self._encoder.engine} gives other tokens than the "
                "reference tokenizer",
                remedy="run the same command again with --engine hf, which makes every shard with the reference "
                "tokenizer, and report the text of this row to the project's issue tracker",
            )
        self.rows_checked += len(rows)


def _differing(ours: Encoded, expected: Encoded) -> np.ndarray:
    differ = (ours.full_lengths != expected.full_lengths) | (ours.reasons != expected.reasons)
    differ |= ours.num_sequences != expected.num_sequences
    if not np.array_equal(ours.row_of_sequence, expected.row_of_sequence):
        return differ
    for name, ragged in ours.ragged.items():
        other = expected.ragged[name]
        changed = ragged.lengths != other.lengths
        for index in np.flatnonzero(~changed):
            one, two = (side.ids[side.offsets[index] : side.offsets[index + 1]] for side in (ragged, other))
            changed[index] = not np.array_equal(one, two)
        differ[ours.row_of_sequence[changed]] = True
    return differ


def encode(encoder: BatchEncoder, rows: Rows, *, split: str) -> Encoded:
    """Return `encoder.encode(rows)`. Raises: TokenizerError, which names the rows, if the tokenizer's library fails."""
    result = _tried(encoder, rows)
    if isinstance(result, Encoded):
        return result
    alone = ((number, _tried(encoder, rows.take(np.array([at])))) for at, number in enumerate(rows.numbers))
    causes = {f"{number:,}": _cause(error) for number, error in alone if not isinstance(error, Encoded)}
    place = f"row{'s' * (len(causes) > 1)} {listing(list(causes))}"
    if not causes:  # the library may fail on all rows together, but on no single row
        place = f"rows {rows.numbers[0]:,} to {rows.numbers[-1]:,}"
    cause = next(iter(causes.values()), _cause(result))
    raise TokenizerError(f"{place} of {split}: {cause}", remedy=library_failures.REMEDY) from result


def _tried(encoder: BatchEncoder, rows: Rows) -> Encoded | BaseException:
    try:
        return encoder.encode(rows)
    except BaseException as error:
        if not library_failures.is_failure(error):
            raise
        return error


def _cause(error: BaseException) -> str:
    return error.cause if isinstance(error, TokenizerError) else f"the tokenizer fails: {first_line(error)}"
