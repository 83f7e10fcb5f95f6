"""Find the best path through one word: the pieces into which Unigram cuts it.

As in the `tokenizers` library, this is a Viterbi search. At each character, it tries all entries that begin there,
shortest first, then the unknown token if no entry is that character. Of equal scores, it keeps the first. Adjacent
unknown pieces become the entry with their text, else their bytes' tokens, or the unknown token if a byte has no token.
"""

from typing import NamedTuple

import numpy as np

from pipelines.prepare.tokenize.engines.kernel_engine import child, jit

MARK_BYTES = 3


class Scratch(NamedTuple):
    """Working memory for one word: its bytes, after a mark, and the best path to each position."""

    word: np.ndarray  # uint8
    best: np.ndarray  # float64: score of the path
    begin: np.ndarray  # int32: start of the path's last piece
    piece: np.ndarray  # int32: id of that piece


@jit
def best_path(first, end, out, to, scratch, tables):
    """Write the ids of the best path through the word's bytes [first, end) to out[to:]. Return the index after them."""
    word, best, begin, piece = scratch.word, scratch.best, scratch.begin, scratch.piece
    for place in range(first, end + 1):
        begin[place] = -1
    best[first] = 0.0
    place = first
    while place < end:
        lead, here = word[place], best[place]
        after = place + (1 if lead < 0x80 else (2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)))
        node, at, is_known = tables.vocabulary.start, place, False
        while at < end:
            entry, node = child(tables.vocabulary.units, node, word[at])
            if entry < 0:
                break
            at += 1
            if entry:
                score = tables.scores[entry - 1] + here
                if begin[at] < 0 or score > best[at]:
                    best[at], begin[at], piece[at] = score, place, entry - 1
                is_known = is_known or at == after
        if not is_known:
            score = tables.unknown_score + here
            if begin[after] < 0 or score > best[after]:
                best[after], begin[after], piece[after] = score, place, tables.unknown
        place = after
    return _follow_back(first, end, out, to, scratch, tables)


@jit
def _follow_back(first, end, out, to, scratch, tables):
    begin, piece = scratch.begin, scratch.piece
    stop, place = to, end
    while place > first:
        if piece[place] != tables.unknown:
            out[stop] = piece[place]
            stop, place = stop + 1, np.int64(begin[place])
            continue
        last = place
        while place > first and piece[place] == tables.unknown:
            place = np.int64(begin[place])
        stop = _unknown(place, last, out, stop, scratch, tables)
    low, high = to, stop - 1
    while low < high:
        out[low], out[high] = out[high], out[low]
        low, high = low + 1, high - 1
    return stop


@jit
def _unknown(first, end, out, to, scratch, tables):
    word, node, at, entry = scratch.word, tables.vocabulary.start, first, 0
    while at < end and entry >= 0:
        entry, node = child(tables.vocabulary.units, node, word[at])
        at += 1
    if entry > 0:
        out[to] = entry - 1
        return to + 1
    for place in range(first, end):
        if tables.byte_ids[word[place]] < 0:
            out[to] = tables.unknown
            return to + 1
    for place in range(end - 1, first - 1, -1):
        out[to] = tables.byte_ids[word[place]]
        to += 1
    return to
