"""Whole turns go, from one end, and no more of them than have to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.chat.cutting import Search, ranks
from pipelines.prepare.tokenize.chat.messages import Conversations

SHORT = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
sides = st.sampled_from(["left", "right"])
role_lists = st.lists(st.text("suatd", max_size=9), min_size=1, max_size=5)


def conversations(*roles: str) -> Conversations:
    """Of one message for each letter."""
    kind = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
    rows = [[{"role": SHORT[letter], "content": "x"} for letter in each] for each in roles]
    return Conversations.of(pa.array(rows, kind))


@pytest.mark.parametrize(
    ("side", "expected"), [("right", [1, 1, 1, 2, 2, 3, 3, 4]), ("left", [0, 3, 3, 2, 2, 2, 2, 1])]
)
def test_messages_rank_by_their_turns(side: Side, expected: list[int]) -> None:
    alone = ranks(conversations("suauatau"), side=side)
    assert alone.tolist() == expected
    assert ranks(conversations("ua", "suauatau", "", "au"), side=side)[2:10].tolist() == expected


@given(role_lists)
def test_what_is_cut_on_the_right_ends_with_an_answer(roles: list[str]) -> None:
    rank, owners = ranks(conversations(*roles), side="right"), conversations(*roles).owners
    for row, letters in enumerate(roles):
        own = rank[owners == row]
        for limit in range(1, int(own.max(initial=1))):
            kept = [letter for letter, each in zip(letters, own, strict=True) if each <= limit]
            assert "".join(kept) == letters[: len(kept)]
            assert kept[-1] == "a"


@given(role_lists)
def test_what_is_cut_on_the_left_begins_with_the_system_prompt_and_a_question(roles: list[str]) -> None:
    rank, owners = ranks(conversations(*roles), side="left"), conversations(*roles).owners
    for row, letters in enumerate(roles):
        own = rank[owners == row]
        opening = letters[: len(letters) - len(letters.lstrip("sd"))]
        for limit in range(1, int(own.max(initial=1))):
            kept = "".join(letter for letter, each in zip(letters, own, strict=True) if each <= limit)
            assert kept.startswith(opening)
            assert letters.endswith(kept[len(opening) :])
            assert kept[len(opening)] == "u"


@given(role_lists, sides, st.data())
def test_the_search_finds_the_highest_rank_that_fits(roles: list[str], side: Side, data: st.DataObject) -> None:
    chats = conversations(*roles)
    rank, owners = ranks(chats, side=side), chats.owners
    highest = np.zeros(len(roles), np.int64)
    np.maximum.at(highest, owners, rank)
    # The whole is known not to fit.
    limits = np.array([data.draw(st.integers(0, max(0, int(top) - 1))) for top in highest])
    search, found, tries = Search(rank, chats), np.zeros(len(roles), np.int64), 0
    while len(rows := search.rows):
        wanted = search.next()
        assert ((wanted > 0) & (wanted < highest[rows])).all()
        fits = wanted <= limits[rows]
        found[rows[fits]] = wanted[fits]
        search.tell(wanted, fits)
        tries += 1
    assert found.tolist() == limits.tolist()
    assert tries <= 4
