"""Byte-level BPE with the package `fastokens`: the ids of the Rust tokenizer, fifty times as fast.

It remembers the tokens of words seen before, in tables of a fixed size, and has scanners of its own for the patterns
in `split_patterns`. Other patterns it leaves to a regular expression library to which U+180E is white space, as it is
not to the reference: they are not qualified.

Texts with a long s (ſ) are left to the reference: where a pattern takes 's for an ending whatever its case, the two do
not always agree on what that is.

It encodes a batch on threads of its own, on all cores, and does not hold the GIL while it works.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import pre_tokenizers

from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.engines import split_patterns
from pipelines.prepare.tokenize.engines.base import utf8_of
from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.qualified import (
    NotQualified,
    encoding_parts,
    opened,
    or_none,
    reopened,
    require_ids_kept,
    require_merges_only,
    require_release,
    rust_tokenizer,
)
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import frozen, jit

__all__ = ["FastokensEngine", "make_fastokens", "open_fastokens"]

_LONG_S = "\u017f"

_TRIED = ((0, 3, 5), (0, 3, 5))

_BLOCK = 1 << 14  # bytes

_ALONE = (split_patterns.LLAMA3, split_patterns.QWEN2, split_patterns.QWEN35, split_patterns.O200K)
_SPLITS = [[pattern] for pattern in (*_ALONE, split_patterns.TEKKEN)] + [list(split_patterns.DEEPSEEK)]
_NO_CHANGE = {"type": "Sequence", "normalizers": []}
_NORMALIZERS: tuple[dict[str, Any] | None, ...] = (None, _NO_CHANGE, {"type": "NFC"})
# What NFC leaves as it is, and makes of nothing else: ASCII but for K, semicolon and grave accent, to which the Kelvin
# sign, the Greek question mark and varia are normalized.
_STAYS = re.compile(r"[\x00-:<-JL-_a-\x7f]+")

_log = logging.getLogger(__name__)


def make_fastokens(
    tokenizer: Any, *, dtype: np.dtype, reference: HuggingFaceEngine | None = None, any_version: bool = False
) -> FastokensEngine:
    """Open an engine for this tokenizer; docs/explanation/engines.md argues why its ids are the reference's.

    `reference` is the Rust tokenizer, if it has been opened. `any_version` is for finding out whether an untried
    version of the package, or of the reference, can be qualified.
    Raises: NotQualified unless package and tokenizer are ones for which it is qualified.
    """
    reference = rust_tokenizer(tokenizer, reference, dtype=dtype)
    require_ids_kept(reference.parts["post_processor"])
    parts = encoding_parts(reference)
    _require_model(parts, dtype=dtype)
    if parts["normalizer"] not in _NORMALIZERS:
        raise NotQualified("its normalizer is not NFC or nothing")
    if not _splits_as_tried(parts["pre_tokenizer"] or {}):
        raise NotQualified("its pre-tokenizer is not GPT-2's, and none of the expressions that are qualified")
    version = require_release("fastokens", tried=_TRIED, any_version=any_version)
    return FastokensEngine(
        reference,
        parts,
        version=version,
        dtype=dtype,
        split_special_tokens=tokenizer.split_special_tokens,
    )


open_fastokens = or_none(make_fastokens)


def _require_model(parts: Mapping[str, Any], *, dtype: np.dtype) -> None:
    require_merges_only(parts, byte_fallback=False, dtype=dtype)
    vocabulary = parts["model"]["vocab"]
    if not vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet()):
        raise NotQualified("its vocabulary has no entry for some bytes")
    if max(vocabulary.values()) >= len(vocabulary):
        raise NotQualified("the ids of its vocabulary have holes")


def _in_two_passes(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parts` with a no-op normalizer if there is none but added tokens of both kinds.

    The reference searches the raw text for added tokens first, then the normalized rest. The
    package does so only where there is a normalizer.
    """
    kinds = {token["normalized"] for token in parts["added_tokens"]}
    return {**parts, "normalizer": _NO_CHANGE} if parts["normalizer"] is None and len(kinds) == 2 else dict(parts)


