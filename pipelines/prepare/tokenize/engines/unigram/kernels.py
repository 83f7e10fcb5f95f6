"""Compiled loop of the Unigram engine: UTF-8 bytes in, ids out.

Each word is normalized, gets a mark "▁" if Metaspace adds one, and is cut into pieces (`paths`). No piece extends past
a mark, so words are independent of each other.

    with `splits_white`  words are the texts between white space
    otherwise            each space begins a word and becomes its mark, even if no text follows; text before the first
                         space is a word with or without a mark

A word's key in `memory` is two numbers: its raw bytes 0-7; then its bytes 8-14, its size and whether it has a mark. A
word is stored only if no code point joins the one before, and no byte begins one of the `raw` texts.
"""

from typing import NamedTuple

import numpy as np

from pipelines.prepare.tokenize.engines import kernel_engine as shared
from pipelines.prepare.tokenize.engines.kernel_engine import ASK, DROP, REFERENCE, REORDERED, SPACE, jit
from pipelines.prepare.tokenize.engines.unigram.paths import MARK_BYTES, best_path
from pipelines.prepare.tokenize.engines.vocabulary_trie import Trie
from tfrecord_io.codec.kernels import load, lowest_bit, store

NO_ROOM = -3
# 8 MB per thread. With 2^16 rows, encoding takes 1.7 times as long.
MEMORY_BITS = 18
MEMORY_WORDS = 4 << MEMORY_BITS
_MAX_REMEMBERED = 15
_SLACK = 40  # extra room for the mark and one code point

# Flags in the entries of code points, see `points`.
JOINS, STRIPPED, MERGES, ENDS_IN_MARK = (np.uint64(1 << bit) for bit in (8, 9, 10, 11))
_HIGH, _ONES = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
_SPACES = np.uint64(0x20) * _ONES


class Tables(NamedTuple):
    """Read-only tables of the Unigram engine's compiled loop."""

    vocabulary: Trie
    scores: np.ndarray  # float64, by id
    unknown: int  # id
    unknown_score: float
    byte_ids: np.ndarray  # int32 [256]: the id of each byte's entry, -1 if it has none
    pages: shared.Pages
    plain: np.ndarray  # bool [256]: ASCII bytes that words contain unchanged
    plain_space: bool  # a space does nothing but end a word
    raw: shared.Contents  # the reference encodes documents with one of these texts
    normal: shared.Contents  # the reference encodes documents with one of these texts in a normalized word
    charsmap: np.ndarray  # uint32: trie of the Precompiled step, or empty
    splits_white: bool  # split at any white space and drop it; otherwise split at spaces
    marks_first: bool  # mark a word that follows no space
    marks_kept_first: bool  # except if the normalizer removes the text's beginning; then the reference encodes it
    merges: bool
    strips_left: bool
    strips_right: bool


@jit
def encode(data, edges, asked, out, ends, progress, memory, scratch, tables):
    """Write the ids of each document to `out`, and the index after each document's last id to `ends`.

    Args:
        asked: uint8 [N], set to 1 for documents that the reference engine must encode.
        out: int32.
        progress: int64 [2], the next document and the index of its first id in `out`; zero at first.
        memory: uint64 [MEMORY_WORDS], zero at first.
    Returns: 0 after the last document; MISSING_PAGE if a page must be computed, or NO_ROOM if `out` is full: then call
        the function again with the same `progress`.
    """
    for index in range(progress[0], len(edges) - 1):
        result = _document(data, edges[index], edges[index + 1], out, progress[1], memory, scratch, tables)
        if result == REFERENCE:
            asked[index] = 1
        elif result < 0:
            progress[0] = index
            return result
        else:
            progress[1] = result
        ends[index] = progress[1]
    return 0


