"""Tokenizers of every kind that our own engines serve, and each engine compared with the Rust tokenizer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.qualifying import comparing
from tests.qualifying.comparing import INT32
from tests.qualifying.unigram_kinds import NORMALIZERS, altered
from tests.support.tokenizers_zoo import Zoo

__all__ = ["altered_kind", "assert_same", "bert", "check", "state_of"]


def state_of(zoo: Zoo, kind: str = "unigram") -> dict[str, Any]:
    """The content of a tokenizer.json."""
    state: dict[str, Any] = json.loads((zoo.path(kind) / "tokenizer.json").read_text(encoding="utf-8"))
    return state


def altered_kind(zoo: Zoo, kind: str = "t5 converted", **options: Any) -> Any:
    """A Unigram of that kind; with byte fallback, so that any other normalized text gives other ids."""
    normalizer, pre_tokenizer = NORMALIZERS[kind]
    given_options = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "byte_fallback": True, **options}
    return altered(state_of(zoo), **given_options)


def bert(zoo: Zoo, *, added: list[AddedToken] | None = None, **parts: dict[str, Any] | None) -> Any:
    """A cased WordPiece with some settings of its parts exchanged, or without a part, and some tokens added."""
    state = state_of(zoo, "wordpiece_cased")
    for part, values in parts.items():
        state[part] = None if values is None else {**state[part], **values}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    tokenizer.add_tokens(added or [])
    return tokenizer


def assert_same(got: RaggedTokens, expected: RaggedTokens, texts: list[str]) -> None:
    """Fails with the first text that differs."""
    if np.array_equal(got.offsets, expected.offsets) and np.array_equal(got.ids, expected.ids):
        return
    for index, text in enumerate(texts):
        one, other = (runs.ids[runs.offsets[index] : runs.offsets[index + 1]].tolist() for runs in (got, expected))
        assert one == other, ascii(text)
    raise AssertionError("the runs do not lie one behind the other")


def check(name: str, tokenizer: Any, texts: list[str]) -> Engine:
    """The engine of that name, compared twice: the second time words are remembered."""
    engine = comparing.opened(name, tokenizer)
    column = pa.array(texts, pa.string())
    expected = HuggingFaceEngine(tokenizer, dtype=INT32).encode(column)
    assert_same(engine.encode(column), expected, texts)
    assert_same(engine.encode(column), expected, texts)
    return engine
