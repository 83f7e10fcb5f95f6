"""Compiled loop of the WordPiece engine: UTF-8 bytes in, ids out.

A SPACE (see `kernel_engine`) has no id. The entry of an ISOLATED code point contains its id. The code points up to the
next SPACE or ISOLATED one are a word. Each is replaced with its entry's bytes (DROP: none), then the word is cut into
the longest pieces in the trie. A word's key in `memory` is its bytes 0-7; then its bytes 8-14 and its size.
"""

from typing import NamedTuple

import numpy as np

from pipelines.prepare.tokenize.engines import kernel_engine as shared
from pipelines.prepare.tokenize.engines.kernel_engine import ASK, DROP, ISOLATED, REFERENCE, REORDERED, SPACE, jit
from pipelines.prepare.tokenize.engines.vocabulary_trie import Trie
from tfrecord_io.codec.kernels import load, lowest_bit, store

MEMORY_BITS = 14
MEMORY_WORDS = 4 << MEMORY_BITS
_MAX_REMEMBERED = 15

_HIGH, _ONES = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
_TO_A, _PAST_Z = np.uint64(0x1F) * _ONES, np.uint64(0x05) * _ONES
_TO_0, _PAST_9 = np.uint64(0x50) * _ONES, np.uint64(0x46) * _ONES
_CASE = np.uint64(0x20) * _ONES


class Tables(NamedTuple):
    """Read-only tables of the WordPiece engine's compiled loop."""

    vocabulary: Trie
    unknown: int  # id
    max_chars: int  # longer words are unknown
    fold: np.uint64  # 0x20 in each byte, or 0 if letters keep their case
    pages: shared.Pages
    breaks: np.ndarray  # bool [256]: ASCII bytes that end a word
    added: shared.Contents  # tokens that begin with ASCII punctuation, which is ISOLATED


@jit
def encode(data, edges, asked, out, ends, memory, word, tables):
    """Write the ids of each document to `out`, and the index after each document's last id to `ends`.

    Args:
        asked: uint8 [N], nonzero for documents to skip; set to 1 for documents that the reference engine must encode.
        out: int32, one element per byte and 4 more.
        memory: uint64 [MEMORY_WORDS], zero at first.
        word: uint8 working memory: 4 bytes per character of a word of `max_chars` characters, and 64 more.
    Returns: 0, or MISSING_PAGE if a page must be computed before calling again.
    """
    at = np.int64(0)  # with a literal, Numba would compile all functions a second time
    for index in range(len(edges) - 1):
        if asked[index] == 0:
            result = _document(data, edges[index], edges[index + 1], out, at, memory, word, tables)
            if result == shared.MISSING_PAGE:
                return shared.MISSING_PAGE
            if result == REFERENCE:
                asked[index] = 1
            else:
                at = result
        ends[index] = at
    return 0


@jit
def _document(data, at, end, out, to, memory, word, tables):
    safe = len(data) - 16
    while at < end:
        size, low, high = 0, np.uint64(0), np.uint64(0)
        if at <= safe:
            low, size = _letters(load(data, at), end - at, tables.fold)
            if size == 8:
                high, more = _letters(load(data, at + 8), end - at - 8, tables.fold)
                size += more
        if 0 < size <= _MAX_REMEMBERED and (at + size == end or tables.breaks[data[at + size]]):
            at += size
            to = _short_word(low, high, size, size, out, to, memory, word, tables)
            if at < end and data[at] == 0x20:
                at += 1
            continue
        if size == 0:
            point, width = shared.code_point(data, at, end)
            entry = shared.entry_of(point, tables.pages)
            kind = np.int64(entry & np.uint64(7))
            if kind in (SPACE, ISOLATED):
                if shared.holds(data, at, end, tables.added):
                    return REFERENCE
                at += width
                if kind == ISOLATED:
                    out[to] = np.int64(entry >> np.uint64(3))
                    to += 1
                continue
        store(word, 0, low)
        store(word, 8, high)
        at, size, chars = _rest_of_word(data, at + size, end, word, size, tables)
        if at < 0:
            return at
        if chars == 0:
            continue
        if chars > tables.max_chars:
            out[to] = tables.unknown
            to += 1
        elif size <= _MAX_REMEMBERED:
            low, high = shared.first_bytes(load(word, 0), load(word, 8), size)
            to = _short_word(low, high, size, chars, out, to, memory, word, tables)
        else:
            to = _pieces(word, size, chars, out, to, tables)
    return to


