"""WordPiece only: settings of BERT's normalizer, limits of words, prefixes, and vocabularies of any kind."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.tokenize.engines.wordpiece.kernels import MEMORY_WORDS
from tests.prepare.tokenize.odd_tokenizers import bert, check
from tests.support import texts
from tests.support.tokenizers_zoo import Zoo

pytestmark = pytest.mark.engines

TEXTS = [*texts.HOSTILE, *texts.sentences(20, seed=3)]
FLAGS = [
    dict(zip(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), values, strict=True))
    for values in itertools.product((True, False), (True, False), (None, True, False), (True, False))
]
BARE = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
STRIPPED = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": False}
# Spacing marks with a combining class, which strip_accents leaves and NFD sorts, and others between which they stand.
MARKS = (
    "\u1b44\u1baa\u1bf2\u302e\u302f\ua953\ua9c0\U0001d15e\U0001d165\U0001d16d\U0001e000\u0301\u0323\u0334\u0345\x00ax "
)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(map(str, flags.values())))
def test_every_setting_of_the_normalizer_is_followed(zoo: Zoo, flags: dict[str, Any]) -> None:
    marked = [f"a{mark}{other}b" for mark in MARKS for other in MARKS]
    check("wordpiece", bert(zoo, normalizer=flags), [*TEXTS, *marked])


@pytest.mark.slow
def test_a_word_of_a_million_letters_is_one_unknown(zoo: Zoo) -> None:
    engine = check("wordpiece", zoo.tokenizer("wordpiece_uncased"), [texts.ONE_MB_WORD, "é" * 1_000_000])
    assert len(engine.encode(pa.array([texts.ONE_MB_WORD])).ids) == 1


@pytest.mark.parametrize("max_chars", [0, 1, 7, 8, 15, 16, 17, 100, 2**63])
def test_a_word_is_unknown_from_one_character_past_the_limit_on(zoo: Zoo, max_chars: int) -> None:
    sizes = [1, 2, 6, 7, 8, 9, 14, 15, 16, 17, 18, 99, 100, 101, 130]
    letters = ["a", "é", "e\u0301", "中", "각", "\x00a", "😀"]
    words = [letter * size for size in sizes for letter in letters]
    # The same word at a place where it is cut off by a longer one must not be taken for it.
    tokenizer = bert(zoo, model={"max_input_chars_per_word": max_chars})
    check("wordpiece", tokenizer, [*words, *words[::-1], " ".join(words), "!"])


def test_words_that_differ_in_nul_only_are_not_taken_for_each_other(zoo: Zoo) -> None:
    words = ["a", "a\x00", "a\x00\x00", "\x00a", "\x00", "\x00" * 8, "\x00" * 15, "\x00" * 16, "abcdefgh\x00"]
    check("wordpiece", bert(zoo, normalizer=BARE), [*words, "abcdefgh", *words[::-1], " ".join(words)])


@pytest.mark.parametrize("prefix", ["", "@@", "##a", "no such prefix", "é"])
def test_any_prefix_of_inner_pieces(zoo: Zoo, prefix: str) -> None:
    check("wordpiece", bert(zoo, model={"continuing_subword_prefix": prefix}), TEXTS)


@pytest.mark.slow
@given(
    st.sets(st.text(alphabet="abé中\U0001f600", min_size=1, max_size=7), max_size=30),
    st.lists(st.text(alphabet="abé中\U0001f600 ", max_size=40), min_size=1),
)
def test_any_vocabulary(zoo: Zoo, pieces: set[str], samples: list[str]) -> None:
    entries = ["[UNK]", *sorted(pieces), *(f"##{piece}" for piece in sorted(pieces)), "##", ""]
    vocab = {entry: 3 * index for index, entry in enumerate(entries)}
    check("wordpiece", bert(zoo, model={"vocab": vocab}, normalizer=BARE), samples)


@pytest.mark.slow
def test_a_large_vocabulary_in_which_every_byte_begins_and_goes_on(zoo: Zoo) -> None:
    vocab = {"[UNK]": 0, **{chr(point): point for point in range(1, 0xD800)}}
    vocab |= {f"##{chr(0xD7FF - point)}{chr(point)}": 60_000 + point for point in range(1, 0xD800, 3)}
    words = ["".join(map(chr, range(point, point + 60))) for point in range(1, 0xD000, 61)]
    check("wordpiece", bert(zoo, model={"vocab": vocab}, normalizer=BARE), words)


def test_more_words_than_can_be_remembered_change_nothing(zoo: Zoo) -> None:
    words = [np.base_repr(number, 36) for number in range(MEMORY_WORDS)]
    samples = [" ".join(words[start::50]) for start in range(50)]
    engine = check("wordpiece", bert(zoo, model={"continuing_subword_prefix": ""}), samples)
    assert len(engine.encode(pa.array(words)).ids) >= len(words)


def test_two_marks_that_remain_are_in_the_order_of_nfd(zoo: Zoo) -> None:
    vocabulary = {entry: number for number, entry in enumerate(["[UNK]", "a", "##\u302e", "##\u1b44"])}
    tokenizer = bert(zoo, normalizer=STRIPPED, model={"vocab": vocabulary}, post_processor=None)
    engine = check("wordpiece", tokenizer, ["a\u302e\u1b44", "a\u1b44\u302e", "a\u302e", "a\u302e\u1b44 a\u1b44"])
    assert engine.encode(pa.array(["a\u302e\u1b44"])).ids.tolist() == [1, 3, 2]
