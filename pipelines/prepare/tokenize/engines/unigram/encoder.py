"""Unigram engine in our own compiled code. docs/explanation/engines.md explains why its ids are exact.

A loop over Arrow's bytes (`kernels`) makes words, with the normalizer's entries for code points (`points`), and finds
their best paths (`paths`) through a trie of the vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.prepare.tokenize.engines import kernel_engine as shared
from pipelines.prepare.tokenize.engines import vocabulary_trie
from pipelines.prepare.tokenize.engines.base import NotQualified
from pipelines.prepare.tokenize.engines.kernel_engine import ORDINARY, SPACE, Contents, KernelEngine, Pages
from pipelines.prepare.tokenize.engines.unigram import kernels
from pipelines.prepare.tokenize.engines.unigram.paths import MARK_BYTES, Scratch
from pipelines.prepare.tokenize.engines.unigram.points import MARK, Reader
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen

_UNKNOWN_PENALTY = 10.0  # as in `tokenizers`
_METASPACE = {"type": "Metaspace", "replacement": MARK, "split": True}
_WORD_BYTES = 1 << 20  # pages that are never written take no memory


class UnigramEngine(KernelEngine):
    """Engine for SentencePiece's Unigram."""

    name = "unigram"
    memory_words = kernels.MEMORY_WORDS

    def _open(self, parts: dict[str, Any]) -> None:
        model = parts["model"]
        if model["type"] != "Unigram":
            raise NotQualified(f"its model is {model['type']}, not Unigram")
        if model["unk_id"] is None:
            raise NotQualified("its Unigram has no unknown token")
        words = _words(parts["pre_tokenizer"])
        reader = Reader(parts["normalizer"], splits_white=words["splits_white"])
        raw, normal = _forbidden(parts["added_tokens"], reader, self._reference.backend.normalizer)
        self._fixed = {
            **_model_tables(model),
            "raw": raw,
            "normal": normal,
            "charsmap": frozen(reader.charsmap),
            **words,
            "merges": reader.merges,
            "strips_left": reader.strips_left,
            "strips_right": reader.strips_right,
        }
        self._begin(reader.page)
        if int(self._pages.entries[ord(" ")]) & 7 != SPACE:
            raise NotQualified("its normalizer changes or removes spaces")

    def _encode_bytes(self, data: np.ndarray, edges: np.ndarray, asked: np.ndarray, memory: np.ndarray) -> RaggedTokens:
        out = np.empty(int(edges[-1] - edges[0]) // 2 + 1_024, np.int32)
        offsets, progress = np.zeros(len(edges), np.int64), np.zeros(2, np.int64)
        word = np.empty(_WORD_BYTES, np.uint8)
        word[:MARK_BYTES] = np.frombuffer(MARK.encode(), np.uint8)
        best, begin, piece = (np.empty(_WORD_BYTES, kind) for kind in (np.float64, np.int32, np.int32))
        scratch = Scratch(word=word, best=best, begin=begin, piece=piece)
        while code := kernels.encode(data, edges, asked, out, offsets[1:], progress, memory, scratch, self._tables):
            if code == shared.MISSING_PAGE:
                self._ask_for_pages(data, edges)
            else:
                out = np.concatenate([out[: progress[1]], np.empty(2 * len(out) - progress[1], np.int32)])
        return RaggedTokens(out[: offsets[-1]].astype(self._dtype), offsets)

    def _tables_of(self, pages: Pages) -> kernels.Tables:
        raw, normal, merges = self._fixed["raw"], self._fixed["normal"], self._fixed["merges"]

        def is_plain(byte: int) -> bool:
            if byte >= 128 or raw.first[byte] or normal.first[byte]:
                return False
            entry = int(pages.entries[byte])
            at, size = entry >> 13, entry >> 3 & 31
            itself = entry & 7 == ORDINARY and not entry & int(kernels.JOINS | kernels.ENDS_IN_MARK)
            return itself and pages.pool[at : at + size].tobytes() == bytes([byte])

        space = int(pages.entries[0x20])
        kept = space & 7 == SPACE and not space & int(kernels.JOINS) and not raw.first[0x20]
        return kernels.Tables(
            pages=pages,
            plain=frozen(np.array([is_plain(byte) for byte in range(256)])),
            plain_space=bool(kept and (not merges or space & int(kernels.MERGES))),
            **self._fixed,
        )


def _words(pre_tokenizer: Mapping[str, Any] | None) -> dict[str, bool]:
    pre_tokenizer = pre_tokenizer or {"type": ""}
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    splits_white = [step["type"] for step in steps] == ["WhitespaceSplit", "Metaspace"]
    scheme = steps[-1].get("prepend_scheme") if steps else None
    # WhitespaceSplit removes spaces, so "first" could not tell if a space precedes the first word.
    schemes = ("always", "never") if splits_white else ("always", "first", "never")
    expected = {**_METASPACE, "prepend_scheme": scheme}
    if scheme not in schemes or steps[-1] != expected or not (splits_white or len(steps) == 1):
        raise NotQualified("its pre-tokenizer is not Metaspace that splits, alone or after WhitespaceSplit")
    return {"splits_white": splits_white, "marks_first": scheme != "never", "marks_kept_first": scheme == "first"}


def _forbidden(added: list[dict[str, Any]], reader: Reader, normalizer: Any) -> tuple[Contents, Contents]:
    raw = [token["content"] for token in added if not token["normalized"]] + reader.literals
    plain = [token["content"] for token in added if token["normalized"]]
    # If the normalizer was added after the tokens, the tokenizer searches for their unchanged content.
    normal = [*plain, *map(normalizer.normalize_str, plain)] if normalizer is not None else plain
    for text in normal:
        if MARK in text or any(map(reader.is_space, text)):
            raise NotQualified(f"its added token {text!r} contains a space, and is searched for in normalized text")
    if not all((*raw, *normal)):
        raise NotQualified("one of its added tokens is empty, or normalized to an empty text")
    return Contents.of(raw), Contents.of(normal)


def _model_tables(model: Mapping[str, Any]) -> dict[str, Any]:
    # If pieces are equal, the last one is used.
    vocabulary = {piece: index for index, (piece, _) in enumerate(model["vocab"])}
    scores = np.array([score for _, score in model["vocab"]], np.float64)
    byte_ids = [vocabulary.get(f"<0x{byte:02X}>", -1) if model["byte_fallback"] else -1 for byte in range(256)]
    return {
        "vocabulary": vocabulary_trie.build(vocabulary),
        "scores": frozen(scores),
        "unknown": model["unk_id"],
        "unknown_score": float(scores.min()) - _UNKNOWN_PENALTY,
        "byte_ids": frozen(np.array(byte_ids, np.int32)),
    }
