"""Which lengths of rows there are, and which of them a row gets."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.options.bucket_lengths import automatic_count, choose, length_index, parse
from pipelines.prepare.options.config import LayoutConfig
from tfrecord_io.errors import ConfigError


def positions(row_tokens: list[int], lengths: tuple[int, ...], weights: list[int]) -> int:
    return sum(
        weight * min([length for length in lengths if length >= tokens] or [lengths[-1]])
        for tokens, weight in zip(row_tokens, weights, strict=True)
    )


@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 5)), min_size=1, max_size=12),
    count=st.integers(1, 4),
    longest=st.integers(1, 64),
    fixed=st.booleans(),
)
def test_no_other_lengths_pad_less(rows: list[tuple[int, int]], count: int, longest: int, fixed: bool) -> None:
    row_tokens, weights = [tokens for tokens, _ in rows], [weight for _, weight in rows]
    tokens = np.array(row_tokens)
    chosen = choose(tokens, count=count, longest=longest, fixed=fixed, weights=np.array(weights, float))
    needed = min(longest, -(-max(1, *row_tokens, 1) // 8) * 8)
    assert chosen[-1] == (longest if fixed else needed)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) <= count
    assert all(length % 8 == 0 or length == longest for length in chosen)
    below = range(8, chosen[-1], 8)
    every = ((*some, chosen[-1]) for size in range(count) for some in itertools.combinations(below, size))
    assert positions(row_tokens, chosen, weights) == min(positions(row_tokens, lengths, weights) for lengths in every)


def test_a_length_that_saves_nothing_is_left_out() -> None:
    assert choose(np.array([3, 8, 5]), count=4, longest=512, fixed=False) == (8,)
    assert choose(np.array([3, 8, 5]), count=4, longest=512, fixed=True) == (8, 512)


def test_weights_count_as_so_many_rows() -> None:
    tokens = np.array([8, 16, 24, 64])
    even = choose(tokens, count=2, longest=64, fixed=True)
    heavy = choose(tokens, count=2, longest=64, fixed=True, weights=np.array([100.0, 1, 1, 1]))
    assert (even, heavy) == ((24, 64), (8, 64))


def test_a_row_gets_the_smallest_length_that_holds_it_or_the_largest() -> None:
    assert length_index((4, 8, 16), np.array([0, 1, 4, 5, 8, 9, 16, 17, 900])).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("lengths", ["8,16,40", " 8, 16 ,40", (8, 16, 40), [8, 16, 40]])
def test_lengths_come_as_text_or_as_numbers(lengths: Any) -> None:
    assert parse(lengths, max_length=None) == parse(lengths, max_length=40) == (8, 16, 40)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        *(("", "commas"), ("8,,16", "commas"), ("8;16", "commas"), ("8,x", "commas"), ("auto", "commas")),
        *(("16,8", "ascend"), ("8,8", "ascend"), ("0,8", "ascend"), (",".join("123456789"), "1 to 8")),
        *(("auto:0", "auto:1 to auto:8"), ("auto:9", "auto:8"), ("auto:", "auto:8"), ("auto:x", "auto:8")),
        ("8,16", "--max-length 32, expected the largest length to be 32"),
    ],
)
def test_what_are_no_lengths_says_how_to_write_them(lengths: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LayoutConfig(bucket_lengths=lengths, max_length=32)


def test_the_largest_length_is_the_maximal_one() -> None:
    layout = LayoutConfig(bucket_lengths="8,16,40")
    assert (layout.max_length, layout.buckets) == (40, (8, 16, 40))
    assert layout.non_default_options() == {"bucket_lengths": [8, 16, 40]}
    assert LayoutConfig().non_default_options() == {}


def test_auto_stays_until_the_rows_are_known() -> None:
    layout = LayoutConfig(bucket_lengths="auto:3")
    assert (layout.bucket_lengths, layout.buckets, layout.max_length) == ("auto:3", (), None)
    assert (automatic_count("auto:3"), automatic_count((8, 16)), automatic_count(None)) == (3, None, None)