def _left_to_reference(added: Sequence[Mapping[str, Any]], *, normalizes: bool) -> tuple[str, ...]:
    """Return the texts whose presence sends a document to the reference.

    Where a token takes the white space behind it, another one may begin in that white space: the reference drops it, or
    panics, if nothing of it is left; the package gives it in any case.
    Raises: NotQualified if documents may hold such a token only once they are normalized.
    """
    takers = [token for token in added if token["rstrip"]]
    if not takers or not any(token["content"][0].isspace() for token in added):
        return (_LONG_S,)
    changing = [
        token for token in takers if normalizes and token["normalized"] and not _STAYS.fullmatch(token["content"])
    ]
    if changing:
        raise NotQualified(
            f"its added token {changing[0]['content']!r} takes white space from other added tokens after normalization"
        )
    return (_LONG_S, *(token["content"] for token in takers))


def _splits_as_tried(pre_tokenizer: dict[str, Any]) -> bool:
    """Return whether the pre-tokenizer is one of the two forms that were compared with the reference.

    These are GPT-2's pattern, with or without a split at each digit before it; or regular expressions followed by
    ByteLevel without a pattern.
    """
    if pre_tokenizer.get("type") == "ByteLevel":
        return bool(pre_tokenizer["use_regex"])
    steps = pre_tokenizer.get("pretokenizers", [])
    if len(steps) < 2 or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return False
    if steps[-1]["use_regex"]:
        return steps[:-1] == [{"type": "Digits", "individual_digits": True}]
    return [_expression(step) for step in steps[:-1]] in _SPLITS


def _expression(step: dict[str, Any]) -> str | None:
    plain = step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]
    return step["pattern"].get("Regex") if plain else None


class FastokensEngine:
    """Engine for byte-level BPE. Threads may share it, though it already encodes each batch on all cores."""

    name = "fastokens"
    concurrent = True

    def __init__(
        self,
        reference: HuggingFaceEngine,
        parts: Mapping[str, Any],
        *,
        version: str,
        dtype: np.dtype,
        split_special_tokens: bool,
    ) -> None:
        """Open the package. `reference` encodes the texts left to it; `parts` is the content of tokenizer.json.

        Raises: NotQualified if the package cannot open it.
        """
        self.version = version
        self._asks_for = _left_to_reference(parts["added_tokens"], normalizes=parts["normalizer"] is not None)
        state = json.dumps(_in_two_passes(parts), ensure_ascii=False)
        self._backend = opened("fastokens", lambda: importlib.import_module("fastokens").Tokenizer.from_json_str(state))
        self._reference = reference
        self._dtype = dtype
        self._split_special_tokens = split_special_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (make_fastokens, self._reference, self._dtype)

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text."""
        strings = texts.to_pylist()
        try:
            runs = self._encode(strings)
        except BaseException as error:  # a limit of its regular expressions, or a panic
            if not library_failures.is_of_library(error):
                raise
            _log.debug(
                "fastokens fails on one of %d texts, which are left to the reference", len(strings), exc_info=True
            )
            return self._reference.encode(texts)
        data, edges = utf8_of(texts)
        held = frozen(data[edges[0] : edges[-1]])
        asked = np.zeros(len(strings), bool)
        for content in self._asks_for:
            if _may_hold(held, content.encode()):
                asked |= np.asarray(pc.match_substring(texts, content))
        return self._reference.put_into(runs, texts, np.flatnonzero(asked)) if asked.any() else runs

    def _encode(self, strings: list[str]) -> RaggedTokens:
        ids, offsets = self._backend.encode_batch_flat(
            strings, add_special_tokens=False, split_special_tokens=self._split_special_tokens
        )
        return RaggedTokens(
            np.frombuffer(ids, "<u4").astype(self._dtype), np.frombuffer(offsets, "<u8").astype(np.int64)
        )


def _may_hold(data: np.ndarray, content: bytes) -> bool:
    return len(content) < 2 or bool(_has_pair(data, *np.frombuffer(content[:2], np.uint8)))


@jit
def _has_pair(data, first, second):  # type: ignore[no-untyped-def]
    """Return whether the two bytes are adjacent anywhere. Works in blocks, so that the loop compiles to SIMD."""
    for start in range(0, len(data) - 1, _BLOCK):
        found = np.uint8(0)
        for step in range(min(_BLOCK, len(data) - 1 - start)):
            # Unsigned, or whether it counts from the end would be tested for each byte.
            position = np.uint64(start) + np.uint64(step)
            differs = (data[position] ^ first) | (data[position + np.uint64(1)] ^ second)
            found |= np.uint8(differs == 0)
        if found:
            return True
    return False
