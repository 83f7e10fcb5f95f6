"""Kernels shared by our own engines: decoding UTF-8, and looking up the entry of a code point.

A code point's entry is entries[page_of[c >> 8] << 8 | c & 255] of a `Pages`. The lowest 3 bits say of what kind it is:

    DROP        nothing becomes of it
    SPACE       it ends a word and is no part of one
    ISOLATED    it is a word by itself
    ORDINARY    it is a part of a word, as the bytes that its entry refers to
    REORDERED   the same, if Unicode's order of marks changes nothing: no such one stands before it
    ASK         the reference has to do the document

Words seen before, with at most three ids, are remembered in a table of rows of four words of 64 bits:

    row of `memory`    key, key | ids 0, 1 | id 2, count

A row is overwritten by the next word that falls on it. The table belongs to one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

__all__ = ["ASK", "DROP", "ISOLATED", "MISSING_PAGE", "ORDINARY", "REORDERED", "SPACE"]
__all__ += ["code_point", "entry_of", "find_pages", "is_entry", "jit", "memory_row", "recall", "remember"]

DROP, SPACE, ISOLATED, ORDINARY, REORDERED, ASK = range(6)
MISSING_PAGE = -1
_MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    """Compile like `codec.kernels.jit`, but without reference counts, since these kernels never allocate arrays.

    Numba counts each array of a tuple at each call and in each loop: ten times the time of all the rest (measured).
    """
    try:
        return numba.njit(nogil=True, cache=True, _nrt=False)(function)
    except RuntimeError:  # no folder for compiled code, see there
        return numba.njit(nogil=True, _nrt=False)(function)


@jit
def code_point(data, at, end):  # type: ignore[no-untyped-def]
    """Return the code point at `at` and its width in bytes; -1 where the bytes are not valid UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    width = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if first < 0xC0 or at + width > end:
        return -1, 1
    if width == 2:
        return (first & 0x1F) << 6 | np.int64(data[at + 1]) & 0x3F, 2
    point = (np.int64(data[at + 1]) & 0x3F) << 6 | np.int64(data[at + 2]) & 0x3F
    if width == 3:
        return (first & 0x0F) << 12 | point, 3
    point = (first & 0x07) << 18 | point << 6 | np.int64(data[at + 3]) & 0x3F
    return (point if point < 0x110000 else -1), 4


@jit
def entry_of(point, tables):  # type: ignore[no-untyped-def]
    """Return the entry of a code point; 6 if its page is missing. `tables` have `page_of` and `entries`."""
    if point < 128:
        return tables.entries[point] if point >= 0 else np.uint64(ASK)
    page = np.int64(tables.page_of[point >> 8])
    return tables.entries[page << 8 | point & 255] if page >= 0 else np.uint64(6)


@jit
def find_pages(data, edges, wanted):  # type: ignore[no-untyped-def]
    """Set `wanted` (uint8 [0x1100]) to 1 for the page of every code point in the data."""
    for at in range(edges[0], edges[-1]):
        if data[at] & 0xC0 != 0x80:
            point, _ = code_point(data, at, edges[-1])
            if point >= 0:
                wanted[point >> 8] = 1


@jit
def is_entry(data, at, end, units, node):  # type: ignore[no-untyped-def]
    """Return whether the bytes at `at` begin with an entry of the trie."""
    while at < end:
        byte = np.int64(data[at])
        unit = units[node + byte]
        if np.int64(unit & np.uint64(255)) != byte:
            return False
        if (unit >> np.uint64(8)) & np.uint64(0xFFFFFFF):
            return True
        node = np.int64(unit >> np.uint64(36))
        at += 1
    return False


@jit
def memory_row(low, high, bits):  # type: ignore[no-untyped-def]
    """Return the place of a key's row in a memory of 2^bits rows."""
    return np.int64((low * _MIX_1 ^ high * _MIX_2) >> np.uint64(64 - bits)) << 2


@jit
def recall(memory, row, out, to):  # type: ignore[no-untyped-def]
    """Write the ids that a row remembers; `out` has room for three. Returns: their end in `out`."""
    two, last = memory[row + 2], memory[row + 3]
    out[to] = np.int32(two & np.uint64(0xFFFFFFFF))
    out[to + 1] = np.int32(two >> np.uint64(32))
    out[to + 2] = np.int32(last & np.uint64(0xFFFFFFFF))
    return to + np.int64(last >> np.uint64(32))


@jit
def remember(memory, row, low, high, out, to, end):  # type: ignore[no-untyped-def]
    """Let a row remember the ids out[to:end], if they are at most three."""
    if end - to <= 3:
        memory[row], memory[row + 1] = low, high
        memory[row + 2] = np.uint64(np.uint32(out[to])) | np.uint64(np.uint32(out[to + 1])) << np.uint64(32)
        memory[row + 3] = np.uint64(np.uint32(out[to + 2])) | np.uint64(end - to) << np.uint64(32)
