"""The compiled loops of `odd_rows`: one over all bytes, which finds blocks that may hold something, and one over these.

Most blocks hold nothing. The test of a block compares each byte with constants, without a branch, so that it becomes
SIMD: tens of GB/s. A block that may hold something is read byte by byte.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipelines.prepare.tokenize.engines.text_kernels import code_point, jit

__all__ = ["CONTROL_BYTE", "LEAD", "NAME", "Tables", "choose", "find"]

# What a byte may begin: an ASCII control character, a code point of several bytes, a name to look for.
CONTROL_BYTE, LEAD, NAME = 1, 2, 4
_CONTROL = 4  # the bit of that kind
_BLOCK = 64


class Tables(NamedTuple):
    """What to look for.

    classes      uint8 [256]: what each byte may begin
    kinds        uint8: the kind of each code point, as a bit
    first_with   int32 [65536]: the first name that begins with these two bytes, -1 if there is none
    data, edges  the names in their order, one behind the other, and where each begins
    kind_of      uint8: the kind of each name, as a bit
    longest      bytes of the longest name
    anchors      uint8 [4, 3]: a block holds a name only if it holds one of these, see `odd_rows`
    """

    classes: np.ndarray
    kinds: np.ndarray
    first_with: np.ndarray
    data: np.ndarray
    edges: np.ndarray
    kind_of: np.ndarray
    longest: int
    anchors: np.ndarray


@jit
def find(data, edges, tables, found):  # type: ignore[no-untyped-def]
    """Sets the kinds (uint8 [N]) of N texts, text i being data[edges[i]:edges[i + 1]]."""
    # By themselves: to hand over the whole tuple for each byte takes a hundred times as long as the loop.
    classes, kinds, anchors, longest = tables.classes, tables.kinds, tables.anchors, tables.longest
    row, stop = 0, edges[-1]
    for start in range(edges[0], stop, _BLOCK):
        # The test looks at two bytes more than the block has.
        if start + _BLOCK + 1 < stop and not _may_hold(data, start, anchors):
            continue
        # A name may have begun before the block.
        at = max(edges[0], start - longest)
        while edges[row] > at:
            row -= 1
        while at < min(start + _BLOCK, stop):
            some = classes[data[at]]
            if some:
                while edges[row + 1] <= at:
                    row += 1
                if some & CONTROL_BYTE:
                    found[row] |= np.uint8(_CONTROL)
                if some & LEAD:
                    point, _ = code_point(data, at, edges[row + 1])
                    if 0 <= point < len(kinds):
                        found[row] |= kinds[point]
                if some & NAME and at + 1 < edges[row + 1]:
                    found[row] |= _kinds_of_names(data, at, edges[row + 1], tables)
            at += 1


@jit
def _may_hold(data, start, anchors):  # type: ignore[no-untyped-def]
    """Whether one of the block's bytes may begin something, or be a part of a name."""
    a, a_bits, a_next = anchors[0, 0], anchors[0, 1], anchors[0, 2]
    b, b_bits, b_next = anchors[1, 0], anchors[1, 1], anchors[1, 2]
    c, c_bits, c_next = anchors[2, 0], anchors[2, 1], anchors[2, 2]
    d, d_bits, d_next = anchors[3, 0], anchors[3, 1], anchors[3, 2]
    found, others = False, False
    for step in range(_BLOCK):
        # Unsigned, or whether it counts from the end would be tested for each byte.
        at = np.uint64(start) + np.uint64(step)
        byte, after = data[at], data[at + np.uint64(1)]
        found |= (byte == a) & ((after | a_bits) == a_next) | (byte == b) & ((after | b_bits) == b_next)
        found |= (byte == c) & ((after | c_bits) == c_next) | (byte == d) & ((after | d_bits) == d_next)
        found |= (byte < np.uint8(32)) & (byte != np.uint8(9)) & (byte != np.uint8(10)) & (byte != np.uint8(13))
        others |= byte > np.uint8(126)
    return found or (others and _may_hold_odd(data, start))


@jit
def _may_hold_odd(data, start):  # type: ignore[no-untyped-def]
    found = False
    for step in range(_BLOCK):
        at = np.uint64(start) + np.uint64(step)
        found |= _may_begin_odd(data[at], data[at + np.uint64(1)], data[at + np.uint64(2)])
    return found


@jit
def _may_begin_odd(byte, after, third):  # type: ignore[no-untyped-def]
    """Whether a mark, a control or a format character may begin with these three bytes.

    Most do not: Latin, Greek, Russian, Chinese, Japanese and Korean letters, and the punctuation of print.
    """
    found = (byte == np.uint8(0x7F)) | (byte == np.uint8(0xCC)) | (byte == np.uint8(0xCD)) | (byte >= np.uint8(0xF0))
    found |= (byte >= np.uint8(0xD2)) & (byte <= np.uint8(0xE1))
    found |= (byte == np.uint8(0xC2)) & ((after < np.uint8(0xA0)) | (after == np.uint8(0xAD)))
    printed = (after == np.uint8(0x80)) & (third >= np.uint8(0x90)) & (third <= np.uint8(0xA7))
    found |= (byte == np.uint8(0xE2)) & ~printed
    tones = (after == np.uint8(0x80)) & (third >= np.uint8(0xAA)) & (third <= np.uint8(0xAF))
    voiced = (after == np.uint8(0x82)) & ((third == np.uint8(0x99)) | (third == np.uint8(0x9A)))
    found |= (byte == np.uint8(0xE3)) & (tones | voiced)
    found |= (byte == np.uint8(0xEA)) & (after < np.uint8(0xB0))
    wide = (after == np.uint8(0xBC)) | (after == np.uint8(0xBD))
    return found | (byte == np.uint8(0xEF)) & ~wide


@jit
def _kinds_of_names(data, at, end, tables):  # type: ignore[no-untyped-def]
    """The kinds of the names that stand at `at`, in a text that ends at `end`."""
    found = np.uint8(0)
    pair = np.int64(data[at]) << 8 | np.int64(data[at + 1])
    name = np.int64(tables.first_with[pair])
    while 0 <= name < len(tables.kind_of) and _begins_with(tables, name, pair):
        if _is_at(data, at, end, tables, name):
            found |= tables.kind_of[name]
        name += 1
    return found


@jit
def _begins_with(tables, name, pair):  # type: ignore[no-untyped-def]
    start = tables.edges[name]
    return np.int64(tables.data[start]) << 8 | np.int64(tables.data[start + 1]) == pair


@jit
def _is_at(data, at, end, tables, name):  # type: ignore[no-untyped-def]
    first, size = tables.edges[name], tables.edges[name + 1] - tables.edges[name]
    step = 2
    while step < size and at + step < end and data[at + step] == tables.data[first + step]:
        step += 1
    return step >= size


@jit
def choose(kinds, sizes, spent, read, allowance, one_in, which):  # type: ignore[no-untyped-def]
    """Sets `which` (uint8 [N]) for each row that one of its kinds has an allowance for; `spent` and `read` go on."""
    for row in range(len(kinds)):
        read[0] += sizes[row]
        for kind in range(len(spent)):
            if kinds[row] >> kind & 1 and spent[kind] + sizes[row] <= allowance + read[0] // one_in:
                which[row] = 1
        if which[row]:
            for kind in range(len(spent)):
                if kinds[row] >> kind & 1:
                    spent[kind] += sizes[row]
