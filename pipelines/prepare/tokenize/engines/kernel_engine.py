"""Base class of our own engines, with their shared compiled functions, cache of code points and table of words.

The cache has a 64-bit entry for each code point, in pages of 64 entries, computed when needed. The lowest 3 bits of an
entry are the code point's kind:

    DROP        removed
    SPACE       ends a word and is not part of one
    ISOLATED    a word by itself
    ORDINARY    part of a word
    REORDERED   as ORDINARY, but after a mark the reference encodes the document, because Unicode may reorder the two
    ASK         the reference engine encodes the document

If the code point is part of a word, bits 3-7 are the number of bytes that replace it, and the bits from 13 on are the
index of these bytes in `pool`. Each engine defines bits 8-12. The table `memory` contains words with at most three ids;
a row is the word's key (two numbers), ids 0 and 1, id 2 and their count.

Do not rename a NamedTuple here: Numba's caches on disk contain the names of types, and become unreadable.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numba
import numpy as np
import pyarrow as pa
from tokenizers import normalizers

from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.base import FastEngine, utf8_of
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen

DROP, SPACE, ISOLATED, ORDINARY, REORDERED, ASK = range(6)
MISSING_PAGE, REFERENCE = -1, -2
PAGE_BITS = 6
PAGE = 1 << PAGE_BITS
NUM_PAGES = 0x110000 // PAGE
# Latin letters and general punctuation
_COMMON_PAGES = [letter // PAGE for letter in (*range(0, 0x200, PAGE), *range(0x2000, 0x2100, PAGE))]
_SURROGATES = range(0xD800, 0xE000)  # not in UTF-8
_SLACK = bytes(32)  # the kernels copy at most 32 bytes
_MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

ReadPage: TypeAlias = Callable[[list[str], bytearray], list[int]]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    """Compile like `codec.kernels.jit`, but without reference counts, because these functions never allocate arrays.

    Counting the references to each array of a tuple would take ten times as long as the rest.
    """
    try:
        return numba.njit(nogil=True, cache=True, _nrt=False)(function)
    except RuntimeError:  # no folder for compiled code, see `codec.kernels.jit`
        return numba.njit(nogil=True, _nrt=False)(function)


@jit
def code_point(data, at, end):  # type: ignore[no-untyped-def]
    """Decode the UTF-8 at data[at:end]. Return the first code point, -1 if it is invalid, and its width in bytes."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    width = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if first < 0xC0 or at + width > end:
        return -1, 1
    if width == 2:
        return (first & 0x1F) << 6 | np.int64(data[at + 1]) & 0x3F, 2
    point = (np.int64(data[at + 1]) & 0x3F) << 6 | np.int64(data[at + 2]) & 0x3F
    if width == 3:
        return (first & 0x0F) << 12 | point, 3
    point = (first & 0x07) << 18 | point << 6 | np.int64(data[at + 3]) & 0x3F
    return (point if point < 0x110000 else -1), 4


@jit
def entry_of(point, pages):  # type: ignore[no-untyped-def]
    """Return a code point's entry in the cache `pages`: ASK for the code point -1, and 6 if its page is missing."""
    if point < 128:
        return pages.entries[point] if point >= 0 else np.uint64(ASK)
    page = np.int64(pages.page_of[point >> PAGE_BITS])
    return pages.entries[page << PAGE_BITS | point & (PAGE - 1)] if page >= 0 else np.uint64(6)


@jit
def find_pages(data, edges, wanted):  # type: ignore[no-untyped-def]
    """Set `wanted`, uint8 [NUM_PAGES], to 1 for the pages of the data's code points."""
    for at in range(edges[0], edges[-1]):
        if data[at] & 0xC0 != 0x80:
            point, _ = code_point(data, at, edges[-1])
            if point >= 0:
                wanted[point >> PAGE_BITS] = 1


@jit
def child(units, base, byte):  # type: ignore[no-untyped-def]
    """Follow a trie's edge for `byte`, from the node `base`. Return the child's id + 1 and the child's base.

    The first is 0 if the child has no id, -1 if there is no child.
    """
    unit = units[base + np.int64(byte)]
    if unit & np.uint64(255) != np.uint64(byte):
        return -1, 0
    return np.int64((unit >> np.uint64(8)) & np.uint64(0xFFFFFFF)), np.int64(unit >> np.uint64(36))


@jit
def holds(data, at, end, contents):  # type: ignore[no-untyped-def]
    """Return whether data[at:end] begins with one of the texts in `contents`."""
    if not contents.first[data[at]]:
        return False
    node = contents.trie.start
    while at < end:
        entry, node = child(contents.trie.units, node, data[at])
        if entry:
            return entry > 0
        at += 1
    return False


@jit
def first_bytes(low, high, size):  # type: ignore[no-untyped-def]
    """Replace all but the first `size` (1 to 15) of the 16 bytes in `low` and `high` with zeros."""
    ones = ~np.uint64(0)
    if size > 8:
        return low, high & (ones >> np.uint64(128 - 8 * size))
    return low & (ones >> np.uint64(64 - 8 * size)), np.uint64(0)


@jit
def _memory_row(low, high, bits):  # type: ignore[no-untyped-def]
    return np.int64((low * _MIX_1 ^ high * _MIX_2) >> np.uint64(64 - bits)) << 2


