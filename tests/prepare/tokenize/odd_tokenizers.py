"""Small tokenizers with settings that no model in use has: what an engine must not take for granted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine, split_patterns
from pipelines.prepare.tokenize.library_failures import TextsNotEncoded

__all__ = [
    "BYTES",
    "INT32",
    "byte_level",
    "differing",
    "odd_byte_level",
    "odd_marked",
    "saved",
    "sentencepiece",
    "wrapped",
]

INT32 = np.dtype(np.int32)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_BYTES_OF_LETTERS = ["a", "b", "Ġ", "Ċ", "'", "1", "Ã", "©", "ä", "¸", "Ń"]


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


def odd_byte_level(seed: int) -> tuple[Any, list[str]]:
    """A tokenizer with merges in any order, entries that no merge makes, and added tokens of any sort; and texts."""
    rng = random.Random(seed)
    vocabulary, merges = _odd_merges(rng, list(_ALPHABET), _BYTES_OF_LETTERS)
    normalizer = normalizers.NFC() if rng.random() < 0.4 else None
    backend = byte_level(vocabulary=vocabulary, merges=merges, normalizer=normalizer, ignore_merges=rng.random() < 0.5)
    backend.pre_tokenizer = rng.choice(_byte_level_pre_tokenizers())
    letters = ["a", "b", "é", "e\u0301", "中", " ", "\n", "1", "'", "<a>"]
    backend.add_tokens(_odd_added(rng, letters, flags=("lstrip", "rstrip", "single_word", "normalized", "special")))
    tokenizer = wrapped(backend)
    tokenizer.split_special_tokens = rng.random() < 0.3
    return tokenizer, _odd_texts(rng, [*letters, "\u0301", "  ", "s", "ab", "中é"])


def odd_marked(seed: int) -> tuple[Any, list[str]]:
    """The same of SentencePiece's BPE."""
    rng = random.Random(seed)
    base = ["a", "b", "▁", "é", ".", ",", "!", "1"]
    vocabulary, merges = _odd_merges(rng, ["<unk>", *BYTES, *base], base)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    scheme = rng.choice(["always", "first", "never", ""])
    if scheme:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=rng.random() < 0.5)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    letters = ["a", "b", "é", "▁", " ", "\n", "1", ".", "<a>"]
    backend.add_tokens(_odd_added(rng, letters, flags=("lstrip", "normalized", "special")))
    return wrapped(backend), _odd_texts(rng, [*letters, "▁▁", "  ", ",", "!", "中", "ab", " a"])


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


def _byte_level_pre_tokenizers() -> list[Any]:
    llama3 = pre_tokenizers.Split(Regex(split_patterns.LLAMA3), "isolated")
    return [
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([llama3, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ]


def _odd_merges(
    rng: random.Random, entries: list[str], base: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids in any order; merges in any order, some of pieces that no merge makes."""
    pool, merges = list(base), set()
    for _ in range(rng.randint(3, 40)):
        left, right = rng.choice(pool), rng.choice(pool)
        if rng.random() < 0.1:
            left += rng.choice(base)  # an entry that no merge may make
        if len(left + right) <= 8:
            merges.add((left, right))
            pool.append(left + right)
            entries += [left, right, left + right]
    unique = list(dict.fromkeys(entries))
    numbers = list(range(len(unique)))
    if rng.random() < 0.5:
        rng.shuffle(numbers)
    ordered = sorted(merges)
    rng.shuffle(ordered)
    return dict(zip(unique, numbers, strict=True)), ordered


def _odd_added(rng: random.Random, letters: list[str], *, flags: tuple[str, ...]) -> list[AddedToken]:
    contents = {"".join(rng.choices(letters, k=rng.randint(1, 3))).strip("\u0301") for _ in range(rng.randint(0, 5))}
    return [
        AddedToken(content, **{"normalized": False, **{flag: rng.random() < 0.35 for flag in flags}})
        for content in sorted(
            {normalizers.NFC().normalize_str(content): content for content in sorted(contents)}.values()
        )
    ]


def _odd_texts(rng: random.Random, pieces: list[str]) -> list[str]:
    return ["".join(rng.choices(pieces, k=rng.randint(0, 30))) for _ in range(60)]
