"""The WordPiece engine gives the ids of the Rust tokenizer, or does not open."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine, SlowEngine
from pipelines.prepare.tokenize.engines.wordpiece.encoder import WordPieceEngine, open_wordpiece
from pipelines.prepare.tokenize.engines.wordpiece.kernels import MEMORY_WORDS
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.support import texts
from tests.support.speed import slow_but
from tests.support.tokenizers_zoo import Zoo

INT32 = np.dtype(np.int32)
TEXTS = [*texts.HOSTILE, *texts.sentences(20, seed=3)]
FLAGS = [
    dict(zip(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), values, strict=True))
    for values in itertools.product((True, False), (True, False), (None, True, False), (True, False))
]
# Their normalizers differ in every step.
CASED, UNCASED, BARE, ACCENTED = (
    {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": False},
    {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False},
    {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": True},
)
# Spacing marks with a combining class, which strip_accents leaves and NFD sorts, and others between which they stand.
MARKS = (
    "\u1b44\u1baa\u1bf2\u302e\u302f\ua953\ua9c0\U0001d15e\U0001d165\U0001d16d\U0001e000\u0301\u0323\u0334\u0345\x00ax "
)


def _with(zoo: Zoo, parts: dict[str, dict[str, Any]], *, added: list[AddedToken] | None = None) -> Any:
    """A cased tokenizer with some settings of its parts exchanged, and some tokens added."""
    state = json.loads((zoo.path("wordpiece_cased") / "tokenizer.json").read_text(encoding="utf-8"))
    for part, values in parts.items():
        state[part].update(values)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    tokenizer.add_tokens(added or [])
    return tokenizer


def _opened(tokenizer: Any, *, dtype: np.dtype = INT32) -> WordPieceEngine:
    engine = open_wordpiece(tokenizer, dtype=dtype)
    assert engine is not None
    return engine


def _assert_same(got: RaggedTokens, expected: RaggedTokens, given_texts: list[str]) -> None:
    if np.array_equal(got.offsets, expected.offsets) and np.array_equal(got.ids, expected.ids):
        return
    for index, text in enumerate(given_texts):
        one, other = (runs.ids[runs.offsets[index] : runs.offsets[index + 1]].tolist() for runs in (got, expected))
        assert one == other, ascii(text)
    pytest.fail("the runs do not lie one behind the other")


def _check(tokenizer: Any, given_texts: list[str]) -> WordPieceEngine:
    engine = _opened(tokenizer)
    column = pa.array(given_texts, pa.string())
    _assert_same(engine.encode(column), HuggingFaceEngine(tokenizer, dtype=INT32).encode(column), given_texts)
    return engine


@pytest.mark.parametrize("kind", ["wordpiece_uncased", "wordpiece_cased", "truncation_left"])
def test_ids_are_those_of_the_tokenizer_called_through_python(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    given_texts = [*TEXTS, *texts.mutated(10, seed=4)]
    column = pa.array(given_texts, pa.string())
    _assert_same(_opened(tokenizer).encode(column), SlowEngine(tokenizer, dtype=INT32).encode(column), given_texts)


@pytest.mark.parametrize("flags", slow_but(FLAGS, *FLAGS[::5]), ids=lambda flags: "-".join(map(str, flags.values())))
def test_every_setting_of_the_normalizer_is_followed(zoo: Zoo, flags: dict[str, Any]) -> None:
    _check(_with(zoo, {"normalizer": flags}), [*TEXTS, *(f"a{mark}{other}b" for mark in MARKS for other in MARKS)])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [CASED, UNCASED, BARE, ACCENTED], ids=["cased", "uncased", "bare", "accented"])
def test_every_code_point_of_the_basic_plane_is_treated_as_by_the_tokenizer(zoo: Zoo, flags: dict[str, Any]) -> None:
    points = [chr(point) for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    where = ["{}", "ab{}ab", "{}ab {}"] if flags is UNCASED else ["b{}ab{}"]
    _check(_with(zoo, {"normalizer": flags}), [form.replace("{}", point) for point in points for form in where])


@pytest.mark.slow
def test_every_code_point_between_letters_and_marks_that_nfd_sorts(zoo: Zoo) -> None:
    flags = {**CASED, "strip_accents": True}
    points = [chr(point) for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    _check(_with(zoo, {"normalizer": flags}), [f"a\u302e{point}\u1b44b \U0001e000{point}" for point in points])


@pytest.mark.slow
def test_mutated_documents(zoo: Zoo) -> None:
    _check(zoo.tokenizer("wordpiece_uncased"), texts.mutated(300, seed=0))


@pytest.mark.slow
def test_a_word_of_a_million_letters_is_one_unknown(zoo: Zoo) -> None:
    engine = _check(zoo.tokenizer("wordpiece_uncased"), [texts.ONE_MB_WORD, "é" * 1_000_000])
    assert len(engine.encode(pa.array([texts.ONE_MB_WORD])).ids) == 1


@pytest.mark.parametrize("max_chars", [0, 1, 7, 8, 15, 16, 17, 100, 2**63])
def test_a_word_is_unknown_from_one_character_past_the_limit_on(zoo: Zoo, max_chars: int) -> None:
    sizes = [1, 2, 6, 7, 8, 9, 14, 15, 16, 17, 18, 99, 100, 101, 130]
    letters = ["a", "é", "e\u0301", "中", "각", "\x00a", "😀"]
    words = [letter * size for size in sizes for letter in letters]
    # The same word at a place where it is cut off by a longer one must not be taken for it.
    _check(_with(zoo, {"model": {"max_input_chars_per_word": max_chars}}), [*words, *words[::-1], " ".join(words), "!"])


def test_words_that_differ_in_nul_only_are_not_taken_for_each_other(zoo: Zoo) -> None:
    words = [
        "a",
        "a\x00",
        "a\x00\x00",
        "\x00a",
        "\x00",
        "\x00" * 8,
        "\x00" * 15,
        "\x00" * 16,
        "abcdefgh\x00",
        "abcdefgh",
    ]
    _check(_with(zoo, {"normalizer": BARE}), [*words, *words[::-1], " ".join(words)])


def test_control_characters_split_nothing_if_they_are_cleaned_away(zoo: Zoo) -> None:
    controls = [chr(point) for point in [*range(32), *range(0x7F, 0xA0), 0xAD, 0x200B, 0xFEFF, 0xFFFD]]
    _check(
        zoo.tokenizer("wordpiece_uncased"), [f"hou{control}se {control}the{control} {control}" for control in controls]
    )


@pytest.mark.parametrize("prefix", ["", "@@", "##a", "no such prefix", "é"])
def test_any_prefix_of_inner_pieces(zoo: Zoo, prefix: str) -> None:
    _check(_with(zoo, {"model": {"continuing_subword_prefix": prefix}}), TEXTS)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(), max_size=20))
def test_any_text(zoo: Zoo, given_texts: list[str]) -> None:
    _check(zoo.tokenizer("wordpiece_uncased"), given_texts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sets(st.text(alphabet="abé中\U0001f600", min_size=1, max_size=7), max_size=30),
    st.lists(st.text(alphabet="abé中\U0001f600 ", max_size=40), min_size=1),
)
def test_any_vocabulary(zoo: Zoo, pieces: set[str], given_texts: list[str]) -> None:
    entries = ["[UNK]", *sorted(pieces), *(f"##{piece}" for piece in sorted(pieces)), "##", ""]
    vocab = {entry: 3 * index for index, entry in enumerate(entries)}
    _check(_with(zoo, {"model": {"vocab": vocab}, "normalizer": BARE}), given_texts)


@pytest.mark.slow
def test_a_large_vocabulary_in_which_every_byte_begins_and_goes_on(zoo: Zoo) -> None:
    vocab = {"[UNK]": 0, **{chr(point): point for point in range(1, 0xD800)}}
    vocab |= {f"##{chr(0xD7FF - point)}{chr(point)}": 60_000 + point for point in range(1, 0xD800, 3)}
    words = ["".join(map(chr, range(point, point + 60))) for point in range(1, 0xD000, 61)]
    _check(_with(zoo, {"model": {"vocab": vocab}, "normalizer": BARE}), words)


ADDED_CONTENTS = ["[X]", "house", "the", " of", "é!", "中", "<a b>", "\x00", "[X] [Y]", "!", "0"]


@pytest.mark.parametrize("content", ADDED_CONTENTS, ids=ascii)
@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("single_word", [False, True])
def test_texts_that_hold_an_added_token(zoo: Zoo, content: str, strips: bool, single_word: bool) -> None:
    token = AddedToken(content, normalized=False, lstrip=strips, rstrip=strips, single_word=single_word)
    forms = ["{}", "a {} b", "a{}b", "{0}{0}", "  {}  .", "é{}é", "A{}", "{}\x00", "x" * 20 + "{}", "{}" + "x" * 20]
    given_texts = [form.replace("{0}", "{}").replace("{}", content) for form in forms]
    almost = [content[:-1], content[1:], content.upper(), content[::-1], f"{content[:1]} {content[1:]}"]
    _check(_with(zoo, {}, added=[token]), [*given_texts, *almost, *texts.sentences(5, seed=1)])


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_are_split_where_the_tokenizer_is_told_so(zoo: Zoo, split: bool) -> None:
    tokenizer = zoo.tokenizer("wordpiece_uncased")
    tokenizer.split_special_tokens = split
    engine = _check(tokenizer, TEXTS)
    assert (engine.encode(pa.array(["[MASK]"])).ids.tolist() == [tokenizer.mask_token_id]) is not split


def _pieces_of_arrow() -> list[pa.Array]:
    column = pa.array(["", "the house", "é", "", "[MASK] x", "中文" * 9, "a" * 33, ""], pa.string())
    cut = [column.slice(start, size) for start in range(9) for size in range(9 - start)]
    return [pa.array([], pa.string()), *cut, *(piece.cast(pa.large_string()) for piece in cut)]


def test_slices_large_strings_and_no_texts_at_all(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("wordpiece_uncased")
    engine, reference = _opened(tokenizer), HuggingFaceEngine(tokenizer, dtype=INT32)
    for piece in _pieces_of_arrow():
        _assert_same(engine.encode(piece), reference.encode(piece), piece.to_pylist())


@pytest.mark.parametrize("word", ["abcdefghijklmnopqrstu", "é", "中", "a!", " "], ids=ascii)
def test_a_text_that_ends_with_its_buffer_is_read_to_its_end_and_no_further(zoo: Zoo, word: str) -> None:
    tokenizer = zoo.tokenizer("wordpiece_uncased")
    engine, reference = _opened(tokenizer), HuggingFaceEngine(tokenizer, dtype=INT32)
    for size in range(40):
        data = (word * 40)[:size].encode()
        edges = np.array([0, 0, len(data)], np.int32)
        column = pa.StringArray.from_buffers(2, pa.py_buffer(edges), pa.py_buffer(data))
        _assert_same(engine.encode(column), reference.encode(column), column.to_pylist())


def test_words_of_neighbouring_texts_stay_apart(zoo: Zoo) -> None:
    words = [letter * size for size in range(20) for letter in "hé中"]
    engine = _check(zoo.tokenizer("wordpiece_uncased"), words)
    together = engine.encode(pa.array(words))
    assert [engine.encode(pa.array([word])).ids.tolist() for word in words] == [
        together.ids[start:stop].tolist() for start, stop in itertools.pairwise(together.offsets)
    ]


def test_ids_are_of_the_dtype_asked_for(zoo: Zoo) -> None:
    engine = _opened(zoo.tokenizer("wordpiece_cased"), dtype=np.dtype(np.uint16))
    runs = engine.encode(pa.array(["the house", "[CLS]"]))
    assert runs.ids.dtype == np.uint16
    assert runs.offsets.dtype == np.int64


def test_bytes_that_stand_for_no_code_point_are_an_error(zoo: Zoo) -> None:
    engine = _opened(zoo.tokenizer("wordpiece_uncased"))
    for data in (b"a\xff", b"\x80", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        column = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
        with pytest.raises(UnicodeDecodeError):
            engine.encode(column)


def test_threads_that_share_an_engine_get_what_one_thread_gets(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("wordpiece_uncased")
    batches = [pa.array([*texts.mutated(4, seed=seed), *TEXTS]) for seed in range(6)]
    reference = HuggingFaceEngine(tokenizer, dtype=INT32)
    engine = _opened(tokenizer)
    with ThreadPoolExecutor(4) as pool:
        for batch, runs in zip(batches * 2, pool.map(engine.encode, batches * 2), strict=True):
            _assert_same(runs, reference.encode(batch), batch.to_pylist())


def test_more_words_than_can_be_remembered_change_nothing(zoo: Zoo) -> None:
    words = [np.base_repr(number, 36) for number in range(MEMORY_WORDS)]
    texts_of_words = [" ".join(words[start::50]) for start in range(50)]
    engine = _check(_with(zoo, {"model": {"continuing_subword_prefix": ""}}), [*texts_of_words, *texts_of_words])
    assert len(engine.encode(pa.array(words)).ids) >= len(words)


class TestRefusals:
    """`open_wordpiece` says None rather than guess."""

    @pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "bpe_fallback", "slow_byt5"])
    def test_of_tokenizers_of_another_kind(self, zoo: Zoo, kind: str) -> None:
        assert open_wordpiece(zoo.tokenizer(kind), dtype=INT32) is None

    @pytest.mark.parametrize(("part", "kind"), [("normalizer", "Lowercase"), ("pre_tokenizer", "Whitespace")])
    def test_of_steps_of_another_kind(self, zoo: Zoo, part: str, kind: str) -> None:
        assert open_wordpiece(_with(zoo, {part: {"type": kind}}), dtype=INT32) is None

    @pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
    def test_of_steps_that_are_missing(self, zoo: Zoo, part: str) -> None:
        state = json.loads((zoo.path("wordpiece_cased") / "tokenizer.json").read_text(encoding="utf-8"))
        state[part] = None
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
        assert open_wordpiece(tokenizer, dtype=INT32) is None

    def test_of_an_added_token_that_is_looked_for_in_normalized_text(self, zoo: Zoo) -> None:
        assert open_wordpiece(_with(zoo, {}, added=[AddedToken("new", normalized=True)]), dtype=INT32) is None

    def test_of_a_vocabulary_without_the_unknown_token(self, zoo: Zoo) -> None:
        assert open_wordpiece(_with(zoo, {"model": {"unk_token": "[NONE]"}}), dtype=INT32) is None

    def test_of_ids_that_the_dtype_cannot_hold(self, zoo: Zoo) -> None:
        assert open_wordpiece(zoo.tokenizer("wordpiece_cased"), dtype=np.dtype(np.uint8)) is None

    def test_of_a_template_that_repeats_the_text(self, zoo: Zoo) -> None:
        twice = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
        assert open_wordpiece(_with(zoo, {"post_processor": {"single": twice}}), dtype=INT32) is None
