"""Slices of splits are those of `datasets`, row for row."""

from __future__ import annotations

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.options import split_slices

NUMBER = st.one_of(st.integers(-120, 120), st.integers(-(10**7), 10**7)).map(str)
BOUND = st.one_of(
    st.just(""), NUMBER, NUMBER.map("{}%".format), st.sampled_from(["0%", "1_0%", "_", "100%", "-100%", "50%"])
)
ROUNDING = st.sampled_from(["", "", "", "(closest)", "(pct1_dropremainder)", "(up)"])
PART = st.builds("train[{}:{}]{}".format, BOUND, BOUND, ROUNDING) | st.sampled_from(
    ["train", "train[", "train[:", "train[]", "train[5]", "train[:1%", "tr ain", "train(closest)", "", "train[:1%]x"]
)
SPEC = st.builds(lambda parts, plus: plus.join(parts), st.lists(PART, min_size=1, max_size=3), st.sampled_from("+"))
ROWS = st.one_of(st.integers(0, 300), st.integers(0, 2 * 10**6), st.integers(0, 10**12))


def by_datasets(spec: str, num_rows: int) -> list[tuple[int, int]] | None:
    """None if `datasets` refuses it."""
    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute({"train": num_rows})
    except ValueError:
        return None
    return [(part.from_, part.to) for part in parts if part.from_ < part.to]


def ours(spec: str, num_rows: int) -> list[tuple[int, int]] | None:
    try:
        return split_slices.ranges_of(spec, num_rows)
    except ValueError:
        return None


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(spec=SPEC, num_rows=ROWS)
def test_ranges_are_those_of_datasets_and_so_is_what_is_refused(spec: str, num_rows: int) -> None:
    assert ours(spec, num_rows) == by_datasets(spec, num_rows)


@settings(max_examples=300, deadline=None)
@given(first=st.integers(-100, 100), last=st.integers(-100, 100), num_rows=ROWS)
def test_percents_are_rounded_as_by_datasets(first: int, last: int, num_rows: int) -> None:
    for rounding in ("", "(pct1_dropremainder)"):
        spec = f"train[{first}%:{last}%]{rounding}"
        assert ours(spec, num_rows) == by_datasets(spec, num_rows)


def test_both_take_slices_and_both_refuse_some() -> None:
    """The comparison above is of something."""
    assert (
        ours("train[:10%]+train[90%:]", 1000) == by_datasets("train[:10%]+train[90%:]", 1000) == [(0, 100), (900, 1000)]
    )
    assert ours("train[5]", 1000) is by_datasets("train[5]", 1000) is None


def test_halves_go_to_the_even_row_as_by_datasets() -> None:
    assert [ours("train[:50%]", rows) for rows in (1, 3, 5)] == [[], [(0, 2)], [(0, 2)]]
    assert [by_datasets("train[:50%]", rows) for rows in (1, 3, 5)] == [[], [(0, 2)], [(0, 2)]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("train[:200%]", "200 %, expected -100 to 100"),
        ("train[:5](closest)", "without percents"),
        ("train[:5%](up)", "rounding 'up', expected closest or pct1_dropremainder"),
        ("train[:1%](pct1_dropremainder)", "1 % of 99 rows"),
        ("train[5]", r"'train\[5\]' is not a split or a slice of one"),
        ("train[:1%](closest)+train[2%:3%](pct1_dropremainder)", "different roundings"),
    ],
)
def test_what_is_refused_says_why(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_slices.ranges_of(spec, 99)


def test_the_splits_of_a_specification() -> None:
    assert split_slices.splits_of("train[:1%] + test+ train[5:]") == ["test", "train"]
