"""Small tokenizers with settings that no model in use has: what an engine must not take for granted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine
from pipelines.prepare.tokenize.library_failures import TextsNotEncoded

__all__ = [
    "BYTES",
    "INT32",
    "byte_level",
    "differing",
    "saved",
    "sentencepiece",
    "wrapped",
]

INT32 = np.dtype(np.int32)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def wrapped(backend: Tokenizer, **options: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=10**9, **options)


def saved(folder: Path, backend: Tokenizer) -> Path:
    """A folder that `--tokenizer` takes. The tokenizer needs a pad token."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_level(
    added: Iterable[AddedToken] = (),
    *,
    vocabulary: dict[str, int] | None = None,
    merges: Iterable[tuple[str, str]] = (),
    normalizer: Any = None,
    **model: Any,
) -> Tokenizer:
    """Byte-level BPE with GPT-2's pattern, which knows bytes alone unless told otherwise."""
    vocabulary = vocabulary or {letter: index for index, letter in enumerate(_ALPHABET)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges), **model))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_tokens(list(added))
    return backend


def sentencepiece(pieces: Iterable[str], merges: Iterable[tuple[str, str]] = ()) -> Tokenizer:
    """Llama 2's kind: byte fallback, and "▁" put in by the normalizer."""
    entries = ["<unk>", *BYTES, "▁", *pieces]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    model = models.BPE(vocab=vocabulary, merges=list(merges), unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


def differing(engine: Engine, tokenizer: Any, texts: list[str]) -> list[str]:
    """The texts of which the engine gives other ids than the Rust tokenizer, which may fail on one."""
    reference = HuggingFaceEngine(tokenizer, dtype=INT32)
    try:
        return _differing(engine, reference, texts)
    except TextsNotEncoded:
        return [text for text in texts if _ids(engine, text) != _ids(reference, text)]


def _differing(engine: Engine, reference: Engine, texts: list[str]) -> list[str]:
    column = pa.array(texts, pa.string())
    got, expected = engine.encode(column), reference.encode(column)
    pairs = zip(np.split(got.ids, got.offsets[1:-1]), np.split(expected.ids, expected.offsets[1:-1]), strict=True)
    return [text for text, (ours, theirs) in zip(texts, pairs, strict=True) if not np.array_equal(ours, theirs)]


def _ids(engine: Engine, text: str) -> list[int] | None:
    try:
        ids: list[int] = engine.encode(pa.array([text], pa.string())).ids.tolist()
    except TextsNotEncoded:
        return None
    return ids
