"""SentencePiece's `precompiled_charsmap`, made here: texts, and what Precompiled makes of them.

    size of the trie in bytes (u32) | units of the trie (u32 each) | what becomes of entries, each with a NUL behind it

A node's children lie at base XOR byte, where base is the place of the node's unit XOR the offset in that unit; the
value of an entry, the place of its text, lies at the base itself:

    unit   31 ...... 10 | 9 | 8                | 7 ... 0        value   31 | 30 ... 0
           offset         0   an entry ends      byte                   1    place in the texts

`nmt_nfkc()` is much like the table of that name that T5 and XLM-R have: controls vanish, white space becomes a space,
every code point becomes its NFKC, and letters with marks apart become one, as far as Unicode has one.
"""

from __future__ import annotations

import base64
import functools
import itertools
import unicodedata
from collections.abc import Iterator, Mapping

import numpy as np

__all__ = ["charsmap", "nmt_nfkc"]

_GONE = [*range(0x01, 0x09), 0x0B, *range(0x0E, 0x20), 0x7F, 0x8F, 0x9F]
_SPACES = [0x09, 0x0A, 0x0C, 0x0D, 0x61C, 0x1680, 0x200B, 0x200C, 0x200E, 0x200F, 0x2028, 0x2029]
_SPACES += [0x2581, 0xFEFF, 0xFFFD]


@functools.cache
def nmt_nfkc() -> str:
    """A table like SentencePiece's of that name, in base 64."""
    rules: dict[str, str] = {}
    for point in itertools.chain(range(0x80, 0xAC00), range(0xF900, 0x1FA00)):
        letter = chr(point)
        composed, apart = unicodedata.normalize("NFKC", letter), unicodedata.normalize("NFD", letter)
        if composed != letter:
            rules[letter] = composed
        if len(apart) > 1 and composed == letter:
            rules[apart] = letter
    rules |= {chr(point): "" for point in _GONE} | {chr(point): " " for point in _SPACES}
    return charsmap(rules)


def charsmap(rules: Mapping[str, str]) -> str:
    """The table of these rules, in base 64. Texts are not empty and hold no NUL, nor does what becomes of them."""
    places: dict[str, int] = {}
    texts = bytearray()
    for text in sorted(set(rules.values())):
        places[text] = len(texts)
        texts += text.encode() + b"\0"
    entries = sorted((key.encode(), places[text]) for key, text in rules.items())
    units = _Units()
    waiting = [(0, 0, entries)]  # unit of the node, depth, the entries below it
    while waiting:
        place, depth, below = waiting.pop()
        ending = [value for key, value in below if len(key) == depth]
        children: dict[int, list[tuple[bytes, int]]] = {}
        for key, value in below:
            if len(key) > depth:
                children.setdefault(key[depth], []).append((key, value))
        labels = [*([0] if ending else []), *children]
        base = units.base_for(labels)
        units.data[place] = units.data.get(place, 0) | (place ^ base) << 10
        if ending:
            units.data[place] |= 1 << 8
            units.data[base] = 1 << 31 | ending[0]
        for label, group in children.items():
            units.data[base ^ label] = label
            waiting.append((base ^ label, depth + 1, group))
    array = units.array().astype("<u4").tobytes()
    return base64.b64encode(len(array).to_bytes(4, "little") + array + texts).decode()


class _Units:
    """The units by place, and the bases of nodes: no two nodes have the same."""

    def __init__(self) -> None:
        self.data: dict[int, int] = {0: 0}
        self._bases: set[int] = set()
        self._from = 1

    def base_for(self, labels: list[int]) -> int:
        """A base under which the places of all these labels are free, which it takes."""
        while self._from in self.data:
            self._from += 1
        base = next(
            base for base in self._candidates(labels[0]) if all(base ^ label not in self.data for label in labels)
        )
        self._bases.add(base)
        self.data.update((base ^ label, 0) for label in labels)
        return base

    def _candidates(self, label: int) -> Iterator[int]:
        free = (place for place in itertools.count(self._from) if place not in self.data)
        return (place ^ label for place in free if place ^ label not in self._bases)

    def array(self) -> np.ndarray:
        """All units, those that are free 0, up to the end of a block of 256."""
        units = np.zeros((max(self.data) // 256 + 1) * 256, np.uint32)
        units[list(self.data)] = list(self.data.values())
        return units
