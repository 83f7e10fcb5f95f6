"""Compare a fast engine with the reference tokenizer during a build: both encode one row in 2,000.

The choice of rows depends only on the seed and the row numbers.
"""

import numpy as np

from pipelines.prepare.layouts.base import BatchEncoder, Encoded
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.row_draws import GAMMA, mixed
from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

_ONE_IN = 2_000


def chosen(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Return the indices of the rows to compare, int64. `numbers` int64 [N]: the rows' numbers in the split."""
    with np.errstate(over="ignore"):
        states = numbers.astype(np.uint64) + np.uint64(seed % 2**64) * GAMMA + GAMMA
    return np.flatnonzero(mixed(states) < np.uint64(2**64 // _ONE_IN))


def compare(encoder: BatchEncoder, rows: Rows, encoded: Encoded, *, indices: np.ndarray, split: str) -> int:
    """Encode the rows at `indices` with the reference tokenizer, too. Return the number of compared rows.

    `encoded`: the result of `encoder` for `rows`. The number is 0 if `encoder` is the reference tokenizer's. Raises:
    TokenizerError if a row's tokens or its reason for rejection differ.
    """
    if encoder.reference is None or not len(indices):
        return 0
    differ = _differing(encoded.take(indices), encoder.reference.encode(rows.take(indices)))
    if differ.any():
        row = int(rows.numbers[indices[differ][0]])
        raise TokenizerError(
            f"row {row:,} of {split}: the engine {encoder.engine} produces different tokens from the reference "
            "tokenizer",
            remedy="run the same command again with --engine hf, which makes every shard with the reference "
            "tokenizer, and report the text of this row in the project's issue tracker",
        )
    return len(indices)


def _differing(ours: Encoded, expected: Encoded) -> np.ndarray:
    differ = (ours.full_lengths != expected.full_lengths) | (ours.reasons != expected.reasons)
    differ |= ours.num_sequences != expected.num_sequences
    if not np.array_equal(ours.row_of_sequence, expected.row_of_sequence):
        return differ
    for name, ragged in ours.ragged.items():
        changed = ragged.lengths != expected.ragged[name].lengths
        changed |= ragged.common_prefixes(expected.ragged[name]) < ragged.lengths
        differ[ours.row_of_sequence[changed]] = True
    return differ


def encode(encoder: BatchEncoder, rows: Rows, *, split: str) -> Encoded:
    """Return `encoder.encode(rows)`. If the tokenizer's library fails, raise a TokenizerError that names the rows."""
    result = _tried(encoder, rows)
    if isinstance(result, Encoded):
        return result
    alone = ((number, _tried(encoder, rows.take(np.array([at])))) for at, number in enumerate(rows.numbers))
    causes = {f"{number:,}": _cause(error) for number, error in alone if not isinstance(error, Encoded)}
    place = f"row{'s' * (len(causes) > 1)} {listing(list(causes))}"
    if not causes:  # the library may fail on the batch, but on no single row
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
