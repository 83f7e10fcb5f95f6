"""WordPiece engine in our own compiled code, structured like the Unigram engine.

BertNormalizer and BertPreTokenizer (`tokenizers` 0.23) are steps that look at one code point at a time:

    clean_text             drops U+0000, U+FFFD and controls, turns white space into spaces
    handle_chinese_chars   surrounds an ideograph with spaces
    strip_accents          canonical decomposition (NFD), then drops nonspacing marks
    lowercase              without a rule for a final sigma
    split                  at white space, which is dropped, and at punctuation, which becomes separate words

But NFD also sorts neighbouring marks by their combining class (ccc). The order matters only if two marks are still
neighbours after nonspacing marks are dropped, such as U+1B44 and U+302E. NFD moves no mark across a code point of ccc
0, which all code points except marks have. So the remaining marks have the kind REORDERED. NFD is asked for them: it
swaps such a mark with a U+0334 (ccc 1) after it, or with a U+0345 (ccc 240) before it.

The entry of an ISOLATED code point contains its id, from bit 3 on. In other entries, bits 8-12 are the number of
characters that replace the code point.
"""

import string
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import normalizers

from pipelines.prepare.tokenize.engines import kernel_engine as shared
from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.base import NotQualified
from pipelines.prepare.tokenize.engines.kernel_engine import ASK, DROP, ISOLATED, ORDINARY, REORDERED, SPACE
from pipelines.prepare.tokenize.engines.wordpiece import kernels
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen

_KINDS = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
_FOLD = 0x2020202020202020
_MAX_CHARS = 2**62
# No code point becomes more characters than it has bytes, so no document has more ids than bytes.
_ORDINARY = {(ORDINARY,) * count for count in range(1, 4)}
_ALONE = {(ISOLATED,), (SPACE, ISOLATED, SPACE), (SPACE, ORDINARY, SPACE)}
_WITHOUT_TEXT = {(): DROP, (SPACE,): SPACE}


class WordPieceEngine(shared.KernelEngine):
    """Engine for BERT's WordPiece, unless it has added tokens that match normalized text."""

    name = "wordpiece"
    memory_words = kernels.MEMORY_WORDS

    def _open(self, parts: dict[str, Any]) -> None:
        for part, expected in _KINDS.items():
            kind = (parts[part] or {}).get("type")
            if kind != expected:
                raise NotQualified(f"its {part.replace('_', '-')} is {kind or 'missing'}, not {expected}")
        self._model, self._lowercase = parts["model"], parts["normalizer"]["lowercase"]
        if self._model["unk_token"] not in self._model["vocab"]:
            raise NotQualified("its vocabulary has no entry for unknown text")
        for token in parts["added_tokens"]:
            if token["normalized"]:
                raise NotQualified(f"its added token {token['content']!r} is searched for in normalized text")
        contents = [token["content"] for token in parts["added_tokens"] if token["content"]]
        # The compiled loop finds added tokens that begin with punctuation; `find_added` finds the others.
        visited = [content for content in contents if content[0] in string.punctuation]
        self._hidden, self._visited = shared.Contents.of({*contents} - {*visited}), shared.Contents.of(visited)
        prefix = self._model["continuing_subword_prefix"]
        self._trie = vocabulary_trie.build(self._model["vocab"], inner_prefix=prefix)
        self._begin(_CodePoints(self._reference.backend, parts["normalizer"], self._model).page)

    def _encode_bytes(self, data: np.ndarray, edges: np.ndarray, asked: np.ndarray, memory: np.ndarray) -> RaggedTokens:
        if self._hidden.first.any():
            kernels.find_added(data, edges, self._hidden, asked)
        num_bytes, longest = int(edges[-1] - edges[0]), int(np.diff(edges).max(initial=0))
        out = np.empty(num_bytes + 4, np.int32)  # pages that are never written take no memory
        offsets = np.zeros(len(edges), np.int64)
        word = np.empty(4 * min(self._tables.max_chars, longest) + 64, np.uint8)
        while kernels.encode(data, edges, asked, out, offsets[1:], memory, word, self._tables) == shared.MISSING_PAGE:
            self._ask_for_pages(data, edges)
        return RaggedTokens(out[: offsets[-1]].astype(self._dtype), offsets)

    def _tables_of(self, pages: shared.Pages) -> kernels.Tables:
        breaks = [byte < 128 and int(pages.entries[byte]) & 7 in (SPACE, ISOLATED) for byte in range(256)]
        return kernels.Tables(
            vocabulary=self._trie,
            unknown=self._model["vocab"][self._model["unk_token"]],
            max_chars=min(self._model["max_input_chars_per_word"], _MAX_CHARS),
            fold=np.uint64(_FOLD if self._lowercase else 0),
            pages=pages,
            breaks=frozen(np.array(breaks)),
            added=self._visited,
        )


class _CodePoints:
    def __init__(self, backend: Any, normalizer: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        strips = normalizer["strip_accents"]
        self._strips_accents = normalizer["lowercase"] if strips is None else strips
        self._known = model["vocab"] if model["max_input_chars_per_word"] else {}
        self._unknown = model["vocab"][model["unk_token"]]
        self._strip = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
        )

    def page(self, points: list[str], pool: bytearray) -> list[int]:
        become = shared.one_by_one(self._normalizer.normalize_str, points)
        kinds = self._kinds(sorted(set("".join(become))))
        marks = self._marks(points) if self._strips_accents else set()
        return [
            self._entry(point, text, kinds=kinds, is_mark=point in marks, pool=pool)
            for point, text in zip(points, become, strict=True)
        ]

    def _entry(self, point: str, text: str, *, kinds: dict[str, int], is_mark: bool, pool: bytearray) -> int:
        text_kinds = tuple(map(kinds.__getitem__, text))
        if text_kinds in _ORDINARY and len(text) <= len(point.encode()):
            data = text.encode()
            entry = (REORDERED if is_mark else ORDINARY) | len(data) << 3 | len(text) << 8 | len(pool) << 13
            pool += data
            return entry
        if text_kinds in _ALONE and not is_mark:
            return ISOLATED | self._known.get(text[len(text) // 2], self._unknown) << 3
        return _WITHOUT_TEXT.get(text_kinds, ASK)

    def _kinds(self, letters: list[str]) -> dict[str, int]:
        spans = {span for _, span in self._pre_tokenizer.pre_tokenize_str(f"x{'x'.join(letters)}x")}
        ends = {end for _, end in spans}
        return {
            letter: ORDINARY if at not in ends else ISOLATED if (at, at + 1) in spans else SPACE
            for letter, at in zip(letters, range(1, 2 * len(letters), 2), strict=True)
        }

    def _marks(self, points: list[str]) -> set[str]:
        decomposed_or_moved = shared.changed_between_marks(points)
        remain = shared.one_by_one(self._strip.normalize_str, decomposed_or_moved)
        moved = set(shared.changed_between_marks(sorted(set("".join(remain)))))
        return {point for point, text in zip(decomposed_or_moved, remain, strict=True) if moved.intersection(text)}