@jit
def recall(memory, bits, low, high, out, to):  # type: ignore[no-untyped-def]
    """Copy the ids of the word with the key (low, high) to out[to:], with room for three.

    `memory`: a table of 2^bits rows. Returns: the index after the last id, or -1 if the table lacks the word.
    """
    row = _memory_row(low, high, bits)
    if memory[row] != low or memory[row + 1] != high:
        return -1
    two, last = memory[row + 2], memory[row + 3]
    out[to] = np.int32(two & np.uint64(0xFFFFFFFF))
    out[to + 1] = np.int32(two >> np.uint64(32))
    out[to + 2] = np.int32(last & np.uint64(0xFFFFFFFF))
    return to + np.int64(last >> np.uint64(32))


@jit
def remember(memory, bits, low, high, out, to, end):  # type: ignore[no-untyped-def]
    """Store the ids out[to:end], if at most three, of the word with the key (low, high). `memory`: as in `recall`."""
    if end - to <= 3:
        row = _memory_row(low, high, bits)
        memory[row], memory[row + 1] = low, high
        memory[row + 2] = np.uint64(np.uint32(out[to])) | np.uint64(np.uint32(out[to + 1])) << np.uint64(32)
        memory[row + 3] = np.uint64(np.uint32(out[to + 2])) | np.uint64(end - to) << np.uint64(32)


class Pages(NamedTuple):
    """Immutable cache of code points. The entry of code point c is entries[page_of[c >> 6] << 6 | c & 63]."""

    page_of: np.ndarray  # int32 [NUM_PAGES], -1 if missing
    entries: np.ndarray  # uint64
    pool: np.ndarray  # uint8

    def extended(self, numbers: list[int], *, read: ReadPage) -> Pages:
        """Return a copy with the pages `numbers` too. `read`: computes a page's entries, and adds bytes to the pool."""
        missing = [number for number in numbers if self.page_of[number] < 0]
        page_of = self.page_of.copy()
        page_of[missing] = len(self.entries) // PAGE + np.arange(len(missing))
        pool = bytearray(self.pool[: -len(_SLACK)].tobytes())
        pages = map(letters_of_page, missing)
        entries = [entry for letters in pages for entry in (read(letters, pool) if letters else [ASK] * PAGE)]
        return Pages(
            page_of=frozen(page_of),
            entries=frozen(np.concatenate([self.entries, np.array(entries, np.uint64)])),
            pool=frozen(np.frombuffer(bytes(pool) + _SLACK, np.uint8)),
        )


def letters_of_page(number: int) -> list[str]:
    """Return the 64 code points of a page; none for a page of surrogates."""
    if number * PAGE in _SURROGATES:
        return []
    return list(np.arange(number * PAGE, (number + 1) * PAGE, dtype="<u4").tobytes().decode("utf-32-le"))


def changed_between_marks(letters: list[str]) -> list[str]:
    """Return those of `letters` that NFD decomposes or reorders between two combining marks."""
    between = [f"\u0345{letter}\u0334" for letter in letters]
    after = one_by_one(normalizers.NFD().normalize_str, between)
    return [letter for letter, old, new in zip(letters, between, after, strict=True) if old != new]


def one_by_one(normalize: Callable[[str], str], texts: list[str], *, between: str = "0\u0436") -> list[str]:
    """Return each text normalized, with a single call of `normalize` for all if possible.

    The call joins the texts with a character of `between`. `normalize` must not change it, or see past it.
    """
    for mark in between if texts else "":
        if not any(mark in text for text in texts):
            parts = normalize(mark + mark.join(texts) + mark).split(mark)[1:-1]
            if len(parts) == len(texts):
                return parts
    return [normalize(text) for text in texts]


class Contents(NamedTuple):
    """Set of texts to search for. `first` bool [256]: mask of their first bytes. `trie`: of all texts."""

    first: np.ndarray
    trie: vocabulary_trie.Trie

    @classmethod
    def of(cls, contents: Collection[str]) -> Contents:
        """Build the set from non-empty texts."""
        first = np.zeros(256, bool)
        first[[content.encode()[0] for content in contents]] = True
        return cls(first=frozen(first), trie=vocabulary_trie.build(dict.fromkeys(contents, 0)))


class KernelEngine(FastEngine):
    """Base class of engines in our own compiled code. Threads share only read-only data."""

    memory_words: int

    def _begin(self, read: ReadPage) -> None:
        self._read = read
        self._memories: list[np.ndarray] = []  # tables not in use; list.pop and list.append are atomic
        nothing, no_page = np.zeros(0, np.uint64), np.full(NUM_PAGES, -1, np.int32)
        self._pages = Pages(page_of=no_page, entries=nothing, pool=np.frombuffer(_SLACK, np.uint8))
        self._pages_lock = threading.Lock()
        self._take_pages(_COMMON_PAGES)

    def encode(self, texts: pa.Array) -> RaggedTokens:
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
        """Encode N texts. A text for the reference engine to encode gets no tokens, and a 1 in `asked`, uint8 [N]."""

    @abc.abstractmethod
    def _tables_of(self, pages: Pages) -> Any: ...

    def _ask_for_pages(self, data: np.ndarray, edges: np.ndarray) -> None:
        wanted = np.zeros(NUM_PAGES, np.uint8)
        find_pages(data, edges, wanted)
        with self._pages_lock:
            self._take_pages(np.flatnonzero(wanted).tolist())

    def _take_pages(self, numbers: list[int]) -> None:
        self._pages = self._pages.extended(numbers, read=self._read)
        self._tables = self._tables_of(self._pages)
