"""The Unigram engine gives the ids of the Rust tokenizer for texts of every kind."""

from __future__ import annotations

import functools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine, SlowEngine
from pipelines.prepare.tokenize.engines.unigram.encoder import UnigramEngine
from pipelines.prepare.tokenize.engines.unigram.kernels import MEMORY_WORDS
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.prepare.tokenize.engines.unigram_engines import INT32, altered_kind, assert_same, check, opened, state_of
from tests.qualifying.unigram_kinds import ADDED, NORMALIZERS, metaspace, white_split
from tests.support import texts
from tests.support.charsmaps import charsmap
from tests.support.speed import slow_but
from tests.support.tokenizers_zoo import Zoo

TEXTS = [*texts.HOSTILE, *texts.sentences(20, seed=3)]
# One for each way of treating spaces, and one for each step that looks at neighbours.
ONE_OF_EACH = ["t5", "t5 converted", "rembert", "nmt nfkc", "nfd"]
# Spaces that a normalizer makes, or merges, or that vanish; and what stands between them.
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\u00a0",
    "\u200b",
    "\u3000",
    "\x01",
    "\u200d",
    "\ufeff",
    "▁",
    "\x85",
]
LETTERS = [
    "a",
    "é",
    "e\u0301",
    "中",
    "ﬁ",
    "ﬁ\u0301",
    "각",
    "\u1100\u1161",
    "\u0600",
    "ا\u064e",
    "☃\ufe0f",
    "©\ufe0f",
    "🇩🇪",
    "\u0301",
]
any_text = st.text(st.one_of(st.sampled_from("  ae\n<>'`\u0301\u200d▁"), st.characters(codec="utf-8")), max_size=60)


@functools.cache
def _pair(zoo: Zoo, kind: str) -> tuple[UnigramEngine, HuggingFaceEngine]:
    tokenizer = altered_kind(zoo, kind)
    return opened(tokenizer), HuggingFaceEngine(tokenizer, dtype=INT32)


