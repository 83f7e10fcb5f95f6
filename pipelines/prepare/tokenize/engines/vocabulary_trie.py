"""Vocabulary as a double-array trie: a look-up takes one memory access per byte.

A node is a number `base`. The unit at index base + b describes the node's child for the byte b, if any:

    unit     63 ....... 36 | 35 ............ 8 | 7 ... 0
             base of child | id + 1, 0 if none | b              (Aoe 1989, "An efficient digital search algorithm ...")

No two nodes have the same base, so a unit at base + b with the lowest byte b belongs to that node. An empty unit has
the lowest byte 0xFF, which is not in UTF-8. Nodes without children have base 0, where no unit has the lowest byte b.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines.base import utf8_of
from tfrecord_io.codec.kernels import frozen, jit

_ID_SHIFT, _BASE_SHIFT = 8, 36
_EMPTY = 0xFF
_TRIES = 256  # gaps to try for a node's children


class Trie(NamedTuple):
    """Double-array trie, `units` uint64. `start`: the root node. `inner`: the node after the prefix of inner pieces."""

    units: np.ndarray
    start: int
    inner: int


def build(vocabulary: Mapping[str, int], *, inner_prefix: str = "") -> Trie:
    """Build the trie of a vocabulary: words with ids up to `MAX_ID`. `inner_prefix`: "##" in WordPiece, else ''."""
    words = sorted(word for word in vocabulary if word)  # also sorted by their UTF-8 bytes
    data, edges = utf8_of(pa.array(words, pa.large_string()))
    data, ids = frozen(data), frozen(np.fromiter(map(vocabulary.__getitem__, words), np.int64, len(words)))
    num_nodes = 1 + int(edges[-1])
    size = 2 * num_nodes + 1024
    while True:
        units = np.full(size, _EMPTY, np.uint64)
        start, used = _build(data, edges, ids, units, np.empty((num_nodes, 4), np.int64))
        if start > 0:
            break
        size *= 2
    inner = int(start)
    for byte in inner_prefix.encode():
        unit = int(units[inner + byte])
        inner = unit >> _BASE_SHIFT if unit & 255 == byte else 0
    return Trie(units=frozen(units[:used].copy()), start=int(start), inner=inner)


@jit
def _build(data, edges, ids, units, queue):  # type: ignore[no-untyped-def]
    # A row of `queue`: a node's unit, its range of words [low, high), and its depth. Returns the root's base and the
    # number of used units, or 0, 0 if `units` is too small.
    size = len(units)
    after, before = np.arange(1, size + 1), np.arange(-1, size - 1)  # doubly linked list of gaps
    first_gap, end = 256, 512
    taken = np.zeros(size, np.uint8)  # 1 for numbers that are bases
    labels = np.empty(256, np.int64)
    queue[0, 0], queue[0, 1], queue[0, 2], queue[0, 3] = -1, 0, len(ids), 0
    root, head, tail = 1, 0, 1
    while head < tail:
        unit, low, high, depth = queue[head, 0], queue[head, 1], queue[head, 2], queue[head, 3]
        head += 1
        if low < high and edges[low + 1] - edges[low] == depth:
            units[unit] |= np.uint64(ids[low] + 1) << np.uint64(_ID_SHIFT)
            low += 1
        if low == high:
            continue
        count = 0
        for word in range(low, high):
            label = np.int64(data[edges[word] + depth])
            if count == 0 or labels[count - 1] != label:
                labels[count] = label
                queue[tail + count, 1] = word
                count += 1
            queue[tail + count - 1, 2] = word + 1
        base = _place(units, taken, after, first_gap, labels, count, end)
        if base + 512 > size:
            return 0, 0
        taken[base] = 1
        if unit < 0:
            root = base
        else:
            units[unit] |= np.uint64(base) << np.uint64(_BASE_SHIFT)
        for child in range(count):
            place = base + labels[child]
            units[place] = np.uint64(labels[child])
            if place == first_gap:
                first_gap = after[place]
            else:
                after[before[place]] = after[place]
            if after[place] < size:
                before[after[place]] = before[place]
            queue[tail + child, 0], queue[tail + child, 3] = place, depth + 1
        tail += count
        end = max(end, base + 256)
    return root, end


@jit
def _place(units, taken, after, first_gap, labels, count, end):  # type: ignore[no-untyped-def]
    size = len(units)
    gap = first_gap
    for _ in range(_TRIES):
        base = gap - labels[0]
        if gap >= size or base + 512 > size:
            break
        if base > 0 and taken[base] == 0:
            fits = True
            for index in range(1, count):
                fits = fits and units[base + labels[index]] == np.uint64(_EMPTY)
            if fits:
                return base
        gap = after[gap]
    return end
