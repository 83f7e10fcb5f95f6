"""Several lengths of rows instead of one: which ones, and which of them a row gets.

    --bucket-lengths 8,16,32    a row of n tokens is padded to the smallest length that holds it    n    3  8  9  40
                                (longer rows are cut at the largest)                                to   8  8 16  32
    --bucket-lengths auto:3     the three lengths with which a sample's rows are padded least

For `auto`, lengths are multiples of 8, which is how accelerators lay out memory. Among the M of them that some row
needs, K are chosen by dynamic programming: the best K that end with the j-th are the best K - 1 that end with some i
before it, and one for all rows between the two.

    cost[k][j]  =  min over i < j of  cost[k - 1][i]  +  length[j] * (rows longer than length[i], up to length[j])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from pipelines.prepare.options import limits
from tfrecord_io.errors import ConfigError

__all__ = ["MOST_BUCKETS", "automatic", "bucket_of", "choose", "parse"]

MOST_BUCKETS = 8
_AUTO = "auto:"
_STEP = 8
_REMEDY = "write for example --bucket-lengths 64,128,256,512, or auto:4"


def parse(given: str | Sequence[int], *, max_length: int | None) -> tuple[int, ...] | str:
    """The lengths, or `auto:K` as it is.

    Raises: ConfigError unless they are at most 8, ascend, and end with `max_length` if that is given.
    """
    if isinstance(given, str) and given.startswith(_AUTO):
        automatic(given)
        return given
    lengths = _numbers(given)
    if not 1 <= len(lengths) <= MOST_BUCKETS:
        raise ConfigError(
            f"--bucket-lengths has {len(lengths)} lengths, expected 1 to {MOST_BUCKETS}: each of them is a program to "
            "compile and a family of shards",
            remedy=_REMEDY,
        )
    if not all(short < long for short, long in itertools.pairwise((0, *lengths))):
        raise ConfigError(
            f"--bucket-lengths {_listed(lengths)}, expected lengths of at least 1 that ascend", remedy=_REMEDY
        )
    limits.require_at_most("--bucket-lengths", lengths[-1], limits.MOST_TOKENS, remedy=_REMEDY)
    if max_length is not None and lengths[-1] != max_length:
        raise ConfigError(
            f"--bucket-lengths {_listed(lengths)} with --max-length {max_length}, expected the largest to be "
            f"{max_length}: rows are cut there",
            remedy="leave --max-length out, or make it the largest length",
        )
    return lengths


def automatic(given: object) -> int | None:
    """K of `auto:K`; None if `given` is something else. Raises: ConfigError if K is not a number from 1 to 8."""
    if not isinstance(given, str) or not given.startswith(_AUTO):
        return None
    text = given.removeprefix(_AUTO)
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_BUCKETS:
        raise ConfigError(f"--bucket-lengths {given}, expected auto:1 to auto:{MOST_BUCKETS}", remedy=_REMEDY)
    return int(text)


def bucket_of(lengths: Sequence[int], row_tokens: np.ndarray) -> np.ndarray:
    """For each row the index of the smallest length that holds it, or of the largest: int64 [N]."""
    return np.minimum(np.searchsorted(np.asarray(lengths), row_tokens), len(lengths) - 1)


def choose(
    row_tokens: np.ndarray, *, count: int, longest: int, fixed: bool, weights: np.ndarray | None = None
) -> tuple[int, ...]:
    """At most `count` lengths with which rows of `row_tokens` (int64 [N]) tokens are padded least.

    No length is above `longest`, where longer rows are cut. `fixed` makes that the largest; else it is the smallest
    multiple of 8 that holds all rows. `weights` float64 [N] say how many rows each of them stands for.
    """
    rounded = np.minimum(-(-np.maximum(row_tokens, 1) // _STEP) * _STEP, longest)
    candidates, where = np.unique(np.append(rounded, longest) if fixed else rounded, return_inverse=True)
    if not len(candidates):
        return (longest,)
    rows = np.bincount(where.reshape(-1)[: len(rounded)], weights=weights, minlength=len(candidates))
    chosen = _cheapest(candidates.astype(np.float64), np.concatenate([[0.0], np.cumsum(rows)]), count)
    return tuple(candidates[chosen].tolist())


def _cheapest(lengths: np.ndarray, rows: np.ndarray, count: int) -> list[int]:
    """Indices of at most `count` of the M `lengths`, the last one among them; `rows` [M + 1] are those before each."""
    size = len(lengths)
    cost = lengths * rows[1:]
    came_from = [np.full(size, -1)]
    totals = [cost[-1]]
    # What it takes to have one length, j, for all rows between i and j.
    between = lengths[np.newaxis, :] * (rows[np.newaxis, 1:] - rows[1:, np.newaxis])
    between[np.tril_indices(size)] = np.inf
    for _ in range(1, min(count, size)):
        through = cost[:, np.newaxis] + between
        came_from.append(through.argmin(axis=0))
        cost = through.min(axis=0)
        totals.append(cost[-1])
    # A length that saves nothing is left out.
    used = int(np.argmin(totals))
    chosen = [size - 1]
    for step in range(used, 0, -1):
        chosen.append(int(came_from[step][chosen[-1]]))
    return chosen[::-1]


def _numbers(given: str | Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (given.split(",") if isinstance(given, str) else given))
    except ValueError:
        raise ConfigError(
            f"--bucket-lengths {given}, expected lengths with commas between them", remedy=_REMEDY
        ) from None


def _listed(lengths: Sequence[int]) -> str:
    return ",".join(map(str, lengths))
