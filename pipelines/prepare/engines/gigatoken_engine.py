"""SentencePiece's BPE by the package `gigatoken`: the ids of the Rust tokenizer.

Of that package only this is used. Its byte-level BPE is faster still, but knows letters that Unicode got later than the
reference did (U+A7CF and others), and its memory of words grows with the text, without a limit.

Texts go in and tokens come out as arrays of the package `awkward`, which it needs anyway: no string is made. Batches of
a megabyte and more are encoded on threads of its own; it does not hold the GIL then.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.engines.base import utf8_of
from pipelines.prepare.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.engines.qualified import encoding_parts, has_merges_only, installed
from pipelines.prepare.runs import TokenRuns, from_lists

__all__ = ["GigatokenEngine", "open_gigatoken"]

_TRIED = ((0, 10, 0), (0, 10, 0))

_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_MARK_ALL = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _MARK]}
_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def open_gigatoken(
    tokenizer: Any, *, dtype: np.dtype, reference: HuggingFaceEngine | None = None, any_version: bool = False
) -> GigatokenEngine | None:
    """An engine for this tokenizer; None unless package and tokenizer are ones for which it is qualified.

    That is a BPE with bytes for what it does not know, whose spaces become "▁" as Llama 2, Mistral and Gemma have it,
    and whose added tokens take no white space after them and may stand within words. `reference` is the Rust tokenizer,
    if it has been opened. `any_version` is for finding out
    whether an untried version of the package, or of the reference, can be qualified.
    """
    version = installed("gigatoken", tried=_TRIED, any_version=any_version)
    reference = reference or HuggingFaceEngine.of(tokenizer, dtype=dtype)
    if version is None or reference is None or tokenizer.split_special_tokens:
        return None
    parts = encoding_parts(reference)
    return GigatokenEngine(parts, version=version, dtype=dtype) if _is_qualified(parts, dtype=dtype) else None


def _is_qualified(parts: Mapping[str, Any], *, dtype: np.dtype) -> bool:
    return (
        has_merges_only(parts, byte_fallback=True, dtype=dtype)
        and not parts["model"]["ignore_merges"]
        and parts["model"]["vocab"].keys() >= {parts["model"]["unk_token"], *(f"<0x{byte:02X}>" for byte in range(256))}
        and not any(token["rstrip"] or token["single_word"] for token in parts["added_tokens"])
        and _marks_as_tried(parts["normalizer"], parts["pre_tokenizer"])
    )


def _marks_as_tried(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return normalizer == _MARK_ALL
    if pre_tokenizer["type"] == "Metaspace":
        return normalizer is None and pre_tokenizer["replacement"] == "▁"
    return normalizer == _MARK and pre_tokenizer == _AT_SPACES


class GigatokenEngine:
    """Encodes in several threads at once."""

    name = "gigatoken"
    concurrent = True

    def __init__(self, parts: Mapping[str, Any], *, version: str, dtype: np.dtype) -> None:
        """`parts`: the tokenizer.json."""
        self.version = version
        self._backend = importlib.import_module("gigatoken").Tokenizer.from_json(json.dumps(parts, ensure_ascii=False))
        self._dtype = dtype

    def encode(self, texts: pa.Array) -> TokenRuns:
        """The tokens of each text."""
        if not len(texts):
            return from_lists([], dtype=self._dtype)
        rows = self._backend.encode_batch(_strings(texts)).layout.to_ListOffsetArray64(True)
        offsets = np.asarray(rows.offsets.data)
        ids = np.asarray(rows.content.data)[: offsets[-1]]
        return TokenRuns(ids.astype(self._dtype), offsets.astype(np.int64))


def _strings(texts: pa.Array) -> Any:
    """The texts as an array of the other library, over the same bytes."""
    awkward = importlib.import_module("awkward")
    data, edges = utf8_of(texts)
    letters = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
    index = awkward.index.Index64(edges)
    return awkward.Array(awkward.contents.ListOffsetArray(index, letters, parameters={"__array__": "string"}))
