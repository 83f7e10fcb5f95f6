"""Small tokenizers with settings that no model in use has, and an engine compared with the Rust tokenizer on texts."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.qualifying import comparing
from tests.qualifying.comparing import INT32
from tests.qualifying.kinds import NORMALIZERS, altered
from tests.support.tokenizers_zoo import Zoo

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def wrapped(backend: Tokenizer, **options: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=10**9, **options)


def byte_level(
    added: Iterable[AddedToken] = (),
    *,
    vocabulary: dict[str, int] | None = None,
    merges: Iterable[tuple[str, str]] = (),
    normalizer: Any = None,
    **model: Any,
) -> Tokenizer:
    """Byte-level BPE with GPT-2's pattern and, by default, only bytes."""
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


def state_of(zoo: Zoo, kind: str = "unigram") -> dict[str, Any]:
    state: dict[str, Any] = json.loads((zoo.path(kind) / "tokenizer.json").read_text(encoding="utf-8"))
    return state


def altered_kind(zoo: Zoo, kind: str = "t5 converted", **options: Any) -> Any:
    """A Unigram of that kind; with byte fallback, so that any other normalized text gives other ids."""
    normalizer, pre_tokenizer = NORMALIZERS[kind]
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "byte_fallback": True, **options}
    return altered(state_of(zoo), **parts)


def bert(zoo: Zoo, *, added: list[AddedToken] | None = None, **parts: dict[str, Any] | None) -> Any:
    """A cased WordPiece with some settings of its parts exchanged, or without a part, and some tokens added."""
    state = state_of(zoo, "wordpiece_cased")
    for part, values in parts.items():
        state[part] = None if values is None else {**state[part], **values}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    tokenizer.add_tokens(added or [])
    return tokenizer


def assert_same(actual: RaggedTokens, expected: RaggedTokens, texts: list[str]) -> None:
    """Fails with the first text that differs."""
    if np.array_equal(actual.offsets, expected.offsets) and np.array_equal(actual.ids, expected.ids):
        return
    for index, text in enumerate(texts):
        one, other = (runs.ids[runs.offsets[index] : runs.offsets[index + 1]].tolist() for runs in (actual, expected))
        assert one == other, ascii(text)
    raise AssertionError("the runs do not lie one behind the other")


def check(name: str, tokenizer: Any, texts: list[str]) -> Engine:
    """The engine of that name, compared twice: the second time words are remembered."""
    engine = comparing.opened(name, tokenizer)
    differing = comparing.differing(engine, HuggingFaceEngine(tokenizer, dtype=INT32), texts, times=2)
    assert [ascii(texts[index]) for index in differing] == []
    return engine
