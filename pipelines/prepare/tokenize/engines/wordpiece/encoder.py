"""WordPiece in our own compiled code: the ids of the Rust tokenizer, many times as fast.

    texts ──► code points ──► words ──► ids        one loop over Arrow's bytes (`kernels`), no GIL, no strings
                 │              │
       entries, asked of        a trie of the vocabulary (`vocabulary_trie`), with a small table of words seen before
       the tokenizer itself
       (`points`)

There is no cache of answers, so none to warm up, and no approximation: what the normalizer and the pre-tokenizer do to
a text they do to each of its code points, and `points` says why. Documents of which that is not true are left
to the tokenizer as a whole: those that hold the content of an added token, as text ([MASK]), and those with two marks
side by side that Unicode may sort.

Memory: the trie (1 to 4 MB); up to 14 MB for entries, if every page of Unicode occurs; 1 MB for each thread that
encodes at once; and while a batch is encoded, 4 bytes for each of its tokens.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.code_points import Pages
from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.kernel_engine import Contents, KernelEngine
from pipelines.prepare.tokenize.engines.qualified import (
    NotQualified,
    largest_id,
    reopened,
    require_ids_kept,
    require_reference,
)
from pipelines.prepare.tokenize.engines.text_kernels import ISOLATED, MISSING_PAGE, SPACE
from pipelines.prepare.tokenize.engines.wordpiece import kernels as kernels
from pipelines.prepare.tokenize.engines.wordpiece.points import Reader
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen

__all__ = ["WordPieceEngine", "make_wordpiece"]

_KINDS = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
_FOLD = 0x2020202020202020
_MAX_CHARS = 2**62  # more than there are in any text
_LETTERS = (string.digits + string.ascii_letters).encode()


def make_wordpiece(reference: HuggingFaceEngine, *, dtype: np.dtype) -> WordPieceEngine:
    """Open an engine for the reference's tokenizer; docs/explanation/engines.md argues why its ids are the reference's.

    That is a fast tokenizer of BertNormalizer, BertPreTokenizer and WordPiece with any settings, all of whose added
    tokens are looked for before the text is normalized.
    Raises: NotQualified unless the tokenizer is one for which the engine is qualified.
    """
    require_reference()
    require_ids_kept(reference.parts["post_processor"])
    _require_kind(reference.parts, dtype=dtype)
    engine = WordPieceEngine(reference, reference.parts, dtype=dtype)
    if not engine.takes_short_cuts_rightly():
        raise NotQualified("its normalizer makes something else of spaces, letters, digits or punctuation of ASCII")
    return engine


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


class WordPieceEngine(KernelEngine):
    """Engine for BERT's WordPiece with our own kernels."""

    name = "wordpiece"

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (make_wordpiece, self._reference, self._dtype)

    def __init__(self, reference: HuggingFaceEngine, parts: Mapping[str, Any], *, dtype: np.dtype) -> None:
        """Open the engine. `reference` encodes what is left to it; `parts` is the content of tokenizer.json."""
        normalizer, strips = parts["normalizer"], parts["normalizer"]["strip_accents"]
        reader = Reader(
            reference.backend,
            strips_accents=normalizer["lowercase"] if strips is None else strips,
            id_of=_ids_of_characters(parts["model"]),
        )
        contents = [token["content"] for token in parts["added_tokens"] if token["content"]]
        # The kernel looks at each punctuation mark by itself; what begins otherwise may stand within a word.
        visited = [content for content in contents if content[0] in string.punctuation]
        self._hidden = Contents.of(set(contents) - set(visited))
        tables = _tables(parts, visited=Contents.of(visited))
        super().__init__(reference, reader, tables=tables, memory_words=kernels.MEMORY_WORDS, dtype=dtype)

    def takes_short_cuts_rightly(self) -> bool:
        """Return whether the tokenizer treats ASCII as the kernel's short cuts assume."""
        folded = _LETTERS.lower() if self._tables.fold else _LETTERS
        spelled = b"".join(self._pages.spelling(letter) or b"?" for letter in _LETTERS)
        alone = all(self._pages.kind(mark) == ISOLATED for mark in string.punctuation.encode())
        return spelled == folded and alone and self._pages.kind(ord(" ")) == SPACE

    def _encode_bytes(self, data: np.ndarray, edges: np.ndarray, asked: np.ndarray, memory: np.ndarray) -> RaggedTokens:
        if self._hidden.first.any():
            kernels.find_added(data, edges, self._hidden.first, self._hidden.trie.units, self._hidden.trie.start, asked)
        num_bytes, longest = int(edges[-1] - edges[0]), int(np.diff(edges).max(initial=0))
        out = np.empty(num_bytes + 4, np.int32)  # most of it is never touched, so never resident
        offsets = np.zeros(len(edges), np.int64)
        word = np.empty(4 * min(self._tables.max_chars, longest) + 64, np.uint8)
        while kernels.encode(data, edges, asked, out, offsets[1:], memory, word, self._tables) == MISSING_PAGE:
            self._ask_for_pages(data, edges)
        return RaggedTokens(out[: offsets[-1]].astype(self._dtype), offsets)

    def _with_bytes(self, tables: kernels.Tables, pages: Pages) -> kernels.Tables:
        ends = (SPACE, ISOLATED)
        return tables._replace(
            breaks=frozen(np.array([byte < 128 and pages.kind(byte) in ends for byte in range(256)]))
        )


def _tables(parts: Mapping[str, Any], *, visited: Contents) -> kernels.Tables:
    """Return the kernel's tables, without code points yet."""
    model = parts["model"]
    trie = vocabulary_trie.build(model["vocab"], inner_prefix=model["continuing_subword_prefix"])
    none = Pages.none()
    return kernels.Tables(
        units=trie.units,
        start=trie.start,
        inner=trie.inner,
        unknown=model["vocab"][model["unk_token"]],
        max_chars=min(model["max_input_chars_per_word"], _MAX_CHARS),
        fold=np.uint64(_FOLD if parts["normalizer"]["lowercase"] else 0),
        page_of=none.page_of,
        entries=none.entries,
        pool=none.pool,
        breaks=frozen(np.zeros(256, bool)),
        suspect=visited.first,
        added_units=visited.trie.units,
        added_start=visited.trie.start,
    )


def _ids_of_characters(model: dict[str, Any]) -> Callable[[str], int]:
    vocabulary, unknown = model["vocab"], model["vocab"][model["unk_token"]]
    known = vocabulary if model["max_input_chars_per_word"] else {}
    return lambda character: known.get(character, unknown)
