"""The largest batch that fits, with few compilations, since each takes from seconds to minutes.

Memory is close to a fixed part (weights, AdamW's means and squares) plus a part that grows with the batch. From each
batch that fits a line leads to the batch that should just fit, which is tried next:

    memory │ limit ─────────────────x──      o  compiled, fits
           │              ╱ ·               x  tried next
           │        o ╱                      then a step further, until a batch that does not fit is close
           │ fixed ╱
           └──────────────────────── batch   of 1, 2, 4, and multiples of 8
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping

__all__ = ["GaveUp", "LargestBatch", "largest"]

# At most so many times what is known to fit is tried at once: the line may be far off.
_LEAP = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """`fits`: the largest that was seen to fit, 0 for none. `too_large`: the smallest that was seen not to, or None."""

    fits: int
    too_large: int | None


class GaveUp(Exception):
    """What `memory_of` raises when it has no answer, or no time: the search ends with what is known."""


def largest(
    memory_of: Callable[[int], int | None], *, known: Mapping[int, int | None], fixed_bytes: int, limit_bytes: int
) -> LargestBatch:
    """Search for the largest batch that fits, by asking `memory_of` for the bytes of a batch (None: does not fit).

    `known` is what is known already: batch to bytes, or None. The bytes that do not grow with the batch, and the memory
    there is, only guide the search.
    """
    known = dict(known)
    found = _seen(known)
    with contextlib.suppress(GaveUp):
        while (batch := _next(found, known.get(found.fits), fixed_bytes, limit_bytes)) is not None:
            known[batch] = memory_of(batch)
            found = _seen(known)
    return found


def _seen(known: Mapping[int, int | None]) -> LargestBatch:
    fits = max((batch for batch, memory in known.items() if memory is not None), default=0)
    return LargestBatch(fits=fits, too_large=min((each for each in known if known[each] is None), default=None))


def _next(found: LargestBatch, memory: int | None, fixed_bytes: int, limit_bytes: int) -> int | None:
    """The batch to try, or None if no other lies between, or those left are within an eighth of each other."""
    low, high = found.fits, found.too_large
    if memory is None:
        return _rounded(high // 2) if high and high > 1 else None
    per_row = max(1.0, (memory - fixed_bytes) / low)
    guess = _rounded(int(min((limit_bytes - fixed_bytes) / per_row, low * _LEAP)))
    least = next((each for each in (1, 2, 4) if each > low), low // 8 * 8 + 8)
    if high is None:
        return max(guess, least)
    if least >= high or (high - low <= max(8, low // 8)):
        return None
    # Once the line has pointed outside, halves are safe.
    return guess if least <= guess < high else max(least, _rounded((low + high) // 2))


def _rounded(batch: int) -> int:
    """The largest of 1, 2, 4, and multiples of 8 that is not above."""
    return batch // 8 * 8 if batch >= 8 else max(each for each in (1, 2, 4) if each <= max(1, batch))
