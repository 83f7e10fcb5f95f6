"""Normalize single code points as SentencePiece's normalizers do, and find the cases where neighbours matter.

Most steps look at one code point at a time. The compiled loop (`kernels`) handles Strip and the Replace of " {2,}". The
reference encodes documents with a text that a Replace of several characters looks for. At most one other step may look
at neighbours: Precompiled, or one of Unicode's four normalization forms. NFKD or NFD before StripAccents, which removes
marks, does not count: neighbours change only the order of marks.

Precompiled (`tokenizers` 0.23) looks up grapheme clusters of fewer than 6 bytes. If a cluster begins with an entry of
the step's table, the entry's value replaces the whole cluster. Other text is looked up one code point at a time.
According to Unicode (UAX #29, GB3 to GB13), three kinds of clusters have 2 to 5 bytes and several code points:

    carriage return and line feed
    a code point of the class Prepend with the next one: the reference encodes the document
    a code point that JOINS the one before it (Extend, SpacingMark, ZWJ): the reference encodes the document if the
    table has an entry that begins there, as for e and U+0301

NFC, NFD, NFKC and NFKD sort neighbouring marks by their combining class (ccc), if it is not 0. So a code point is
REORDERED if its decomposition begins with such a mark, and has the flag ENDS_IN_MARK if its decomposition ends with
one. NFC and NFKC also compose a code point with the one before it, if it is second in a canonical decomposition: the
reference encodes such documents.

Entries are as in `kernel_engine`, with the flags JOINS and ENDS_IN_MARK (see above), STRIPPED (white space before
Strip) and MERGES (a space before the Replace of " {2,}"). Code points that an earlier step removes also have the last
two flags.
"""

import base64
import functools
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from tokenizers import Tokenizer, normalizers

from pipelines.prepare.tokenize.engines import kernel_engine as shared
from pipelines.prepare.tokenize.engines.base import NotQualified
from pipelines.prepare.tokenize.engines.kernel_engine import ASK, DROP, ORDINARY, REORDERED, SPACE
from pipelines.prepare.tokenize.engines.unigram.kernels import ENDS_IN_MARK, JOINS, MERGES, STRIPPED

MARK = "▁"
Step: TypeAlias = Mapping[str, Any]

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_SPACES = {"Regex": " {2,}"}
_INTO_MARK = {"type": "Replace", "pattern": _SPACES, "content": MARK}
_BARE = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}
_JOINS, _STRIPPED, _MERGES, _ENDS_IN_MARK = map(int, (JOINS, STRIPPED, MERGES, ENDS_IN_MARK))
_ASKS = 1 << 12  # the reference encodes the document; this flag is not stored
_MAX_BYTES = 31


