"""What our own engines share: memory, pages of code points, and the documents that are left to the reference."""

from __future__ import annotations

import abc
import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.base import utf8_of
from pipelines.prepare.tokenize.engines.code_points import NUM_PAGES, PageReader, Pages
from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.text_kernels import find_pages
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen

__all__ = ["Contents", "KernelEngine"]

_COMMON_PAGES = [0x00, 0x01, 0x20]  # Latin, and the punctuation of printed text


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


class KernelEngine(abc.ABC):
    """Base class of engines with our own kernels. Threads may share one: shared data is read-only."""

    name: str
    version = "1"
    concurrent = True

    def __init__(
        self, reference: HuggingFaceEngine, reader: PageReader, *, tables: Any, memory_words: int, dtype: np.dtype
    ) -> None:
        """Open the engine. `tables` hold no code points yet; `reader` computes their pages when a text needs them."""
        self._reference, self._reader, self._dtype = reference, reader, dtype
        self._memory_words = memory_words
        self._memories: list[np.ndarray] = []  # those not in use; list.pop and list.append are atomic
        self._pages, self._tables = Pages.none(), tables
        self._pages_lock = threading.Lock()
        self._take_pages(_COMMON_PAGES)

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text."""
        data, edges = utf8_of(texts)
        asked = np.zeros(len(texts), np.uint8)
        try:
            memory = self._memories.pop()
        except IndexError:
            memory = np.zeros(self._memory_words, np.uint64)
        runs = self._encode_bytes(frozen(data), edges, asked, memory)
        self._memories.append(memory)
        return self._reference.put_into(runs, texts, np.flatnonzero(asked)) if asked.any() else runs

    @abc.abstractmethod
    def _encode_bytes(self, data: np.ndarray, edges: np.ndarray, asked: np.ndarray, memory: np.ndarray) -> RaggedTokens:
        """Encode the texts, and set `asked` for those that the reference must encode, which get no tokens here."""

    @abc.abstractmethod
    def _with_bytes(self, tables: Any, pages: Pages) -> Any:
        """Return the tables with what the kernel wants to know of single bytes."""

    def _ask_for_pages(self, data: np.ndarray, edges: np.ndarray) -> None:
        wanted = np.zeros(NUM_PAGES, np.uint8)
        find_pages(data, edges, wanted)
        with self._pages_lock:
            self._take_pages(np.flatnonzero(wanted).tolist())

    def _take_pages(self, numbers: list[int]) -> None:
        self._pages = pages = self._pages.extended(numbers, read=self._reader)
        tables = self._tables._replace(page_of=pages.page_of, entries=pages.entries, pool=pages.pool)
        self._tables = self._with_bytes(tables, pages)
