"""What a SentencePiece normalizer makes of each code point, and which code points it treats alone.

Two steps look at more than one code point. What they do to neighbours, and when that is nothing:

Precompiled (`tokenizers` 0.23) cuts the text into grapheme clusters. A cluster of less than 6 bytes that begins with an
entry of its table is replaced as a whole, marks and all, by what that entry says; otherwise each code point is looked
up by itself. So neighbours matter only in clusters of 2 to 5 bytes and several code points. By Unicode (UAX #29,
GB3 to GB13) these are: carriage return and line feed; code points of the class Prepend before another one, which are
left to the reference; and code points that JOIN what is before them (Extend, SpacingMark, ZWJ). Hangul, flags,
conjuncts and emoji around a ZWJ are longer. The loop therefore looks at each code point that JOINS: if the one before
it and itself have 6 bytes, nothing happens; otherwise the table is asked whether any entry begins there (e and U+0301:
yes; an Arabic letter and a vowel sign: mostly no), and if so, the reference does the document. Which code points join
is asked of the reference, by a Precompiled whose table makes a "y" of every cluster.

NFC, NFD, NFKC, NFKD sort marks by their combining class (ccc), and NFC and NFKC compose a code point with what is
before it. Nothing is composed with a code point that stands second in no canonical decomposition (the reference does
documents with others), and nothing is sorted where no two marks with a ccc but 0 are neighbours: a code point whose
decomposition begins with one is REORDERED, one whose decomposition ends with one has the flag ENDS_IN_MARK.

An entry: 64 bits, as `pages` has them, and these flags:

    JOINS           see above
    STRIPPED        where Strip stands in the chain, it is white space, or nothing
    MERGES          where " {2,}" stands in the chain, it is a space, or nothing
    ENDS_IN_MARK    see above

Asked for are pages of 256 code points, when a text first holds one of theirs: 1 ms a page.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tokenizers import normalizers

from pipelines.prepare.tokenize.engines.code_points import (
    NUM_PAGES,
    PAGE,
    changed_between_marks,
    letters_of_page,
    one_by_one,
)
from pipelines.prepare.tokenize.engines.text_kernels import ASK, DROP, ORDINARY, REORDERED, SPACE
from pipelines.prepare.tokenize.engines.unigram.kernels import ENDS_IN_MARK, JOINS, MERGES, STRIPPED
from pipelines.prepare.tokenize.engines.unigram.steps import MARK, Steps, chain

__all__ = ["Reader"]

_JOINS, _STRIPPED, _MERGES, _ENDS_IN_MARK = map(int, (JOINS, STRIPPED, MERGES, ENDS_IN_MARK))
_ASKS = 1 << 12  # no flag of an entry: the reference does the document
_MAX_BYTES = 31


class Reader:
    """Query a normalizer's steps for single code points. `splits_white`: any white space ends a word."""

    def __init__(self, steps: Steps, *, splits_white: bool) -> None:
        self._steps, self._splits_white = steps, splits_white
        self._chains: dict[int, Any] = {}
        self._probe = _probe() if steps.contextual == "Precompiled" else None
        form = steps.contextual if steps.contextual.startswith("NF") else ""
        self._decompose = (normalizers.NFKD() if "K" in form else normalizers.NFD()).normalize_str if form else None
        self._seconds = _seconds() if form in ("NFC", "NFKC") else frozenset()
        joint = self._joint_line_end()
        self.joint_line_end = bool(joint)
        self._asks_for = frozenset() if joint is not None else frozenset("\r")

    def after(self, text: str, *, step: int | None = None) -> str:
        """Apply the steps to a text: all of them, or those before `step`."""
        count = len(self._steps.local) if step is None else step
        if count not in self._chains:
            self._chains[count] = chain(self._steps.local[:count])
        return str(self._chains[count].normalize_str(text)) if count else text

    def _joint_line_end(self) -> bool | None:
        """Return whether "\\r\\n" normalizes to the same text as "\\r" alone.

        None if the result is neither that nor the two code points normalized one by one.
        """
        both, first, second = (self.after(text) for text in ("\r\n", "\r", "\n"))
        white = all(self.is_space(letter) for letter in both + first + second)
        if both == first + second or (self._splits_white and white and both and first and second):
            return False
        return True if both == first and self._steps.context == 0 else None

    def is_space(self, letter: str) -> bool:
        """Return whether this code point ends a word."""
        return _is_white(letter) if self._splits_white else letter == " "

    def page(self, number: int, pool: bytearray) -> list[int]:
        """Return the entries of one page, and append the bytes that they refer to to `pool`."""
        points = letters_of_page(number)
        if not points:
            return [ASK] * PAGE
        before, stripped, merged, become = (
            self._after_each(points, step)
            for step in (self._steps.context, self._steps.strip, self._steps.merge, len(self._steps.local))
        )
        joins, prepends = self._joining(before)
        ends, marks = self._ends_of_decompositions(before)
        entries = []
        for index, point in enumerate(points):
            text, (first, last) = before[index], ends[index]
            flags = self._flags(stripped[index], merged[index]) | (_ENDS_IN_MARK if last in marks else 0)
            if text[:1] in joins:
                flags |= _JOINS if self._steps.context == 0 else _ASKS
            if point in self._asks_for or text[-1:] in prepends or first in self._seconds:
                flags |= _ASKS
            entries.append(self._entry(become[index], begins_with_mark=first in marks, flags=flags, pool=pool))
        return entries

    def _after_each(self, points: list[str], step: int) -> list[str]:
        """Apply the steps before `step` to each code point, in one text separated by NUL, which no step touches."""
        return one_by_one(lambda text: self.after(text, step=step), points, between="\0") if step else points

    def _entry(self, text: str, *, begins_with_mark: bool, flags: int, pool: bytearray) -> int:
        kind = self._kind(text, begins_with_mark=begins_with_mark)
        data = text.encode()
        if kind == ASK or flags & _ASKS or len(data) > _MAX_BYTES or (kind in (DROP, SPACE) and flags & _ENDS_IN_MARK):
            return ASK
        if kind in (DROP, SPACE):
            return kind | flags
        entry = kind | flags | len(data) << 3 | len(pool) << 13
        pool += data
        return entry

    def _kind(self, text: str, *, begins_with_mark: bool) -> int:
        spaces = [self.is_space(letter) for letter in text]
        if MARK in text or (any(spaces) and not all(spaces)) or (begins_with_mark and (not text or any(spaces))):
            return ASK
        if not text:
            return DROP
        if any(spaces):
            return SPACE if self._splits_white or len(text) == 1 else ASK
        return REORDERED if begins_with_mark else ORDINARY

    def _flags(self, stripped: str, merged: str) -> int:
        """Return the flags of a code point's text as the steps Strip and " {2,}" see it."""
        flags = 0
        if self._steps.strips_left or self._steps.strips_right:
            white = [_is_white(letter) for letter in stripped]
            flags |= _STRIPPED if all(white) else _ASKS if any(white) else 0
        if self._steps.merges:
            flags |= _MERGES if merged in ("", " ") else _ASKS if " " in merged else 0
        return flags

    def _ends_of_decompositions(self, before: list[str]) -> tuple[list[tuple[str, str]], set[str]]:
        """Return the first and last code point of each decomposed text, and which have a combining class other than 0.

        Empty without a step that sorts marks.
        """
        if self._decompose is None:
            return [("", "")] * len(before), set()
        ends = [(text[:1], text[-1:]) for text in one_by_one(self._decompose, before, between="\0")]
        letters = sorted({letter for pair in ends for letter in pair if letter})
        return ends, set(changed_between_marks(letters))  # none is decomposed any further

    def _joining(self, before: list[str]) -> tuple[set[str], set[str]]:
        """Return the first code points that combine with text before them, and the last ones with text after."""
        if self._probe is None:
            return set(), set()
        first = sorted({text[0] for text in before if text} - {"\0"})
        last = sorted({text[-1] for text in before if text} - {"\0"})
        clusters = one_by_one(self._probe.normalize_str, [f"x{letter}" for letter in first], between="\0")
        joins = {letter for letter, cluster in zip(first, clusters, strict=True) if cluster == "y"}
        clusters = one_by_one(self._probe.normalize_str, [f"{letter}x" for letter in last], between="\0")
        return joins, {letter for letter, cluster in zip(last, clusters, strict=True) if cluster == "y"}