@jit
def _document(data, begin, end, out, to, memory, scratch, tables):
    whole = end
    at, end = _stripped(data, np.int64(begin), end, tables)
    if at < 0:
        return at
    if tables.marks_kept_first and at < end:
        kind = shared.entry_of(shared.code_point(data, at, end)[0], tables.pages) & np.uint64(7)
        if kind > np.uint64(ASK):
            return shared.MISSING_PAGE
        if kind == np.uint64(DROP) or at > begin:
            return REFERENCE
    marked, alone_counts, merging = tables.marks_first, False, False
    safe = len(data) - 16
    while True:
        if at <= safe and tables.plain_space:
            size = _until_space(load(data, at), load(data, at + 8))
            if 0 < size <= _MAX_REMEMBERED and at + size < end:
                if to + _SLACK > len(out):
                    return NO_ROOM
                low, high = _key(data, at, size, marked)
                after = shared.recall(memory, MEMORY_BITS, low, high, out, to)
                if after >= 0:
                    to = after
                    at += size + 1
                    marked, alone_counts, merging = marked if tables.splits_white else True, True, True
                    continue
        at, start, stop, size, entry = _next_word(data, begin, at, end, whole, merging, scratch, tables)
        if at < 0:
            return at
        if to + size + _SLACK > len(out):
            return NO_ROOM
        if size > 0 or (alone_counts and not tables.splits_white):
            to = _word(data, start, stop, size, marked, out, to, memory, scratch, tables)
        if entry == 0:
            return to
        if not tables.splits_white:
            marked, alone_counts = True, True
        merging = entry & MERGES != 0


@jit
def _next_word(data, begin, at, end, whole, merging, scratch, tables):
    """Normalize one word, and skip the space after it.

    `end`, `whole`: the document's end after and before Strip. `merging`: a space at `at` continues a run of spaces.

    Returns: the position after the space, or MISSING_PAGE or REFERENCE; the word's start in `data`; its end, or -1 if
    the same bytes may normalize differently elsewhere; its normalized size in bytes; and the space's entry, 0 without a
    space.
    """
    word = scratch.word
    nothing = np.uint64(0)
    start, size, is_itself, after_mark, special = at, 0, True, False, False
    room = len(word) - MARK_BYTES - _SLACK
    while at < end:
        if size > room:
            return REFERENCE, 0, 0, 0, nothing
        byte = data[at]
        if tables.plain[byte]:
            word[MARK_BYTES + size] = byte
            size, at, after_mark = size + 1, at + 1, False
            continue
        point, width = shared.code_point(data, at, end)
        entry = shared.entry_of(point, tables.pages)
        kind = np.int64(entry & np.uint64(7))
        if kind > ASK:
            return shared.MISSING_PAGE, 0, 0, 0, nothing
        if kind == ASK or (kind == REORDERED and after_mark):
            return REFERENCE, 0, 0, 0, nothing
        if tables.raw.first[byte]:
            is_itself = False
            if shared.holds(data, at, whole, tables.raw):
                return REFERENCE, 0, 0, 0, nothing
        if entry & JOINS != 0:
            is_itself = False
            if _may_change_together(data, begin, at, width, end, tables):
                return REFERENCE, 0, 0, 0, nothing
        stop = at
        at += width
        if kind == SPACE:
            if merging and size == 0 and tables.merges and entry & MERGES != 0:
                start = at
                continue
            if special and _holds(word, MARK_BYTES, MARK_BYTES + size, tables):
                return REFERENCE, 0, 0, 0, nothing
            return at, start, stop if is_itself else -1, size, entry
        if kind == DROP:
            merging = merging and entry & MERGES != 0
            continue
        after_mark = entry & ENDS_IN_MARK != 0
        size, is_special = _append(word, size, entry, tables)
        special = special or is_special
    if special and _holds(word, MARK_BYTES, MARK_BYTES + size, tables):
        return REFERENCE, 0, 0, 0, nothing
    return at, start, at if is_itself else -1, size, nothing


