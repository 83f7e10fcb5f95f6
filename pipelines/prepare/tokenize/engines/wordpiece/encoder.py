"""WordPiece in our own compiled code: the ids of the Rust tokenizer, many times as fast.

    texts ──► code points ──► words ──► ids        one loop over Arrow's bytes (`wordpiece_kernels`), no GIL, no strings
                 │              │
       entries, asked of        a trie of the vocabulary (`vocabulary_trie`), with a small table of words seen before
       the tokenizer itself
       (`wordpiece_points`)

There is no cache of answers, so none to warm up, and no approximation: what the normalizer and the pre-tokenizer do to
a text they do to each of its code points, and `wordpiece_points` says why. Documents of which that is not true are left
to the tokenizer as a whole: those that hold the content of an added token, as text ([MASK]), and those with two marks
side by side that Unicode may sort.

Memory: the trie (1 to 4 MB); up to 14 MB for entries, if every page of Unicode occurs; 1 MB for each thread that
encodes at once; and while a batch is encoded, 4 bytes for each of its tokens.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.base import utf8_of
from pipelines.prepare.tokenize.engines.code_points import NUM_PAGES, Pages
from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.qualified import (
    NotQualified,
    largest_id,
    or_none,
    reopened,
    require_ids_kept,
    require_reference,
    rust_tokenizer,
)
from pipelines.prepare.tokenize.engines.text_kernels import ISOLATED, MISSING_PAGE, SPACE, find_pages
from pipelines.prepare.tokenize.engines.wordpiece import kernels as kernels
from pipelines.prepare.tokenize.engines.wordpiece.points import Reader
from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from tfrecord_io.codec.kernels import frozen

__all__ = ["WordPieceEngine", "make_wordpiece", "open_wordpiece"]

_COMMON_PAGES = [0x00, 0x01, 0x20]  # Latin, and the punctuation of printed text
_KINDS = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
_FOLD = 0x2020202020202020
_MAX_CHARS = 2**62  # more than there are in any text
_LETTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def make_wordpiece(
    tokenizer: Any, *, dtype: np.dtype, reference: HuggingFaceEngine | None = None, any_version: bool = False
) -> WordPieceEngine:
    """Open an engine for this tokenizer; docs/explanation/engines.md argues why its ids are the reference's.

    That is a fast tokenizer of BertNormalizer, BertPreTokenizer and WordPiece with any settings, all of whose added
    tokens are looked for before the text is normalized. `reference` is the Rust tokenizer, if it has been opened.
    Raises: NotQualified unless the tokenizer is one for which the engine is qualified.
    """
    require_reference(any_version=any_version)
    reference = rust_tokenizer(tokenizer, reference, dtype=dtype)
    require_ids_kept(reference.parts["post_processor"])
    _require_kind(reference.parts, dtype=dtype)
    engine = WordPieceEngine(reference, reference.parts, dtype=dtype)
    if not engine.takes_short_cuts_rightly():
        raise NotQualified("its normalizer makes something else of spaces, or of letters and digits of ASCII")
    return engine


open_wordpiece = or_none(make_wordpiece)


def _require_kind(parts: Mapping[str, Any], *, dtype: np.dtype) -> None:
    """Raise NotQualified unless tokenizer.json describes a WordPiece tokenizer that this engine accepts."""
    for part, expected in _KINDS.items():
        kind = (parts[part] or {}).get("type")
        if kind != expected:
            raise NotQualified(f"its {part.replace('_', '-')} is {kind or 'missing'}, not {expected}")
    model = parts["model"]
    if model["unk_token"] not in model["vocab"]:
        raise NotQualified("its vocabulary has no entry for what is unknown")
    largest = largest_id(parts)
    if largest > min(np.iinfo(dtype).max, vocabulary_trie.MAX_ID):
        raise NotQualified(f"its largest id is {largest}")
    for token in parts["added_tokens"]:
        if token["normalized"]:
            raise NotQualified(f"its added token {token['content']!r} is looked for in normalized text")


class WordPieceEngine:
    """Engine for BERT's WordPiece with our own kernels. Threads may share it: shared data is read-only."""

    name = "wordpiece"
    version = "1"
    concurrent = True

    def __init__(self, reference: HuggingFaceEngine, parts: Mapping[str, Any], *, dtype: np.dtype) -> None:
        """Open the engine. `reference` encodes what is left to it; `parts` is the content of tokenizer.json."""
        normalizer, strips = parts["normalizer"], parts["normalizer"]["strip_accents"]
        self._reference = reference
        self._dtype = dtype
        self._reader = Reader(
            reference.backend,
            strips_accents=normalizer["lowercase"] if strips is None else strips,
            id_of=_ids_of_characters(parts["model"]),
        )
        self._pages = Pages.none().extended(_COMMON_PAGES, read=self._reader)
        self._pages_lock = threading.Lock()
        contents = [token["content"].encode() for token in parts["added_tokens"] if token["content"]]
        visited = [content for content in contents if self._stands_alone(content[0])]
        self._hidden = _Contents.of([content for content in contents if not self._stands_alone(content[0])])
        self._tables = _tables(parts, pages=self._pages, visited=_Contents.of(visited))
        self._memories: list[np.ndarray] = []  # those not in use; list.pop and list.append are atomic

    def takes_short_cuts_rightly(self) -> bool:
        """Return whether the tokenizer treats spaces, ASCII letters and digits as the kernel's shortcut assumes."""
        folded = _LETTERS.lower() if self._tables.fold else _LETTERS
        spelled = b"".join(self._pages.spelling(letter) or b"?" for letter in _LETTERS)
        return spelled == folded and self._pages.kind(ord(" ")) == SPACE

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (make_wordpiece, self._reference, self._dtype)

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text."""
        data, edges = utf8_of(texts)
        asked = np.zeros(len(texts), np.uint8)
        if self._hidden.edges.size > 1:
            kernels.find_added(frozen(data), edges, self._hidden.first, self._hidden.data, self._hidden.edges, asked)
        runs = self._encode_bytes(frozen(data), edges, asked)
        return self._reference.put_into(runs, texts, np.flatnonzero(asked)) if asked.any() else runs

    def _encode_bytes(self, data: np.ndarray, edges: np.ndarray, asked: np.ndarray) -> RaggedTokens:
        """Encode the texts that are not `asked`, and set `asked` for further ones that the reference must encode."""
        num_bytes, longest = int(edges[-1] - edges[0]), int(np.diff(edges).max(initial=0))
        out = np.empty(num_bytes + 4, np.int32)  # most of it is never touched, so never resident
        offsets = np.zeros(len(edges), np.int64)
        word = np.empty(4 * min(self._tables.max_chars, longest) + 64, np.uint8)
        memory = self._take_memory()
        while kernels.encode(data, edges, asked, out, offsets[1:], memory, word, self._tables) == MISSING_PAGE:
            self._ask_for_pages(data, edges)
        self._memories.append(memory)
        return RaggedTokens(out[: offsets[-1]].astype(self._dtype), offsets)

    def _take_memory(self) -> np.ndarray:
        try:
            return self._memories.pop()
        except IndexError:
            return np.zeros(kernels.MEMORY_WORDS, np.uint64)

    def _ask_for_pages(self, data: np.ndarray, edges: np.ndarray) -> None:
        wanted = np.zeros(NUM_PAGES, np.uint8)
        find_pages(data, edges, wanted)
        with self._pages_lock:
            self._pages = pages = self._pages.extended(np.flatnonzero(wanted).tolist(), read=self._reader)
            self._tables = self._tables._replace(page_of=pages.page_of, entries=pages.entries, pool=pages.pool)

    def _stands_alone(self, byte: int) -> bool:
        """Return whether this first byte is ASCII punctuation, which the kernel never reads as a part of a word."""
        return byte < 128 and self._pages.kind(byte) == ISOLATED


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Contents:
    """Added tokens as the kernels expect them: their bytes in one vector, offsets, and a table of first bytes."""

    data: np.ndarray
    edges: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, contents: list[bytes]) -> _Contents:
        first = np.zeros(256, bool)
        first[[content[0] for content in contents]] = True
        return cls(
            data=frozen(np.frombuffer(b"".join(contents), np.uint8)),
            edges=frozen(offsets_of(np.array([len(content) for content in contents], np.int64))),
            first=frozen(first),
        )


def _tables(parts: Mapping[str, Any], *, pages: Pages, visited: _Contents) -> kernels.Tables:
    model = parts["model"]
    trie = vocabulary_trie.build(model["vocab"], inner_prefix=model["continuing_subword_prefix"])
    ends = (SPACE, ISOLATED)
    return kernels.Tables(
        units=trie.units,
        start=trie.start,
        inner=trie.inner,
        unknown=model["vocab"][model["unk_token"]],
        max_chars=min(model["max_input_chars_per_word"], _MAX_CHARS),
        fold=np.uint64(_FOLD if parts["normalizer"]["lowercase"] else 0),
        page_of=pages.page_of,
        entries=pages.entries,
        pool=pages.pool,
        breaks=frozen(np.array([byte < 128 and pages.kind(byte) in ends for byte in range(256)])),
        suspect=visited.first,
        added=visited.data,
        added_edges=visited.edges,
    )


def _ids_of_characters(model: dict[str, Any]) -> Callable[[str], int]:
    vocabulary, unknown = model["vocab"], model["vocab"][model["unk_token"]]
    known = vocabulary if model["max_input_chars_per_word"] else {}
    return lambda character: known.get(character, unknown)
