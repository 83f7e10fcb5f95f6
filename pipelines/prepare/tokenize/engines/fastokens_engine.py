"""Byte-level BPE with the package `fastokens`: the ids of the Rust tokenizer, fifty times as fast.

It remembers the tokens of words seen before, in tables of a fixed size, and has scanners of its own for the patterns
in `split_patterns`. Other patterns it leaves to a regular expression library to which U+180E is white space, as it is
not to the reference: they are not qualified.

Texts with a long s (ſ) are left to the reference: where a pattern takes 's for an ending whatever its case, the two do
not always agree on what that is.

It encodes a batch on threads of its own, on all cores, and does not hold the GIL while it works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import pre_tokenizers

from pipelines.prepare.tokenize.engines import split_patterns as patterns
from pipelines.prepare.tokenize.engines.base import HuggingFaceEngine, utf8_of
from pipelines.prepare.tokenize.engines.package_engine import PackageEngine, encoding_parts
from pipelines.prepare.tokenize.engines.qualified import (
    NotQualified,
    reopened,
    require_ids_kept,
    require_merges_only,
    require_release,
)
from pipelines.prepare.tokenize.ragged import RaggedTokens

__all__ = ["FastokensEngine", "make_fastokens"]

_TRIED = ((0, 3, 5), (0, 3, 5))

_SPLITS = [[pattern] for pattern in (patterns.LLAMA3, patterns.QWEN2, patterns.QWEN35, patterns.O200K, patterns.TEKKEN)]
_SPLITS.append(list(patterns.DEEPSEEK))
_NO_CHANGE = {"type": "Sequence", "normalizers": []}
_NORMALIZERS: tuple[dict[str, Any] | None, ...] = (None, _NO_CHANGE, {"type": "NFC"})


def make_fastokens(reference: HuggingFaceEngine, *, dtype: np.dtype) -> FastokensEngine:
    """Open an engine for the reference's tokenizer; docs/explanation/engines.md argues why its ids are the reference's.

    Raises: NotQualified unless package and tokenizer are ones for which it is qualified.
    """
    require_ids_kept(reference.parts["post_processor"])
    parts = encoding_parts(reference)
    require_merges_only(parts, byte_fallback=False, dtype=dtype)
    vocabulary = parts["model"]["vocab"]
    if not vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet()):
        raise NotQualified("its vocabulary has no entry for some bytes")
    if max(vocabulary.values()) >= len(vocabulary):
        raise NotQualified("the ids of its vocabulary have holes")
    # Where one token takes the white space in which another begins, the reference drops the other one, or panics if
    # nothing of it is left; the package gives it in any case.
    added = parts["added_tokens"]
    if any(token["rstrip"] for token in added) and any(token["content"][0].isspace() for token in added):
        raise NotQualified("one of its added tokens takes the white space in which another one may begin")
    if parts["normalizer"] not in _NORMALIZERS:
        raise NotQualified("its normalizer is not NFC or nothing")
    if not _splits_as_tried(parts["pre_tokenizer"] or {}):
        raise NotQualified("its pre-tokenizer is not GPT-2's, and none of the expressions that are qualified")
    version = require_release("fastokens", tried=_TRIED)
    return FastokensEngine(reference, parts, version=version, dtype=dtype)


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
    plain = all(
        step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"] for step in steps[:-1]
    )
    return plain and [step["pattern"].get("Regex") for step in steps[:-1]] in _SPLITS


class FastokensEngine(PackageEngine):
    """Engine for byte-level BPE. It encodes each batch on all cores by itself."""

    name = "fastokens"

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (make_fastokens, self._reference, self._dtype)

    def _open(self, package: Any, parts: Mapping[str, Any]) -> Any:
        # The reference searches the raw text for added tokens first, then the normalized rest. The package does so
        # only where there is a normalizer.
        kinds = {token["normalized"] for token in parts["added_tokens"]}
        if parts["normalizer"] is None and len(kinds) == 2:
            parts = {**parts, "normalizer": _NO_CHANGE}
        return package.Tokenizer.from_json_str(json.dumps(parts, ensure_ascii=False))

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text."""
        runs = super().encode(texts)
        data, edges = utf8_of(texts)
        data = data[edges[0] : edges[-1]]
        first = data[:-1] == 0xC5
        if not (
            first.any() and (first & (data[1:] == 0xBF)).any()
        ):  # the bytes of a long s; most languages have neither
            return runs
        asked = np.flatnonzero(pc.match_substring(texts, "\u017f"))
        return self._reference.put_into(runs, texts, asked)

    def _encode(self, texts: pa.Array) -> RaggedTokens:
        ids, offsets = self._backend.encode_batch_flat(
            texts.to_pylist(), add_special_tokens=False, split_special_tokens=self._reference.split_special_tokens
        )
        return RaggedTokens(
            np.frombuffer(ids, "<u4").astype(self._dtype), np.frombuffer(offsets, "<u8").astype(np.int64)
        )
