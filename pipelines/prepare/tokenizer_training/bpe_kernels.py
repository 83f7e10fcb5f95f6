"""Compiled loops of the BPE trainer (see `bpe`): pairs of neighbouring symbols, and the heap that orders them.

    symbols   t h e | t h e n | a         int32 [S], all words one behind the other; a merge shortens a word in place
    table     (t, h) -> 12, (h, e) -> 12  how often each pair stands side by side, words counted as often as they occur
    heap      12 (t, h): words 0, 1       the pair with the largest count, of equals the one with the smallest ids
    places    0 1 | 0 1 | 1 | ...         the words of each heap entry, one entry's behind the other's

A pair is a uint64, the left id in the upper half, so that smaller ids are a smaller number. No loop allocates what
grows with the text: `places` has room for all that can come, since a merge takes a symbol away and adds two places
at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfrecord_io.codec.kernels import jit

__all__ = ["NONE", "Heap", "Table", "Words", "count_pairs", "fill_heap", "merge", "next_pair", "rehash"]

NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Words(NamedTuple):
    """W words. `symbols` int32 [S]; `starts` int64 [W]; `lengths` int32 [W], in symbols; `counts` int64 [W]."""

    symbols: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray


class Table(NamedTuple):
    """An open hash table of pairs. `keys` uint64 [C], NONE where free, C a power of two; `counts` int64 [C].

    `group` int64 [C] is -1 except within a call, and `used` int64 [1] the number of pairs.
    """

    keys: np.ndarray
    counts: np.ndarray
    group: np.ndarray
    used: np.ndarray


class Heap(NamedTuple):
    """A binary heap. `keys` uint64 [H]; `counts` int64 [H], as of when the entry was last looked at; `first` and `stop`
    int64 [H]: its words are `places[first:stop]`, int32. `size` int64 [2]: the number of entries, and of places.
    """

    keys: np.ndarray
    counts: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    places: np.ndarray
    size: np.ndarray


@jit
def _slot(table, key):  # type: ignore[no-untyped-def]
    """Return the place of a pair in the table, which it gets if it has none."""
    mask = np.uint64(len(table.keys) - 1)
    at = ((key * _MIX) >> np.uint64(20)) & mask
    while table.keys[at] != key:
        if table.keys[at] == NONE:
            table.keys[at] = key
            table.counts[at] = 0
            table.used[0] += 1
            break
        at = (at + np.uint64(1)) & mask
    return at


@jit
def _pair(left, right):  # type: ignore[no-untyped-def]
    return (np.uint64(left) << np.uint64(32)) | np.uint64(right)


@jit
def rehash(old, new):  # type: ignore[no-untyped-def]
    """Copy the pairs of one table into an empty one."""
    for at in range(len(old.keys)):
        if old.keys[at] != NONE:
            new.counts[_slot(new, old.keys[at])] = old.counts[at]


@jit
def count_pairs(words, table, first, stop):  # type: ignore[no-untyped-def]
    """Add the pairs of the words [first, stop) to the table."""
    for word in range(first, stop):
        start = words.starts[word]
        for at in range(start, start + words.lengths[word] - 1):
            slot = _slot(table, _pair(words.symbols[at], words.symbols[at + 1]))
            table.counts[slot] += words.counts[word]


@jit
def fill_heap(words, table, heap):  # type: ignore[no-untyped-def]
    """Put every pair of the table into the empty heap, with the words that it is in."""
    groups = 0
    for slot in range(len(table.keys)):
        if table.keys[slot] != NONE:
            table.group[slot] = groups
            groups += 1
    last = np.full(groups, -1, np.int64)
    ends = np.zeros(groups + 1, np.int64)
    for turn in range(2):  # first count the places of each pair, then fill them
        for word in range(len(words.starts)):
            start = words.starts[word]
            for at in range(start, start + words.lengths[word] - 1):
                group = table.group[_slot(table, _pair(words.symbols[at], words.symbols[at + 1]))]
                if last[group] != word:
                    last[group] = word
                    if turn:
                        heap.places[ends[group]] = word
                    ends[group + (1 - turn)] += 1
        if turn == 0:
            ends = np.cumsum(ends)
            last[:] = -1
    heap.size[1] = ends[groups - 1] if groups else 0
    for slot in range(len(table.keys)):
        group = table.group[slot]
        if group >= 0:
            _push(heap, table.keys[slot], table.counts[slot], ends[group - 1] if group else 0, ends[group])
            table.group[slot] = -1


@jit
def _before(heap, one, other):  # type: ignore[no-untyped-def]
    """Whether entry `one` is to be merged before entry `other`."""
    if heap.counts[one] != heap.counts[other]:
        return heap.counts[one] > heap.counts[other]
    if heap.keys[one] != heap.keys[other]:
        return heap.keys[one] < heap.keys[other]
    return heap.first[one] < heap.first[other]


@jit
def _swap(heap, one, other):  # type: ignore[no-untyped-def]
    heap.keys[one], heap.keys[other] = heap.keys[other], heap.keys[one]
    heap.counts[one], heap.counts[other] = heap.counts[other], heap.counts[one]
    heap.first[one], heap.first[other] = heap.first[other], heap.first[one]
    heap.stop[one], heap.stop[other] = heap.stop[other], heap.stop[one]


@jit
def _push(heap, key, count, first, stop):  # type: ignore[no-untyped-def]
    at = heap.size[0]
    heap.keys[at], heap.counts[at], heap.first[at], heap.stop[at] = key, count, first, stop
    heap.size[0] += 1
    while at > 0 and _before(heap, at, (at - 1) // 2):
        _swap(heap, at, (at - 1) // 2)
        at = (at - 1) // 2


@jit
def _sink(heap):  # type: ignore[no-untyped-def]
    """Move the first entry to where it belongs."""
    at, size = 0, heap.size[0]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _before(heap, child + 1, child):
            child += 1
        if not _before(heap, child, at):
            return
        _swap(heap, at, child)
        at = child


@jit
def next_pair(table, heap):  # type: ignore[no-untyped-def]
    """Take the next entry from the heap; return its pair, its count, and its places [first, stop). Without one the
    count is 0.

    Merges change the counts of other pairs: an entry whose count is out of date goes back with the right one.
    """
    while heap.size[0] > 0:
        key, count, first, stop = heap.keys[0], heap.counts[0], heap.first[0], heap.stop[0]
        now = table.counts[_slot(table, key)]
        if now != count:
            heap.counts[0] = now
        else:
            heap.size[0] -= 1
            _swap(heap, 0, heap.size[0])
        _sink(heap)
        if now == count:
            return key, count, first, stop
    return NONE, 0, 0, 0


@jit
def _changed(table, slots, words, counts, found, left, right, word, change):  # type: ignore[no-untyped-def]
    """Change the count of a pair; note the word if the pair is new in it. Returns the number of notes."""
    slot = _slot(table, _pair(left, right))
    table.counts[slot] += change * counts
    if change > 0:
        slots[found] = slot
        words[found] = word
        found += 1
    return found


@jit
def merge(words, table, heap, left, right, token, first, stop):  # type: ignore[no-untyped-def]
    """Merge the pair into `token` in the words of `places[first:stop]`, and put the pairs that arise into the heap.

    The count of the merged pair itself stays, as in `tokenizers`: should it arise again (from a token that two merges
    spell alike), it counts for more than it is.
    """
    most = 0
    for at in range(first, stop):
        most += words.lengths[heap.places[at]]
    slots, noted = np.empty(most, np.uint64), np.empty(most, np.int32)
    found = 0
    for at in range(first, stop):
        word = heap.places[at]
        count, symbols = words.counts[word], words.symbols
        begin, end = words.starts[word], words.starts[word] + words.lengths[word]
        read = write = begin
        while read < end:
            if read + 1 < end and symbols[read] == left and symbols[read + 1] == right:
                if write > begin:
                    before = symbols[write - 1]
                    found = _changed(table, slots, noted, count, found, before, left, word, -1)
                    found = _changed(table, slots, noted, count, found, before, token, word, 1)
                if read + 2 < end:
                    behind = symbols[read + 2]
                    found = _changed(table, slots, noted, count, found, right, behind, word, -1)
                    found = _changed(table, slots, noted, count, found, token, behind, word, 1)
                symbols[write] = token
                read += 2
            else:
                symbols[write] = symbols[read]
                read += 1
            write += 1
        words.lengths[word] = write - begin
    _push_groups(table, heap, slots[:found], noted[:found])


@jit
def _push_groups(table, heap, slots, noted):  # type: ignore[no-untyped-def]
    """Put an entry for each pair of `slots` into the heap, with its words in `noted`, each once."""
    groups = 0
    which, last, ends = (
        np.empty(len(slots), np.int64),
        np.empty(len(slots), np.int64),
        np.zeros(len(slots) + 1, np.int64),
    )
    for note in range(len(slots)):
        slot = slots[note]
        if table.group[slot] < 0:
            table.group[slot] = groups
            which[groups], last[groups] = slot, -1
            groups += 1
        group = table.group[slot]
        if last[group] != noted[note]:
            last[group] = noted[note]
            ends[group + 1] += 1
    ends[0] = heap.size[1]
    ends = np.cumsum(ends[: groups + 1])
    last[:] = -1
    for note in range(len(slots)):
        group = table.group[slots[note]]
        if last[group] != noted[note]:
            last[group] = noted[note]
            heap.places[ends[group]] = noted[note]
            ends[group] += 1
    for group in range(groups):
        slot = which[group]
        table.group[slot] = -1
        if table.counts[slot] > 0:
            begin = ends[group - 1] if group else heap.size[1]
            _push(heap, table.keys[slot], table.counts[slot], begin, ends[group])
    heap.size[1] = ends[groups - 1] if groups else heap.size[1]
