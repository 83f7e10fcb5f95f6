"""Equal content has equal hashes, however Arrow holds it and wherever a batch begins."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.sources.rows.hash_filter import row_hashes

TEXT = st.none() | st.text(max_size=6)
MESSAGES = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"role": TEXT, "content": TEXT, "n": st.none() | st.integers(0, 9)}), max_size=3
)
NESTED = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("n", pa.int64())]))
OTHERWISE = pa.large_list(pa.struct([("n", pa.int32()), ("content", pa.large_string()), ("role", pa.string())]))


def hashes(values: list[Any], kind: pa.DataType, *, seed: int = 1) -> list[int]:
    return row_hashes([pa.array(values, kind)], seed=seed).tolist()


def test_a_text_has_the_hash_of_its_bytes() -> None:
    assert hashes(["", "añ"], pa.string()) == [xxhash.xxh3_64_intdigest(text.encode(), 1) for text in ("", "añ")]


@given(values=st.lists(TEXT, max_size=20), start=st.integers(0, 20))
def test_texts_have_it_in_any_type_and_any_slice(values: list[str | None], start: int) -> None:
    plain = hashes(values, pa.string())
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert hashes(values, kind) == plain
    assert row_hashes([pa.array(values, pa.string()).slice(start)], seed=1).tolist() == plain[start:]


@settings(deadline=None)
@given(values=st.lists(MESSAGES, max_size=12), start=st.integers(0, 12))
def test_nested_values_have_it_in_any_type_any_order_of_fields_and_any_slice(values: list[Any], start: int) -> None:
    plain = hashes(values, NESTED)
    assert hashes(values, OTHERWISE) == plain
    assert row_hashes([pa.array(values, NESTED).slice(start)], seed=1).tolist() == plain[start:]


@settings(deadline=None)
@given(values=st.lists(MESSAGES, min_size=2, max_size=12))
def test_nested_values_are_equal_if_and_only_if_their_hashes_are(values: list[Any]) -> None:
    found = hashes(values, NESTED)
    for one, left in zip(values, found, strict=True):
        for other, right in zip(values, found, strict=True):
            assert (one == other) == (left == right)


def test_several_columns_are_told_apart() -> None:
    left, right = pa.array(["a", "b", "a", "ab"]), pa.array(["b", "a", "b", ""])
    found = row_hashes([left, right], seed=1)
    assert len(set(found.tolist())) == 3
    assert found[0] == found[2]
    assert found.tolist() != row_hashes([right, left], seed=1).tolist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1.5, None], None], pa.list_(pa.float32())),
        ([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        ([b"\xff", None], pa.binary()),
        ([None, None], pa.null()),
        ([True, False], pa.bool_()),
        ([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        ([], pa.string()),
    ],
)
def test_whatever_else_a_column_may_hold(values: list[Any], kind: pa.DataType) -> None:
    found = row_hashes([pa.array(values, kind)], seed=0)
    assert (str(found.dtype), len(found)) == ("uint64", len(values))


def test_text_that_is_no_utf8_has_one_too() -> None:
    damaged = pa.array([b"\xff\xfe", b"a"]).view(pa.string())
    assert row_hashes([damaged], seed=1)[1] == hashes(["a"], pa.string())[0]