@functools.lru_cache(maxsize=1 << 14)
def _is_white(letter: str) -> bool:
    return normalizers.Strip().normalize_str(letter) == ""


@functools.cache
def _seconds() -> frozenset[str]:
    """Return the code points that occur in a canonical decomposition after its first place."""
    nfd = normalizers.NFD().normalize_str
    seconds: set[str] = set()
    for number in range(NUM_PAGES):
        # Most pages have nothing that is decomposed: asked as a whole, they take a quarter of the time.
        page = "\0".join(letters_of_page(number))
        if (decomposed := nfd(page)) != page:
            seconds.update(letter for text in decomposed.split("\0") for letter in text[1:])
    return frozenset(seconds)


@functools.cache
def _probe() -> Any:
    """Return a Precompiled normalizer that turns each grapheme cluster of less than 6 bytes, except NUL, into one "y".

    Its trie has an entry for each byte. The unit of a child is at its parent's place XOR offset XOR byte; it holds the
    byte, a bit that says that an entry ends there, and the offset, from bit 10 on, to the unit of the entry's value.
    """
    units = np.zeros(1024, np.uint32)
    units[0] = 256 << 10
    for byte in range(1, 256):
        units[256 ^ byte] = (256 ^ byte ^ 512) << 10 | 1 << 8 | byte
    units[512] = 1 << 31
    data = units.astype("<u4").tobytes()
    return normalizers.Precompiled(len(data).to_bytes(4, "little") + data + b"y\x00")
