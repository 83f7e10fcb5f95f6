"""Unigram tokenizers of every kind, opened as engines and compared with the Rust tokenizer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.unigram.encoder import UnigramEngine, open_unigram
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.qualifying.unigram_kinds import NORMALIZERS, altered
from tests.support.tokenizers_zoo import Zoo

__all__ = ["INT32", "altered_kind", "assert_same", "check", "opened", "state_of"]

INT32 = np.dtype(np.int32)


def state_of(zoo: Zoo) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((zoo.path("unigram") / "tokenizer.json").read_text(encoding="utf-8"))
    return state


def altered_kind(zoo: Zoo, kind: str = "t5 converted", **options: Any) -> Any:
    """A tokenizer of that kind; with byte fallback, so that any other normalized text gives other ids."""
    normalizer, pre_tokenizer = NORMALIZERS[kind]
    given_options = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "byte_fallback": True, **options}
    return altered(state_of(zoo), **given_options)


def opened(tokenizer: Any, *, dtype: np.dtype = INT32) -> UnigramEngine:
    engine = open_unigram(tokenizer, dtype=dtype)
    assert engine is not None
    return engine


def assert_same(got: RaggedTokens, expected: RaggedTokens, given_texts: list[str]) -> None:
    if np.array_equal(got.offsets, expected.offsets) and np.array_equal(got.ids, expected.ids):
        return
    for index, text in enumerate(given_texts):
        one, other = (runs.ids[runs.offsets[index] : runs.offsets[index + 1]].tolist() for runs in (got, expected))
        assert one == other, ascii(text)
    pytest.fail("the runs do not lie one behind the other")


def check(tokenizer: Any, given_texts: list[str]) -> UnigramEngine:
    """Twice, since the second time words are remembered."""
    engine = opened(tokenizer)
    column = pa.array(given_texts, pa.string())
    expected = HuggingFaceEngine(tokenizer, dtype=INT32).encode(column)
    assert_same(engine.encode(column), expected, given_texts)
    assert_same(engine.encode(column), expected, given_texts)
    return engine
