"""The kernels step over the white space that `str.strip` takes off."""

from __future__ import annotations

import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.tokenize.chat.spaces import SPACES, after_spaces, before_spaces

WHITE = [chr(point) for point in range(sys.maxunicode + 1) if chr(point).isspace()]
NEARLY = ["\u200b", "\u2060", "\ufeff", "\u180e", "\x00", "\x1b"]
letters = st.sampled_from([*WHITE, *NEARLY, "a", "é", "漢", "👍", "\u3001", "\u0301"]) | st.characters(codec="utf-8")


@settings(deadline=None)  # the first call compiles
@given(st.text(letters, max_size=12), st.text(letters, max_size=3))
def test_ends_are_stripped_as_python_strips_them(text: str, around: str) -> None:
    data = np.frombuffer(f"{around}{text}{around}".encode(), np.uint8)
    first, size = len(around.encode()), len(text.encode())
    after = after_spaces(data, first, first + size, SPACES)
    assert after - first == size - len(text.lstrip().encode())
    assert before_spaces(data, first, first + size, SPACES) - first == len(text.rstrip().encode())


def test_the_table_has_all_white_space_that_there_is() -> None:
    assert [chr(point) for point in np.flatnonzero(SPACES)] == WHITE