@jit
def _append(word, size, entry, tables):
    count = np.int64(entry >> np.uint64(3)) & 31
    source = np.int64(entry >> np.uint64(13))
    special = False
    for step in range(0, count, 8):
        store(word, MARK_BYTES + size + step, load(tables.pages.pool, source + step))
    for step in range(count):
        special = special or tables.normal.first[word[MARK_BYTES + size + step]]
    return size + count, special


@jit
def _stripped(data, begin, end, tables):
    while tables.strips_right and end > begin:
        at = end - 1
        while at > begin and data[at] & 0xC0 == 0x80:
            at -= 1
        code = _is_stripped(data, at, end, tables)
        if code <= 0:
            if code < 0:
                return code, end
            break
        end = at
    while tables.strips_left and begin < end:
        code = _is_stripped(data, begin, end, tables)
        if code <= 0:
            return (code if code < 0 else begin), end
        begin += shared.code_point(data, begin, end)[1]
    return begin, end


@jit
def _is_stripped(data, at, end, tables):
    entry = shared.entry_of(shared.code_point(data, at, end)[0], tables.pages)
    kind = entry & np.uint64(7)
    if kind > np.uint64(ASK):
        return shared.MISSING_PAGE
    if kind == np.uint64(ASK):
        return REFERENCE
    if entry & STRIPPED == 0:
        return 0
    if entry & JOINS != 0:
        return REFERENCE
    return REFERENCE if shared.holds(data, at, len(data), tables.raw) else 1


@jit
def _may_change_together(data, begin, at, width, end, tables):
    """Return whether a charsmap entry may begin with the code point before `at` and contain the one at `at`."""
    first = at - 1
    while first > begin and data[first] & 0xC0 == 0x80:
        first -= 1
    if first < begin or at + width - first >= 6:
        return False
    place = np.int64(tables.charsmap[0])
    place = (place >> 10) << ((place & 512) >> 6)
    for index in range(first, min(first + 5, end)):
        byte = np.int64(data[index])
        place ^= byte
        if byte == 0 or place >= len(tables.charsmap):
            return False
        unit = np.int64(tables.charsmap[place])
        if unit & 0x800000FF != byte:
            return False
        if unit & 0x100:
            return True
        place ^= (unit >> 10) << ((unit & 512) >> 6)
    return False


@jit
def _holds(word, at, end, tables):
    for place in range(at, end):  # noqa: SIM110, Numba compiles no generator
        if shared.holds(word, place, end, tables.normal):
            return True
    return False


@jit
def _until_space(low, high):
    # XOR turns spaces into zero bytes. Subtracting 1 then sets the highest bit of a zero byte. It may also set the
    # highest bit of later bytes, but never of earlier ones.
    low, high = low ^ _SPACES, high ^ _SPACES
    spaces = (low - _ONES) & ~low & _HIGH
    if spaces:
        return lowest_bit(spaces) >> 3
    spaces = (high - _ONES) & ~high & _HIGH
    return 8 + (lowest_bit(spaces) >> 3) if spaces else 16


@jit
def _key(data, at, size, marked):
    low, high = shared.first_bytes(load(data, at), load(data, at + 8), size)
    return low, high | np.uint64(size | (16 if marked else 0)) << np.uint64(56)


@jit
def _word(data, start, stop, size, marked, out, to, memory, scratch, tables):
    first = 0 if marked else MARK_BYTES
    if stop < 0 or size == 0 or stop - start > _MAX_REMEMBERED or start > len(data) - 16:
        return best_path(first, MARK_BYTES + size, out, to, scratch, tables)
    low, high = _key(data, start, stop - start, marked)
    after = shared.recall(memory, MEMORY_BITS, low, high, out, to)
    if after < 0:
        after = best_path(first, MARK_BYTES + size, out, to, scratch, tables)
        shared.remember(memory, MEMORY_BITS, low, high, out, to, after)
    return after
