"""Compiled loops that cut texts at single spaces and count the chunks (see `chunks`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfrecord_io.codec.kernels import jit, load

__all__ = ["Counted", "add", "partitions", "rehash"]

_SPACE = 0x20
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Counted(NamedTuple):
    """Counted byte strings, in the order in which they were first seen.

    `slots` int32 [C]: an open hash table of numbers of strings, -1 where free, C a power of two. `edges` int64 [E + 1]:
    string i is data[edges[i]:edges[i + 1]]. `hashes` uint64 [E]; `counts` int64 [E]; `used` int64 [1], the number of
    strings.
    """

    slots: np.ndarray
    edges: np.ndarray
    hashes: np.ndarray
    counts: np.ndarray
    data: np.ndarray
    used: np.ndarray


@jit
def _hash(data, start, stop):  # type: ignore[no-untyped-def]
    mixed = np.uint64(stop - start) * _MIX
    at = start
    while at + 8 <= stop:
        mixed = (mixed ^ load(data, at)) * _MIX
        mixed ^= mixed >> np.uint64(29)
        at += 8
    rest = np.uint64(0)
    while at < stop:
        rest = (rest << np.uint64(8)) | np.uint64(data[at])
        at += 1
    mixed = (mixed ^ rest) * _MIX
    return mixed ^ (mixed >> np.uint64(32))


@jit
def _differ(one, start, other, begin, size):  # type: ignore[no-untyped-def]
    """Return the number of the first byte that differs, of `size` bytes; `size` if none does."""
    k = 0
    while k < size and one[start + k] == other[begin + k]:
        k += 1
    return k


@jit
def _count(counted, data, start, stop):  # type: ignore[no-untyped-def]
    """Count one more of data[start:stop]."""
    mixed, size = _hash(data, start, stop), stop - start
    mask = np.uint64(len(counted.slots) - 1)
    at = mixed & mask
    while True:
        string = counted.slots[at]
        if string < 0:
            break
        begin = counted.edges[string]
        alike = counted.hashes[string] == mixed and counted.edges[string + 1] - begin == size
        if alike and _differ(counted.data, begin, data, start, size) == size:
            counted.counts[string] += 1
            return
        at = (at + np.uint64(1)) & mask
    string = counted.used[0]
    counted.used[0] += 1
    counted.slots[at] = string
    counted.hashes[string], counted.counts[string] = mixed, 1
    begin = counted.edges[string]
    counted.edges[string + 1] = begin + size
    for k in range(size):
        counted.data[begin + k] = data[start + k]


@jit
def _is_safe(data, at, safe):  # type: ignore[no-untyped-def]
    """Whether `safe` has the character that the byte at `at` is part of; one beyond 16 bits is not."""
    if data[at] < 0x80:
        return safe[data[at]]
    while data[at] & 0xC0 == 0x80:
        at -= 1
    lead = np.int64(data[at])
    if lead < 0xE0:
        return safe[((lead & 0x1F) << 6) | (data[at + 1] & 0x3F)]
    if lead < 0xF0:
        return safe[((lead & 0x0F) << 12) | ((np.int64(data[at + 1]) & 0x3F) << 6) | (data[at + 2] & 0x3F)]
    return False


@jit
def add(counted, data, edges, safe):  # type: ignore[no-untyped-def]
    """Cut texts before each space between two `safe` characters, and count the chunks.

    There must be room: in `counted.data` for all bytes, and for a string for each text and each space.
    """
    for text in range(len(edges) - 1):
        start, stop = edges[text], edges[text + 1]
        for at in range(start + 1, stop - 1):
            if data[at] == _SPACE and at > start and _is_safe(data, at - 1, safe) and _is_safe(data, at + 1, safe):
                _count(counted, data, start, at)
                start = at
        if start < stop:
            _count(counted, data, start, stop)


@jit
def rehash(counted):  # type: ignore[no-untyped-def]
    """Fill empty slots again."""
    mask = np.uint64(len(counted.slots) - 1)
    for string in range(counted.used[0]):
        at = counted.hashes[string] & mask
        while counted.slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        counted.slots[at] = string


@jit
def partitions(data, edges, count, out):  # type: ignore[no-untyped-def]
    """Set `out` int64 [N] to the partition of each string, of `count`; equal strings have the same one."""
    for text in range(len(edges) - 1):
        out[text] = (_hash(data, edges[text], edges[text + 1]) >> np.uint64(8)) % np.uint64(count)
