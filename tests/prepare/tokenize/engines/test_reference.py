"""The reference engine gives the ids of `tokenizer(text, add_special_tokens=False)`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.engines import HuggingFaceEngine, SlowEngine, open_reference
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, KINDS, Zoo

INT32 = np.dtype(np.int32)
TEXTS = [*texts.HOSTILE, *texts.sentences(20, seed=3), *texts.mutated(20, seed=4)]
# Loading it takes seconds: there is an object for each of the 1.1 million code points.
KINDS_TO_TRY = [pytest.param(kind, marks=pytest.mark.slow) if kind == "slow_canine" else kind for kind in KINDS]


def _column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.string())


def _to_lists(runs: RaggedTokens) -> list[list[int]]:
    return [runs.ids[start:stop].tolist() for start, stop in zip(runs.offsets, runs.offsets[1:], strict=False)]


@pytest.mark.parametrize("kind", KINDS_TO_TRY)
def test_ids_are_those_of_the_tokenizer(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    engine = open_reference(tokenizer, dtype=INT32)
    assert engine.name == ("hf" if kind in FAST_KINDS else "slow")
    assert (
        _to_lists(engine.encode(_column(TEXTS)))
        == tokenizer(TEXTS, add_special_tokens=False, verbose=False)["input_ids"]
    )


@pytest.mark.slow
def test_ids_of_canine_above_two_bytes_keep_their_values(zoo: Zoo) -> None:
    ids = open_reference(zoo.tokenizer("slow_canine"), dtype=INT32).encode(_column(["a😀\U0010ffff"]))
    assert ids.ids.tolist() == [ord("a"), 0x1F600, 0x10FFFF]


@pytest.mark.parametrize("kind", ["byte_bpe", "slow_byt5"])
def test_no_texts_give_no_runs(zoo: Zoo, kind: str) -> None:
    assert len(open_reference(zoo.tokenizer(kind), dtype=INT32).encode(_column([]))) == 0


def test_a_fast_tokenizer_whose_python_layer_changes_texts_is_called_through_it(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("wordpiece_cased")
    kind = type(tokenizer)

    class Shouting(kind):  # type: ignore[misc, valid-type]
        def __call__(self, texts: list[str], **options: Any) -> Any:
            return super().__call__([text.upper() for text in texts], **options)

    tokenizer.__class__ = Shouting
    engine = open_reference(tokenizer, dtype=INT32)
    assert isinstance(engine, SlowEngine)
    plain = zoo.tokenizer("wordpiece_cased")
    assert (
        engine.encode(_column(["a word"])).ids.tolist() == plain(["A WORD"], add_special_tokens=False)["input_ids"][0]
    )


def test_the_copy_of_a_tokenizer_that_was_called_with_truncation_does_not_truncate(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("byte_bpe_roberta")
    expected = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    tokenizer(["a b c d e"], truncation=True, max_length=4, padding="max_length")
    assert _to_lists(HuggingFaceEngine(tokenizer, dtype=INT32).encode(_column(TEXTS))) == expected


def test_threads_that_share_an_engine_get_what_one_thread_gets(zoo: Zoo) -> None:
    engine = open_reference(zoo.tokenizer("unigram"), dtype=INT32)
    batches = [_column(TEXTS[start::7]) for start in range(7)]
    alone = [_to_lists(engine.encode(batch)) for batch in batches]
    assert engine.concurrent
    with ThreadPoolExecutor(4) as pool:
        assert [_to_lists(runs) for runs in pool.map(engine.encode, batches)] == alone
