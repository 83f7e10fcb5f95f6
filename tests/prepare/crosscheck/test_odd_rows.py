"""Rows with what engines stumble over are found, and compared as long as there are few of them."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.crosscheck.odd_rows import ALLOWANCE, EXTRA_ONE_IN, KINDS, OddRows
from pipelines.prepare.sources.columns.extraction import Rows

ADDED = ("[MASK]", "<tag>", "<tag>more", "<extra_id_7>", "  ", "|||A|||")
FILLER = "Some words, and – “quotes” – é, привет, 中文、カタカナ、한국어 < 5 [ok]\n\tmore | of it. "


def _rows(texts: list[str], kind: pa.DataType | None = None) -> Rows:
    return Rows(texts=(pa.array(texts, kind or pa.string()),), arrays={})


def _chosen(texts: list[str], *, added: tuple[str, ...] = ADDED) -> list[int]:
    return OddRows(added).chosen(_rows(texts)).tolist()


ODD = (
    *ADDED,
    *("<0x0A>", "\x00", "\x0b", "\x7f", "\x85", "\u00ad", "\u200b", "\u200d", "\ufeff", "\U000e0041"),
    *("e\u0301", "\u05b0", "\u093f", "\u0e31", "\u20dd", "\u302a", "\u3099", "\ufe0f", "\U0001d165"),
)


@pytest.mark.parametrize("odd", ODD)
def test_a_row_with_one_of_them_anywhere_is_chosen(odd: str) -> None:
    plain = FILLER * 3
    for at in (0, 1, 60, 61, 62, 63, 64, 65, len(plain)):
        assert _chosen([plain, plain[:at] + odd + plain[at:], plain, odd]) == [1, 3], at


def test_ordinary_text_is_not_chosen() -> None:
    assert _chosen([FILLER * 5, "", "<", "<0", "[MASK", "MASK]", "<ta", "<extra_id_8>", "|||", "\r\n\t"]) == []


def _is_odd(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category[0] == "M" or (category in ("Cc", "Cf") and letter not in "\t\n\r")


def test_every_mark_and_control_character_is_found_and_nothing_else() -> None:
    numbers = (*range(0xD800), *range(0xE000, 0x1F000, 5), *range(0xE0000, 0xE0200))
    letters = [letter for letter in map(chr, numbers) if letter != "<" and (ord(letter) % 7 == 0 or _is_odd(letter))]
    for start in range(0, len(letters), 100):
        some = letters[start : start + 100]
        found = _chosen([f"{'a' * 70}{letter}{'b' * 70}" for letter in some])
        assert found == [index for index, letter in enumerate(some) if _is_odd(letter)]


def test_a_name_over_two_texts_is_none() -> None:
    assert _chosen(["a <t", "ag> b", "[MA", "SK]", "<0", "x0A>", " ", " "]) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_slices_are_looked_at_where_they_lie(kind: pa.DataType) -> None:
    texts = pa.array(["<tag>", "plain", "a\x00", "plain", "\u0301"], kind)
    assert OddRows(ADDED).chosen(Rows(texts=(texts[1:4],), arrays={})).tolist() == [1]


def test_nested_texts_are_looked_at() -> None:
    messages = [
        [{"role": "user", "content": "plain"}, {"role": "assistant", "content": "more"}],
        [{"role": "user", "content": "plain"}, {"role": "assistant", "content": "a <tag> b"}],
        [],
        [{"role": "user", "content": "\u200b"}, {"role": "user", "content": None}],
    ]
    rows = Rows(
        texts=(), arrays={}, nested={"messages": pa.array(messages), "words": pa.array([["a"], ["b"], ["\x00"], []])}
    )
    assert OddRows(ADDED).chosen(rows).tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_choice_is_the_same_in_batches_of_any_size(size: int) -> None:
    rng = np.random.default_rng(3)
    odd = ["", "", "\x00", "e\u0301", "<tag>", "<0x41>", "\u0301<tag>"]
    texts = [FILLER * int(rng.integers(1, 20)) + odd[int(rng.integers(len(odd)))] for _ in range(2_000)]
    expected = OddRows(ADDED).chosen(_rows(texts))
    rows = OddRows(ADDED)
    parts = [start + rows.chosen(_rows(texts[start : start + size])) for start in range(0, len(texts), size)]
    assert np.concatenate(parts).tolist() == expected.tolist()
    assert 100 < len(expected) < 1_500


def test_a_text_full_of_them_costs_no_more_than_the_allowance() -> None:
    texts = [FILLER * 10 + "\x00\u0301<tag><0x41>"] * 20_000
    sizes = len(texts[0].encode()) + 128
    chosen = OddRows(ADDED).chosen(_rows(texts))
    assert len(chosen) * sizes <= len(KINDS) * (ALLOWANCE + sizes * len(texts) / EXTRA_ONE_IN)
    assert len(chosen) * sizes > ALLOWANCE / 2
    # It grows with the text, so that there is no end to looking.
    assert chosen[-1] > 0.9 * len(texts)


def test_a_common_kind_takes_nothing_from_a_rare_one() -> None:
    texts = [FILLER * 10 + "\u0301"] * 5_000
    for at in (10, 4_000, 4_900):
        texts[at] += "\x00"
    assert {10, 4_000, 4_900} <= set(_chosen(texts))


def test_as_many_added_tokens_as_possible_are_looked_for() -> None:
    plain = tuple(f"word{letter}" for letter in "abc")
    assert _chosen(["x wordb", "x"], added=("[CLS]", "<s>", *plain)) == [0]