class Reader:
    """Converts a normalizer to the compiled loop's table of code points and its settings.

    `splits_white`: whether any white space ends a word. `literals`: texts; documents that contain one go to the
    reference engine. `charsmap` uint32: the trie of the `Precompiled` step; empty if there is no such step. Raises:
    NotQualified.
    """

    def __init__(self, normalizer: Step | None, *, splits_white: bool) -> None:
        self._splits_white = splits_white
        self.literals: list[str] = []
        self.strips_left = self.strips_right = self.merges = False
        self._local: list[Step] = []  # all steps but Strip and some Replace; the next numbers are indices into it
        self._strip = self._merge = 0  # Strip, or the merging of spaces, comes before this step
        self._context = -1  # index of the step that looks at neighbours
        chain = _flat(normalizer)
        types = [*(step["type"] for step in chain), ""]
        for index, step in enumerate(chain):
            is_after_marks = index > 0 and chain[index - 1] == _INTO_MARK  # later steps would see marks, not spaces
            if is_after_marks or not self._takes(step, next_type=types[index + 1]):
                raise NotQualified("its normalizer has a step, or an order of steps, that is not supported")
        contextual = self._local[self._context] if self._context >= 0 else {"type": ""}
        self._context = self._context if self._context >= 0 else len(self._local)
        is_precompiled, form = contextual["type"] == "Precompiled", contextual["type"]
        self.charsmap = _units(contextual) if is_precompiled else np.zeros(0, np.uint32)
        self._probe = _probe() if is_precompiled else None
        decompose = normalizers.NFKD() if "K" in form else normalizers.NFD()
        self._decompose = decompose.normalize_str if form in _FORMS else None
        self._seconds = _seconds() if form in ("NFC", "NFKC") else frozenset()
        self._chains: dict[int, Any] = {}
        self._asks_for = frozenset() if self._splits_line_end() else frozenset("\r")

    def _takes(self, step: Step, *, next_type: str) -> bool:
        kind, here = step["type"], len(self._local)
        strips = self.strips_left or self.strips_right
        if kind == "Strip":
            self._strip, self.strips_left, self.strips_right = here, step["strip_left"], step["strip_right"]
            return not strips
        if kind == "Replace" and step["pattern"] == _SPACES:
            is_first, self.merges, self._merge = not self.merges, True, here
            return is_first and step["content"] in ((" ",) if self._splits_white else (" ", MARK))
        if kind == "Replace" and len(text := step["pattern"].get("String", "")) != 1:
            self.literals.append(text)
            return bool(text) and not (self._local or self.merges or strips)
        self._local.append(step)
        if kind in (*_FORMS, "Precompiled") and not (kind in ("NFD", "NFKD") and next_type == "StripAccents"):
            is_only, self._context = self._context < 0, here
            return is_only
        return kind in (*_FORMS, "Lowercase", "Nmt", "Replace", "StripAccents")

    def after(self, text: str, *, step: int | None = None) -> str:
        """Apply all steps in `_local`, or only the first `step` of them."""
        count = len(self._local) if step is None else step
        if count and count not in self._chains:
            normalizer = {"type": "Sequence", "normalizers": self._local[:count]}
            self._chains[count] = Tokenizer.from_str(json.dumps({**_BARE, "normalizer": normalizer})).normalizer
        return str(self._chains[count].normalize_str(text)) if count else text

    def _splits_line_end(self) -> bool:
        r"""Return whether "\r\n" can be normalized code point by code point."""
        both, first, second = (self.after(text) for text in ("\r\n", "\r", "\n"))
        if both == first + second:
            return True
        runs = self._splits_white or self._merge > self._context
        return runs and all(text and all(map(self.is_space, text)) for text in (both, first, second))

    def is_space(self, letter: str) -> bool:
        """Return whether a code point ends a word."""
        return _is_white(letter) if self._splits_white else letter == " "

    def page(self, points: list[str], pool: bytearray) -> list[int]:
        """Return the cache entries of a page's code points. Appends their replacement bytes to `pool`."""
        # Separated by NUL, which no step changes.
        before, stripped, merged, become = (
            shared.one_by_one(functools.partial(self.after, step=step), points, between="\0") if step else points
            for step in (self._context, self._strip, self._merge, len(self._local))
        )
        joins, prepends = self._joining(before, "x{}"), self._joining(before, "{}x")
        # `ends`: first and last code point of each decomposition. `marks`: those with a combining class other than 0.
        ends, marks = [("", "")] * len(before), set[str]()
        if self._decompose is not None:
            ends = [(text[:1], text[-1:]) for text in shared.one_by_one(self._decompose, before, between="\0")]
            letters = sorted({letter for pair in ends for letter in pair if letter})
            marks = set(shared.changed_between_marks(letters))
        entries = []
        for index, point in enumerate(points):
            text, (first, last) = before[index], ends[index]
            flags = self._flags(stripped[index], merged[index]) | (_ENDS_IN_MARK if last in marks else 0)
            if text[:1] in joins:
                flags |= _JOINS if self._context == 0 else _ASKS
            if point in self._asks_for or text[-1:] in prepends or first in self._seconds:
                flags |= _ASKS
            entries.append(self._entry(become[index], begins_with_mark=first in marks, flags=flags, pool=pool))
        return entries

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
        flags = 0
        if self.strips_left or self.strips_right:
            white = [_is_white(letter) for letter in stripped]
            flags |= _STRIPPED if all(white) else _ASKS if any(white) else 0
        if self.merges:
            flags |= _MERGES if merged in ("", " ") else _ASKS if " " in merged else 0
        return flags

    def _joining(self, texts: list[str], surroundings: str) -> set[str]:
        # Returns the first (for "x{}") or last (for "{}x") code points of texts that form a cluster with the "x".
        if self._probe is None:
            return set()
        end = -1 if surroundings.endswith("x") else 0
        letters = sorted({text[end] for text in texts if text} - {"\0"})
        clusters = shared.one_by_one(
            self._probe.normalize_str, [surroundings.format(letter) for letter in letters], between="\0"
        )
        return {letter for letter, cluster in zip(letters, clusters, strict=True) if cluster == "y"}


def _flat(step: Step | None) -> list[Step]:
    if step is None:
        return []
    return [one for part in step["normalizers"] for one in _flat(part)] if step["type"] == "Sequence" else [step]


def _units(precompiled: Step) -> np.ndarray:
    data = base64.b64decode(precompiled["precompiled_charsmap"])
    return np.frombuffer(data, "<u4", int.from_bytes(data[:4], "little") // 4, offset=4).astype(np.uint32)


@functools.lru_cache(maxsize=1 << 14)
def _is_white(letter: str) -> bool:
    return normalizers.Strip().normalize_str(letter) == ""


@functools.cache
def _seconds() -> frozenset[str]:
    nfd = normalizers.NFD().normalize_str
    seconds: set[str] = set()
    for number in range(shared.NUM_PAGES):
        page = "\0".join(shared.letters_of_page(number))
        if (decomposed := nfd(page)) != page:
            seconds.update(letter for text in decomposed.split("\0") for letter in text[1:])
    return frozenset(seconds)


@functools.cache
def _probe() -> Any:
    """Return a Precompiled normalizer that turns each grapheme cluster of fewer than 6 bytes, except NUL, into "y".

    In its trie, a child's unit is at its parent's index XOR offset XOR byte, and contains the byte, a bit for the end
    of an entry, and from bit 10 on the offset to the value.
    """
    units = np.zeros(1024, np.uint32)
    units[0] = 256 << 10
    for byte in range(1, 256):
        units[256 ^ byte] = (256 ^ byte ^ 512) << 10 | 1 << 8 | byte
    units[512] = 1 << 31
    data = units.astype("<u4").tobytes()
    return normalizers.Precompiled(len(data).to_bytes(4, "little") + data + b"y\x00")
