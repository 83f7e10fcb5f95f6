"""SentencePiece's BPE with the package `gigatoken`: the ids of the Rust tokenizer.

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

__all__ = ["GigatokenEngine", "make_gigatoken"]

_TRIED = ((0, 10, 0), (0, 10, 0))

_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_MARK_ALL = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _MARK]}
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def make_gigatoken(reference: HuggingFaceEngine, *, dtype: np.dtype) -> GigatokenEngine:
    """Open an engine for the reference's tokenizer; docs/explanation/engines.md argues why its ids are the reference's.

    Raises: NotQualified unless package and tokenizer are ones for which it is qualified.
    """
    require_ids_kept(reference.parts["post_processor"])
    parts = encoding_parts(reference)
    _require_model(parts, dtype=dtype)
    if reference.split_special_tokens:
        raise NotQualified("it splits special tokens")
    for flag in ("rstrip", "single_word"):
        if any(token[flag] for token in parts["added_tokens"]):
            raise NotQualified(f"one of its added tokens has the flag {flag}")
    if not _marks_as_tried(parts["normalizer"], parts["pre_tokenizer"]):
        raise NotQualified("its normalizer and pre-tokenizer mark spaces in another way than those that are qualified")
    version = require_release("gigatoken", tried=_TRIED)
    return GigatokenEngine(reference, parts, version=version, dtype=dtype)


def _require_model(parts: Mapping[str, Any], *, dtype: np.dtype) -> None:
    require_merges_only(parts, byte_fallback=True, dtype=dtype)
    model = parts["model"]
    if model["ignore_merges"]:
        raise NotQualified("its BPE ignores merges")
    if not model["vocab"].keys() >= _BYTES:
        raise NotQualified("its vocabulary has no entry for some bytes")
    # Nothing is unknown where each byte has an entry, and `transformers` opens Llama 2 without an unknown token.
    if model["unk_token"] is not None and model["unk_token"] not in model["vocab"]:
        raise NotQualified("its vocabulary has no entry for what is unknown")
    for entry in model["vocab"]:  # of <0x0A> the package looks at the shape only
        like_byte = entry.startswith("<0x") and entry.endswith(">") and len(entry.encode()) == len("<0x00>")
        if like_byte and entry not in _BYTES:
            raise NotQualified(f"its entry {entry!r} would be taken for a byte")
    for left, right in model["merges"]:
        if right in _BYTES or (left[:1] == "<" and (left in _BYTES or left + right in _BYTES)):
            raise NotQualified(f"its merge of {left!r} and {right!r} makes or uses an entry for a byte")


def _marks_as_tried(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return normalizer == _MARK_ALL
    if pre_tokenizer["type"] == "Metaspace":
        return normalizer is None and pre_tokenizer["replacement"] == "▁"
    return normalizer == _MARK and pre_tokenizer == _AT_SPACES


class GigatokenEngine(PackageEngine):
    """Engine for SentencePiece's BPE with the package `gigatoken`."""

    name = "gigatoken"

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (make_gigatoken, self._reference, self._dtype)

    def _open(self, package: Any, parts: Mapping[str, Any]) -> Any:
        importlib.import_module("awkward")
        return package.Tokenizer.from_json(json.dumps(parts, ensure_ascii=False))

    def _encode(self, texts: pa.Array) -> RaggedTokens:
        awkward = importlib.import_module("awkward")
        data, edges = utf8_of(texts)
        letters = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
        index = awkward.index.Index64(edges)
        strings = awkward.contents.ListOffsetArray(index, letters, parameters={"__array__": "string"})
        rows = self._backend.encode_batch(awkward.Array(strings)).layout.to_ListOffsetArray64(True)
        offsets = np.asarray(rows.offsets.data)
        ids = np.asarray(rows.content.data)[: offsets[-1]]
        return RaggedTokens(ids.astype(self._dtype), offsets.astype(np.int64))
