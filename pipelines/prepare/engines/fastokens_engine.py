"""Byte-level BPE by the package `fastokens`: the ids of the Rust tokenizer, fifty times as fast.

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
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import pre_tokenizers

from pipelines.prepare.engines import split_patterns
from pipelines.prepare.engines.base import utf8_of
from pipelines.prepare.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.engines.qualified import encoding_parts, has_merges_only, installed
from pipelines.prepare.runs import TokenRuns
from tfrecord_io._kernels import frozen, jit

__all__ = ["FastokensEngine", "open_fastokens"]

_LONG_S = "\u017f"

_TRIED = ((0, 3, 5), (0, 3, 5))

_BLOCK = 1 << 14  # bytes

_ALONE = (split_patterns.LLAMA3, split_patterns.QWEN2, split_patterns.QWEN35, split_patterns.O200K)
_SPLITS = [[pattern] for pattern in (*_ALONE, split_patterns.TEKKEN)] + [list(split_patterns.DEEPSEEK)]
_NORMALIZERS: tuple[dict[str, Any] | None, ...] = (None, {"type": "NFC"})


def open_fastokens(
    tokenizer: Any, *, dtype: np.dtype, reference: HuggingFaceEngine | None = None, any_version: bool = False
) -> FastokensEngine | None:
    """An engine for this tokenizer; None unless package and tokenizer are ones for which it is qualified.

    That is a byte-level BPE with every byte in its vocabulary, without a normalizer or with NFC, that splits by
    GPT-2's pattern or one of `split_patterns`; its added tokens may be of any sort. `reference` is the Rust
    tokenizer, if it has been opened. `any_version` is for finding out
    whether an untried version of the package, or of the reference, can be qualified.
    """
    version = installed("fastokens", tried=_TRIED, any_version=any_version)
    reference = reference or HuggingFaceEngine.of(tokenizer, dtype=dtype)
    if version is None or reference is None or not _is_qualified(encoding_parts(reference), dtype=dtype):
        return None
    return FastokensEngine(
        reference,
        encoding_parts(reference),
        version=version,
        dtype=dtype,
        split_special_tokens=tokenizer.split_special_tokens,
    )


def _is_qualified(parts: Mapping[str, Any], *, dtype: np.dtype) -> bool:
    return (
        has_merges_only(parts, byte_fallback=False, dtype=dtype)
        and parts["model"]["vocab"].keys() >= set(pre_tokenizers.ByteLevel.alphabet())
        and parts["normalizer"] in _NORMALIZERS
        and _splits_as_tried(parts["pre_tokenizer"] or {})
    )


def _splits_as_tried(pre_tokenizer: dict[str, Any]) -> bool:
    """GPT-2's pattern, after a split at each digit or not; or expressions, then bytes without a pattern."""
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
    """Threads may share it, but each batch is encoded on all cores anyway."""

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
        """`reference`: for the texts that are left to it. `parts`: the tokenizer.json."""
        self.version = version
        self._backend = importlib.import_module("fastokens").Tokenizer.from_json_str(
            json.dumps(parts, ensure_ascii=False)
        )
        self._reference = reference
        self._dtype = dtype
        self._split_special_tokens = split_special_tokens

    def encode(self, texts: pa.Array) -> TokenRuns:
        """The tokens of each text."""
        runs = self._encode(texts)
        data, edges = utf8_of(texts)
        if not _has_pair(frozen(data[edges[0] : edges[-1]]), *np.frombuffer(_LONG_S.encode(), np.uint8)):
            return runs
        return self._reference.put_into(runs, texts, np.flatnonzero(pc.match_substring(texts, _LONG_S)))

    def _encode(self, texts: pa.Array) -> TokenRuns:
        ids, offsets = self._backend.encode_batch_flat(
            texts.to_pylist(), add_special_tokens=False, split_special_tokens=self._split_special_tokens
        )
        return TokenRuns(np.frombuffer(ids, "<u4").astype(self._dtype), np.frombuffer(offsets, "<u8").astype(np.int64))


@jit
def _has_pair(data, first, second):  # type: ignore[no-untyped-def]
    """Whether two bytes stand side by side anywhere: in blocks, since a loop that may end at any byte is no SIMD."""
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
