"""What our own engines share: memory, a cache of code points, and the documents that are left to the reference.

What a tokenizer makes of code points is kept in pages of 256, each computed when a text first needs it. An entry has 64
bits: the kind of a code point in the lowest 3 (`text_kernels`); of one that is part of a word, the number of bytes that
become of it in bits 3-7, and their place in `pool` from bit 13 on. Bits 8-12 are the engine's own.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from tokenizers import normalizers

from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.base import utf8_of
from pipelines.prepare.tokenize.engines.qualified import FastEngine
from pipelines.prepare.tokenize.engines.text_kernels import ORDINARY, find_pages
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen

__all__ = ["PAGE", "Contents", "KernelEngine", "Pages", "changed_between_marks", "letters_of_page", "one_by_one"]
__all__ += ["NUM_PAGES"]

PAGE = 256
NUM_PAGES = 0x110000 // PAGE
_COMMON_PAGES = [0x00, 0x01, 0x20]  # Latin, and the punctuation of printed text
_SURROGATES = range(0xD800, 0xE000)  # which are not asked for: UTF-8 cannot hold them
_SLACK = bytes(32)  # the kernels copy so many at most, of which an entry has 31

# Returns the entries of the page with a number, and appends the bytes that they refer to to the pool.
ReadPage: TypeAlias = Callable[[int, bytearray], list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pages:
    """The pages computed so far. Immutable: `extended` returns a new object, so threads can read without a lock."""

    page_of: np.ndarray  # int32 [NUM_PAGES], -1 if missing
    entries: np.ndarray  # uint64
    pool: np.ndarray  # uint8

    @classmethod
    def none(cls) -> Pages:
        """Return an object without pages."""
        return cls(
            page_of=frozen(np.full(NUM_PAGES, -1, np.int32)),
            entries=frozen(np.zeros(0, np.uint64)),
            pool=frozen(np.frombuffer(_SLACK, np.uint8)),
        )

    def kind(self, point: int) -> int:
        """Return the kind of a code point whose page is present."""
        return self._entry(point) & 7

    def spelling(self, point: int) -> bytes | None:
        """Return the UTF-8 that an ORDINARY code point becomes, if its page is present; None for other kinds."""
        entry = self._entry(point)
        start = entry >> 13
        return self.pool[start : start + (entry >> 3 & 31)].tobytes() if entry & 7 == ORDINARY else None

    def _entry(self, point: int) -> int:
        return int(self.entries[int(self.page_of[point // PAGE]) * PAGE + point % PAGE])

    def extended(self, numbers: list[int], *, read: ReadPage) -> Pages:
        """Return these pages together with the missing ones of the given numbers."""
        missing = [number for number in numbers if self.page_of[number] < 0]
        page_of = self.page_of.copy()
        page_of[missing] = len(self.entries) // PAGE + np.arange(len(missing))
        pool = bytearray(self.pool[: -len(_SLACK)].tobytes())
        entries = [entry for number in missing for entry in read(number, pool)]
        return Pages(
            page_of=frozen(page_of),
            entries=frozen(np.concatenate([self.entries, np.array(entries, np.uint64)])),
            pool=frozen(np.frombuffer(bytes(pool) + _SLACK, np.uint8)),
        )


def letters_of_page(number: int) -> list[str]:
    """Return the code points of a page: 256, or none if they are surrogates."""
    if number * PAGE in _SURROGATES:
        return []
    return list(np.arange(number * PAGE, (number + 1) * PAGE, dtype="<u4").tobytes().decode("utf-32-le"))


def changed_between_marks(letters: list[str]) -> list[str]:
    """Return the code points that NFD decomposes, or moves past a mark of the highest or the lowest combining class."""
    between = [f"\u0345{letter}\u0334" for letter in letters]
    after = one_by_one(normalizers.NFD().normalize_str, between)
    return [letter for letter, old, new in zip(letters, between, after, strict=True) if old != new]


def one_by_one(normalize: Callable[[str], str], texts: list[str], *, between: str = "0\u0436") -> list[str]:
    """Normalize each text in a single call of `normalize`, by placing them between code points that it never changes.

    Args:
        between: code points to try as separators, across which texts do not affect each other.
    """
    for mark in between if texts else "":
        if not any(mark in text for text in texts):
            parts = normalize(mark + mark.join(texts) + mark).split(mark)[1:-1]
            if len(parts) == len(texts):
                return parts
    return [normalize(text) for text in texts]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """Texts to search for, as kernels expect them: which bytes one begins with (bool [256]), and a trie."""

    first: np.ndarray
    trie: vocabulary_trie.Trie

    @classmethod
    def of(cls, contents: Iterable[str]) -> Contents:
        """Return these texts, none of which is empty."""
        contents = sorted(set(contents))
        first = np.zeros(256, bool)
        first[[content.encode()[0] for content in contents]] = True
        return cls(first=frozen(first), trie=vocabulary_trie.build(dict.fromkeys(contents, 0)))


class KernelEngine(FastEngine):
    """Base class of engines with our own kernels. Threads may share one: shared data is read-only."""

    memory_words: int

    def _begin(self, read: ReadPage) -> None:
        """Get ready to encode. `read` computes the pages of code points that a text needs."""
        self._read = read
        self._memories: list[np.ndarray] = []  # those not in use; list.pop and list.append are atomic
        self._pages = Pages.none()
        self._pages_lock = threading.Lock()
        self._take_pages(_COMMON_PAGES)

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text."""
        data, edges = utf8_of(texts)
        asked = np.zeros(len(texts), np.uint8)
        try:
            memory = self._memories.pop()
        except IndexError:
            memory = np.zeros(self.memory_words, np.uint64)
        runs = self._encode_bytes(frozen(data), edges, asked, memory)
        self._memories.append(memory)
        return self._reference.put_into(runs, texts, np.flatnonzero(asked)) if asked.any() else runs

    @abc.abstractmethod
    def _encode_bytes(self, data: np.ndarray, edges: np.ndarray, asked: np.ndarray, memory: np.ndarray) -> RaggedTokens:
        """Encode the texts, and set `asked` for those that the reference must encode, which get no tokens here."""

    @abc.abstractmethod
    def _tables_of(self, pages: Pages) -> Any:
        """Return the kernel's tables with these code points."""

    def _ask_for_pages(self, data: np.ndarray, edges: np.ndarray) -> None:
        wanted = np.zeros(NUM_PAGES, np.uint8)
        find_pages(data, edges, wanted)
        with self._pages_lock:
            self._take_pages(np.flatnonzero(wanted).tolist())

    def _take_pages(self, numbers: list[int]) -> None:
        self._pages = self._pages.extended(numbers, read=self._read)
        self._tables = self._tables_of(self._pages)