@jit
def _letters(bytes_8, room, fold):
    """Return the leading ASCII letters and digits of 8 bytes, at most `room`, in lower case, and their number."""
    # Adding a constant sets the highest bit of each byte above a bound. The highest bits are cleared first, so no sum
    # carries into the next byte.
    ascii_bits = bytes_8 & ~_HIGH
    lower = ascii_bits | _CASE
    alpha = (lower + _TO_A) & ~(lower + _PAST_Z)
    digit = (ascii_bits + _TO_0) & ~(ascii_bits + _PAST_9)
    folded = bytes_8 | ((alpha & _HIGH) >> np.uint64(2) & fold)
    stops = (~(alpha | digit) | bytes_8) & _HIGH
    if room < 8:
        stops |= np.uint64(0x80) << np.uint64(8 * max(room, 0))
    if stops == 0:
        return folded, 8
    kept = ((stops & (~stops + np.uint64(1))) >> np.uint64(7)) - np.uint64(1)
    return folded & kept, lowest_bit(stops) >> 3


@jit
def _rest_of_word(data, at, end, word, size, tables):
    """Append the rest of a word to its first `size` bytes in `word`, which are ASCII.

    Returns: the word's end in `data`, or MISSING_PAGE or REFERENCE; its number of bytes; its number of characters.
        The characters of a word that is too long are counted, but not appended.
    """
    chars = size
    after_mark = False
    while at < end:
        point, width = shared.code_point(data, at, end)
        entry = shared.entry_of(point, tables.pages)
        kind = np.int64(entry & np.uint64(7))
        if kind in (SPACE, ISOLATED):
            break
        if kind == ASK or (kind == REORDERED and after_mark):
            return REFERENCE, 0, 0
        if kind > ASK:
            return shared.MISSING_PAGE, 0, 0
        at += width
        if kind != DROP:
            after_mark = kind == REORDERED
            chars += np.int64(entry >> np.uint64(8)) & 31
            if chars <= tables.max_chars:
                source = np.int64(entry >> np.uint64(13))
                store(word, size, load(tables.pages.pool, source))
                store(word, size + 8, load(tables.pages.pool, source + 8))
                size += np.int64(entry >> np.uint64(3)) & 31
    return at, size, chars


@jit
def _short_word(low, high, size, chars, out, to, memory, word, tables):
    high |= np.uint64(size) << np.uint64(56)
    stop = shared.recall(memory, MEMORY_BITS, low, high, out, to)
    if stop < 0:
        store(word, 0, low)
        store(word, 8, high)
        stop = _pieces(word, size, chars, out, to, tables)
        shared.remember(memory, MEMORY_BITS, low, high, out, to, stop)
    return stop


@jit
def _pieces(word, size, chars, out, to, tables):
    # Word and vocabulary are valid UTF-8, so no piece ends inside a character.
    stop, place, base = to, 0, tables.vocabulary.start
    while place < size:
        node, longest, after, at = base, 0, place, place
        while at < size:
            piece, node = shared.child(tables.vocabulary.units, node, word[at])
            if piece < 0:
                break
            at += 1
            if piece:
                longest, after = piece, at
        if longest == 0 or chars > tables.max_chars:
            out[to] = tables.unknown
            return to + 1
        out[stop] = longest - 1
        stop, place, base = stop + 1, after, tables.vocabulary.inner
    return stop


@jit
def find_added(data, edges, added, asked):
    """Set `asked`, uint8 [N], to 1 for documents that contain one of the texts `added`.

    A regular expression of 5,000 words takes pyarrow 11 s for 1 MB of text.
    """
    for index in range(len(edges) - 1):
        for at in range(edges[index], edges[index + 1]):
            if shared.holds(data, at, edges[index + 1], added):
                asked[index] = 1
                break