def _left_to_the_reference(engine: UnigramEngine, given_texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of the texts that the engine does not do itself."""
    left: list[str] = []
    put_into = HuggingFaceEngine.put_into

    def watched(self: HuggingFaceEngine, runs: RaggedTokens, column: pa.Array, indices: np.ndarray) -> RaggedTokens:
        left.extend(column.take(pa.array(indices)).to_pylist())
        return put_into(self, runs, column, indices)

    monkeypatch.setattr(HuggingFaceEngine, "put_into", watched)
    engine.encode(pa.array(given_texts, pa.string()))
    return left


@pytest.mark.parametrize("kind", ["unigram", "unigram_left"])
def test_ids_are_those_of_the_tokenizer_called_through_python(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    given_texts = [*TEXTS, *texts.mutated(10, seed=4)]
    column = pa.array(given_texts, pa.string())
    assert_same(opened(tokenizer).encode(column), SlowEngine(tokenizer, dtype=INT32).encode(column), given_texts)


@pytest.mark.parametrize("kind", slow_but(NORMALIZERS, *ONE_OF_EACH))
def test_every_kind_of_normalizer_and_words(zoo: Zoo, kind: str) -> None:
    rng = random.Random(kind)
    mixed = ["".join(rng.choice((*SPACES, *LETTERS, *SPACES[:2])) for _ in range(8)) for _ in range(400)]
    edges = [f"{space}a{space}{space}b{space}" for space in SPACES] + [space * 3 for space in SPACES]
    check(altered_kind(zoo, kind), [*TEXTS, *mixed, *edges])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_every_code_point_of_the_basic_plane_is_treated_as_by_the_tokenizer(zoo: Zoo, kind: str) -> None:
    points = [chr(point) for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    check(altered_kind(zoo, kind), [f"{point}ab{point} {point} a{point}" for point in points])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_every_code_point_beside_marks_and_what_joins(zoo: Zoo, kind: str) -> None:
    points = [chr(point) for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    check(altered_kind(zoo, kind), [f"{point}\u0334{point}\u094d \u1100{point}" for point in points])


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_texts=st.lists(any_text, max_size=20))
def test_any_text(zoo: Zoo, kind: str, given_texts: list[str]) -> None:
    engine, reference = _pair(zoo, kind)
    column = pa.array(given_texts, pa.string())
    assert_same(engine.encode(column), reference.encode(column), given_texts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_mutated_documents(zoo: Zoo, kind: str) -> None:
    check(altered_kind(zoo, kind), texts.mutated(100, seed=0))


@pytest.mark.parametrize("kind", ["t5", "t5 converted", "rembert"])
@pytest.mark.parametrize("flags", [{}, {"lstrip": True, "rstrip": True}, {"single_word": True}], ids=str)
def test_texts_that_hold_an_added_token(zoo: Zoo, kind: str, flags: dict[str, bool]) -> None:
    added = [AddedToken(content, normalized=False, **flags) for content in ADDED]
    forms = [
        "{}",
        "a {} b",
        "a{}b",
        "{0}{0}",
        "  {}  .",
        "é{}é",
        "A{}",
        "{}\x01",
        "x" * 20 + "{}",
        "{}" + "x" * 20,
        " {} ",
    ]
    given_texts = [form.replace("{0}", "{}").replace("{}", content) for content in ADDED for form in forms]
    almost = [
        part
        for content in ADDED
        for part in (content[:-1], content[1:], content.upper(), f"{content[:1]} {content[1:]}")
    ]
    check(altered_kind(zoo, kind, added=added), [*given_texts, *almost, *given_texts])


@pytest.mark.parametrize("kind", ["t5", "t5 converted", "albert", "rembert"])
def test_an_added_token_that_the_normalizer_brings_about_is_found(zoo: Zoo, kind: str) -> None:
    added = [AddedToken("<mask>", lstrip=True, normalized=True), AddedToken("fin", normalized=True)]
    spelled = [
        "<mask>",
        "＜mask＞",
        "<MASK>",
        "<ma\x01sk>",
        "ﬁn",
        "xﬁn",
        "fin ",
        "a <mask> b",
        "＜mask＞ fi n",
        "<mas k>",
    ]
    check(altered_kind(zoo, kind, added=added), [*spelled, *spelled, *TEXTS])


def test_what_is_remembered_of_a_normalized_word_is_not_taken_for_an_added_token(zoo: Zoo) -> None:
    tokenizer = altered_kind(zoo, "t5", added=[AddedToken("<s>", normalized=False)])
    check(tokenizer, ["＜s＞ ＜s＞ x", "<s> x", "＜s＞ <s> x, and more than sixteen bytes"])


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_are_split_where_the_tokenizer_is_told_so(zoo: Zoo, split: bool) -> None:
    tokenizer = zoo.tokenizer("unigram")
    tokenizer.split_special_tokens = split
    check(tokenizer, [*TEXTS, "a </s> b", "</s>", "<unk> <unk>x"])


class TestWhatIsLeftToTheReference:
    """Whole documents, and no more of them than need be."""

    def test_accents_apart_but_not_marks_of_other_scripts(self, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = opened(altered_kind(zoo, "t5"))
        easy = ["naïve", "हिन्दी में", "ภาษาไทย", "שָׁלוֹם", "한국어", "👩‍👩‍👧 👍🏽", "1️⃣", "a\r\nb", "“quoted” – dash"]
        hard = ["e\u0301", "ﬁ\u0301", "\u0600a"]
        assert _left_to_the_reference(engine, [*easy, *hard], monkeypatch) == hard

    def test_nothing_of_plain_english(self, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in ("t5", "t5 converted", "albert", "rembert", "nmt nfkc", "nfd", "none"):
            engine = opened(altered_kind(zoo, kind))
            assert _left_to_the_reference(engine, texts.sentences(20, seed=5), monkeypatch) == []


def _pieces_of_arrow() -> list[pa.Array]:
    column = pa.array(["", "the house", "é", "", "</s> x", "中文" * 9, "a" * 33, ""], pa.string())
    cut = [column.slice(start, size) for start in range(9) for size in range(9 - start)]
    return [pa.array([], pa.string()), *cut, *(piece.cast(pa.large_string()) for piece in cut)]


def test_slices_large_strings_and_no_texts_at_all(zoo: Zoo) -> None:
    tokenizer = altered_kind(zoo)
    engine, reference = opened(tokenizer), HuggingFaceEngine(tokenizer, dtype=INT32)
    for piece in _pieces_of_arrow():
        assert_same(engine.encode(piece), reference.encode(piece), piece.to_pylist())


@pytest.mark.parametrize("word", ["abcdefghijklmnopqrstu", "é", "中", "a!", " ", "the "], ids=ascii)
def test_a_text_that_ends_with_its_buffer_is_read_to_its_end_and_no_further(zoo: Zoo, word: str) -> None:
    tokenizer = altered_kind(zoo)
    engine, reference = opened(tokenizer), HuggingFaceEngine(tokenizer, dtype=INT32)
    for size in range(40):
        data = (word * 40)[:size].encode()
        edges = np.array([0, 0, len(data)], np.int32)
        column = pa.StringArray.from_buffers(2, pa.py_buffer(edges), pa.py_buffer(data))
        assert_same(engine.encode(column), reference.encode(column), column.to_pylist())


def test_more_ids_than_bytes(zoo: Zoo) -> None:
    markless = [entry for entry in state_of(zoo)["model"]["vocab"] if "▁" not in entry[0]]
    check(altered_kind(zoo, vocab=markless), ["\ufdfa" * 900, "a b " * 900])
    check(altered_kind(zoo, "pegasus"), ["㍿ﷲ" * 3_000, "a " * 9_000, "龘 " * 3_000])


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_ids_are_of_the_dtype_asked_for(zoo: Zoo, dtype: Any) -> None:
    runs = opened(altered_kind(zoo), dtype=np.dtype(dtype)).encode(pa.array(["the house", "</s>"]))
    assert runs.ids.dtype == dtype
    assert runs.offsets.dtype == np.int64


def test_bytes_that_stand_for_no_code_point_are_an_error(zoo: Zoo) -> None:
    engine = opened(altered_kind(zoo))
    for data in (b"a\xff", b"\x80", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        column = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
        with pytest.raises(UnicodeDecodeError):
            engine.encode(column)


def test_threads_that_share_an_engine_get_what_one_thread_gets(zoo: Zoo) -> None:
    tokenizer = altered_kind(zoo)
    batches = [pa.array([*texts.mutated(4, seed=seed), *TEXTS]) for seed in range(6)]
    reference = HuggingFaceEngine(tokenizer, dtype=INT32)
    engine = opened(tokenizer)
    with ThreadPoolExecutor(4) as pool:
        for batch, runs in zip(batches * 2, pool.map(engine.encode, batches * 2), strict=True):
            assert_same(runs, reference.encode(batch), batch.to_pylist())


@pytest.mark.slow
def test_more_words_than_can_be_remembered_change_nothing(zoo: Zoo) -> None:
    words = [np.base_repr(number, 36) for number in range(MEMORY_WORDS // 4)]
    texts_of_words = [" ".join(words[start::50]) for start in range(50)]
    engine = check(altered_kind(zoo, "t5"), texts_of_words)
    assert len(engine.encode(pa.array(texts_of_words)).ids) > 2 * len(words)


def test_tables_of_any_rules_are_followed(zoo: Zoo) -> None:
    """Entries that begin with a letter of several, that end in one another, that a carriage return begins."""
    rules = {
        "a": "bb",
        "é": "",
        "e\u0301": "é",
        "\r": "r",
        "\n": " ",
        "ch": "k",
        "中\u0301": "x",
        "\u0301": "",
        "ß": "s s",
        "\t": "\u2581",
    }
    step = {"type": "Precompiled", "precompiled_charsmap": charsmap(rules)}
    rng = random.Random(0)
    given_texts = ["".join(rng.choice([*rules, " ", "h", "c", "\u0301"]) for _ in range(7)) for _ in range(2_000)]
    for pre_tokenizer in (metaspace(), white_split()):
        check(altered_kind(zoo, normalizer=step, pre_tokenizer=pre_tokenizer), given_texts)
