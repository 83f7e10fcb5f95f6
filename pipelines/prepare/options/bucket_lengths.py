"""Bucket lengths: several row lengths instead of one, and the bucket of each row (docs/how-to/layouts/buckets.md).

For auto:K, dynamic programming chooses K of the M multiples of 8 that the sampled rows need:

    cost[k][j]  =  min over i < j of  cost[k - 1][i]  +  length[j] * (rows longer than length[i], up to length[j])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfrecord_io.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np  # imported in functions, since the command line imports this module

_MOST_LENGTHS = 8
# Larger row lengths are typing mistakes: no machine has the memory for such rows.
MOST_TOKENS = 1 << 22
_AUTO = "auto:"
_MULTIPLE = 8
_REMEDY = "write for example --bucket-lengths 64,128,256,512, or auto:4"


def parse(option: str | Sequence[int], *, max_length: int | None) -> tuple[int, ...] | str:
    """Parse the value of --bucket-lengths, such as `64,128`, into row lengths; return `auto:K` unchanged.

    Raises: ConfigError unless the lengths ascend and end with `max_length`, if that is given.
    """
    if isinstance(option, str) and option.startswith(_AUTO):
        automatic_count(option)
        return option
    try:
        lengths = tuple(int(part) for part in (option.split(",") if isinstance(option, str) else option))
    except ValueError:
        raise ConfigError(f"--bucket-lengths {option}, expected lengths separated by commas", remedy=_REMEDY) from None
    listed, expected = ",".join(map(str, lengths)), ""
    if not 1 <= len(lengths) <= _MOST_LENGTHS:
        expected = f"1 to {_MOST_LENGTHS} lengths, since each needs its own shards and compilation of the model"
    elif not all(short < long for short, long in itertools.pairwise((0, *lengths))):
        expected = "ascending lengths of at least 1"
    elif lengths[-1] > MOST_TOKENS:
        expected = f"at most {MOST_TOKENS} tokens"
    if expected:
        raise ConfigError(f"--bucket-lengths {listed}, expected {expected}", remedy=_REMEDY)
    if max_length is not None and lengths[-1] != max_length:
        raise ConfigError(
            f"--bucket-lengths {listed} with --max-length {max_length}, expected the largest length to be "
            f"{max_length}, where rows are cut",
            remedy="leave --max-length out, or make it the largest length",
        )
    return lengths


def automatic_count(option: object) -> int | None:
    """Return K if the value of --bucket-lengths is `auto:K`, else None. Raises: ConfigError unless K is 1 to 8."""
    if not isinstance(option, str) or not option.startswith(_AUTO):
        return None
    text = option.removeprefix(_AUTO)
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= _MOST_LENGTHS:
        raise ConfigError(f"--bucket-lengths {option}, expected auto:1 to auto:{_MOST_LENGTHS}", remedy=_REMEDY)
    return int(text)


def length_index(lengths: Sequence[int], row_tokens: np.ndarray) -> np.ndarray:
    """Return for each of N rows the index of the smallest length that holds it, else of the largest, int64 [N]."""
    import numpy as np

    return np.minimum(np.searchsorted(np.asarray(lengths), row_tokens), len(lengths) - 1)


def choose(
    row_tokens: np.ndarray, *, count: int, longest: int, fixed: bool, weights: np.ndarray | None = None
) -> tuple[int, ...]:
    """Choose at most `count` row lengths with the least padding. `row_tokens` int64 [N]: tokens per row.

    `weights` float64 [N]: how many rows each entry represents; None for one. Rows longer than `longest` are cut. The
    largest row length is `longest` if `fixed`, else the smallest multiple of 8 that holds all rows, at most `longest`.
    """
    import numpy as np

    rounded = np.minimum(-(-np.maximum(row_tokens, 1) // _MULTIPLE) * _MULTIPLE, longest)
    candidates, candidate = np.unique(np.append(rounded, longest) if fixed else rounded, return_inverse=True)
    if not len(candidates):
        return (longest,)
    rows = np.bincount(candidate.reshape(-1)[: len(rounded)], weights=weights, minlength=len(candidates))
    chosen = _cheapest(candidates.astype(np.float64), np.concatenate([[0.0], np.cumsum(rows)]), count)
    return tuple(candidates[chosen].tolist())


def _cheapest(lengths: np.ndarray, rows_before: np.ndarray, count: int) -> list[int]:
    import numpy as np

    # rows_before[i]: number of rows that fit into the lengths before index i
    size = len(lengths)
    cost = lengths * rows_before[1:]
    came_from = [np.full(size, -1)]
    totals = [cost[-1]]
    # Positions of the rows between i and j if all of them have length j.
    between = lengths[np.newaxis, :] * (rows_before[np.newaxis, 1:] - rows_before[1:, np.newaxis])
    between[np.tril_indices(size)] = np.inf
    for _ in range(1, min(count, size)):
        through = cost[:, np.newaxis] + between
        came_from.append(through.argmin(axis=0))
        cost = through.min(axis=0)
        totals.append(cost[-1])
    # argmin takes the first minimum, so no length is added that saves no padding.
    chosen = [size - 1]
    for earlier in range(int(np.argmin(totals)), 0, -1):
        chosen.append(int(came_from[earlier][chosen[-1]]))
    return chosen[::-1]
