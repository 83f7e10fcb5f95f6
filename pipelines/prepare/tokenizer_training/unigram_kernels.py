"""Compiled loops of the Unigram trainer (see `unigram`).

    text      ▁ t h e ▁ t h e n             int32 [N], characters of all words one behind the other
    matches   ▁ ▁t ▁the | t th the | ...    the pieces that begin at each position, shorter ones first:
                                            pieces[offsets[i]:offsets[i + 1]]

Pieces are numbers; a piece lies at a place of the text, so that its own letters and what begins within it are known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfrecord_io.codec.kernels import jit

__all__ = [
    "Matches",
    "Words",
    "best_paths",
    "common_lengths",
    "expect",
    "fill",
    "keep",
    "repeats",
    "second_paths",
]

_FAR = 50.0  # beyond this difference of logarithms the smaller number does not count


class Words(NamedTuple):
    """W words. `starts` int64 [W + 1], of the text; `counts` float64 [W]."""

    starts: np.ndarray
    counts: np.ndarray


class Matches(NamedTuple):
    """`offsets` int64 [N + 1]; `pieces` int32 [M]. Of each piece: `sizes` int32 [P], `scores` float64 [P]."""

    offsets: np.ndarray
    pieces: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray


@jit
def common_lengths(text, ends, order, most, out):  # type: ignore[no-untyped-def]
    """Set out[i] to the number of characters, at most `most`, that suffix order[i] shares with the one before it.

    The end of a word is a character too, the same for all words. `ends` int64 [N]: the end of each position's word.
    """
    for at in range(1, len(order)):
        one, other = order[at - 1], order[at]
        longest = min(ends[one] - one, ends[other] - other)
        k = 0
        while k < longest and k < most and text[one + k] == text[other + k]:
            k += 1
        out[at] = k + 1 if k < most and one + k == ends[one] and other + k == ends[other] else k


@jit
def repeats(shared, left, right, depth):  # type: ignore[no-untyped-def]
    """Find all strings that go on in different ways: runs [left, right) of suffixes in their order, and their lengths.

    `shared` as from `common_lengths`. Returns the number of runs. (Abouelhoda, Kurtz, Ohlebusch: lcp-intervals, 2004.)
    """
    lefts, depths = np.empty(len(shared) + 1, np.int64), np.empty(len(shared) + 1, np.int32)
    lefts[0], depths[0] = 0, 0
    top, found = 0, 0
    for at in range(1, len(shared) + 1):
        common = shared[at] if at < len(shared) else 0
        begin = at - 1
        while depths[top] > common:
            left[found], right[found], depth[found] = lefts[top], at, depths[top]
            found += 1
            begin = lefts[top]
            top -= 1
        if depths[top] < common:
            top += 1
            lefts[top], depths[top] = begin, common
    return found


@jit
def fill(matches, order, characters, left, right):  # type: ignore[no-untyped-def]
    """Fill `matches.pieces`, whose offsets are known: the character at each position, then the pieces from number
    `len(matches.sizes) - len(left)` on, which are runs of suffixes in `order`, by length.
    """
    at = matches.offsets[:-1].copy()
    for position in range(len(characters)):
        matches.pieces[at[position]] = characters[position]
        at[position] += 1
    first = len(matches.sizes) - len(left)
    by_size = np.argsort(matches.sizes[first:], kind="mergesort")
    for run in by_size:
        for suffix in range(left[run], right[run]):
            position = order[suffix]
            matches.pieces[at[position]] = first + run
            at[position] += 1


@jit
def keep(matches, numbers):  # type: ignore[no-untyped-def]
    """Renumber the matches in place; a piece whose new number is negative is left out."""
    written, begin = 0, matches.offsets[0]
    for position in range(len(matches.offsets) - 1):
        end = matches.offsets[position + 1]
        for at in range(begin, end):
            number = numbers[matches.pieces[at]]
            if number >= 0:
                matches.pieces[written] = number
                written += 1
        begin = end
        matches.offsets[position + 1] = written


@jit
def _added(one, other):  # type: ignore[no-untyped-def]
    """Return log(exp(one) + exp(other))."""
    low, high = min(one, other), max(one, other)
    return high if high > low + _FAR else high + np.log(np.exp(low - high) + 1.0)


@jit
def _has_character(matches, position):  # type: ignore[no-untyped-def]
    first = matches.offsets[position]
    return first < matches.offsets[position + 1] and matches.sizes[matches.pieces[first]] == 1


@jit
def expect(words, matches, unknown, first, stop, expected):  # type: ignore[no-untyped-def]
    """Add to `expected` float64 [P] how often each piece is expected in the words [first, stop), by all ways to cut
    them. `unknown`: the score of a character that is no piece; piece 0 counts those.
    """
    longest = 0
    for word in range(first, stop):
        longest = max(longest, words.starts[word + 1] - words.starts[word])
    alpha, beta = np.empty(longest + 1), np.empty(longest + 1)
    for word in range(first, stop):
        start, size = words.starts[word], words.starts[word + 1] - words.starts[word]
        alpha[: size + 1] = -np.inf
        beta[: size + 1] = -np.inf
        alpha[0] = beta[size] = 0.0
        for at in range(size):
            position = start + at
            if not _has_character(matches, position):
                alpha[at + 1] = _joined(alpha[at + 1], alpha[at] + unknown)
            for match in range(matches.offsets[position], matches.offsets[position + 1]):
                piece = matches.pieces[match]
                end = at + matches.sizes[piece]
                alpha[end] = _joined(alpha[end], alpha[at] + matches.scores[piece])
        for at in range(size - 1, -1, -1):
            position = start + at
            if not _has_character(matches, position):
                beta[at] = beta[at + 1] + unknown
                expected[0] += words.counts[word] * np.exp(alpha[at] + beta[at] - alpha[size])
            for match in range(matches.offsets[position], matches.offsets[position + 1]):
                piece = matches.pieces[match]
                end = at + matches.sizes[piece]
                path = matches.scores[piece] + beta[end]
                beta[at] = _joined(beta[at], path)
                expected[piece] += words.counts[word] * np.exp(alpha[at] + path - alpha[size])


@jit
def _joined(one, other):  # type: ignore[no-untyped-def]
    return other if one == -np.inf else _added(one, other)


@jit
def _cut(matches, unknown, start, size, without, best, piece_of):  # type: ignore[no-untyped-def]
    """Find the best way to cut `size` characters from `start` on, without the piece `without`; return its score.

    Afterwards piece_of[k] is the piece that ends at k, or 0 for an unknown character.
    """
    best[: size + 1] = -np.inf
    best[0] = 0.0
    for at in range(size):
        position = start + at
        if not _has_character(matches, position) and best[at] + unknown > best[at + 1]:
            best[at + 1], piece_of[at + 1] = best[at] + unknown, 0
        for match in range(matches.offsets[position], matches.offsets[position + 1]):
            piece = matches.pieces[match]
            end = at + matches.sizes[piece]
            if end > size:
                break
            score = best[at] + matches.scores[piece]
            if piece != without and score > best[end]:
                best[end], piece_of[end] = score, piece
    return best[size]


@jit
def best_paths(words, matches, unknown, frequencies):  # type: ignore[no-untyped-def]
    """Add to `frequencies` float64 [P] how often each piece is in the best cuts of all words."""
    longest = 0
    for word in range(len(words.counts)):
        longest = max(longest, words.starts[word + 1] - words.starts[word])
    best, piece_of = np.empty(longest + 1), np.empty(longest + 1, np.int64)
    for word in range(len(words.counts)):
        start, at = words.starts[word], words.starts[word + 1] - words.starts[word]
        _cut(matches, unknown, start, at, -1, best, piece_of)
        while at > 0:
            piece = piece_of[at]
            frequencies[piece] += words.counts[word]
            at -= matches.sizes[piece] if piece else 1


@jit
def second_paths(matches, places, unknown, kept, alternatives, lengths):  # type: ignore[no-untyped-def]
    """For each piece find out what would stand in its place.

    Sets `kept` bool [P] unless the piece itself can be cut better; then, if it has more than one character, the other
    pieces that it would be cut into: alternatives[p, :lengths[p]]. `places` int64 [P]: where each piece lies.
    """
    widest = alternatives.shape[1]
    best, piece_of = np.empty(widest + 1), np.empty(widest + 1, np.int64)
    for piece in range(1, len(matches.sizes)):
        size = matches.sizes[piece]
        kept[piece] = True
        if size == 1:
            continue
        if _cut(matches, unknown, places[piece], size, piece, best, piece_of) > matches.scores[piece]:
            kept[piece] = False
            continue
        at = np.int64(size)
        while at > 0:
            other = piece_of[at]
            alternatives[piece, lengths[piece]] = other
            lengths[piece] += 1
            at -= matches.sizes[other] if other else 1
