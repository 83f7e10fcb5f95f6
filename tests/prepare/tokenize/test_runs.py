"""Runs are lists of lists, kept flat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.tokenize.ragged import RaggedTokens, concatenated, from_lists, id_dtype

UINT16, INT32 = np.dtype(np.uint16), np.dtype(np.int32)
LISTS = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=9), max_size=12)


def _to_lists(runs: RaggedTokens) -> list[list[int]]:
    return [runs.ids[start:stop].tolist() for start, stop in zip(runs.offsets, runs.offsets[1:], strict=False)]


@given(LISTS)
def test_lists_come_back_as_they_were(lists: list[list[int]]) -> None:
    runs = from_lists(lists, dtype=UINT16)
    assert _to_lists(runs) == lists
    assert len(runs) == len(lists)
    assert runs.lengths.tolist() == [len(values) for values in lists]


@given(LISTS.filter(len), st.data())
def test_take_picks_runs_in_any_order_and_any_number_of_times(lists: list[list[int]], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=20))
    taken = from_lists(lists, dtype=UINT16).take(np.array(order, np.int64))
    assert _to_lists(taken) == [lists[index] for index in order]
    assert taken.ids.dtype == UINT16


@given(st.lists(LISTS, min_size=1, max_size=6))
def test_runs_of_several_batches_are_the_lists_one_after_another(parts: list[list[list[int]]]) -> None:
    runs = concatenated([from_lists(part, dtype=UINT16) for part in parts])
    assert _to_lists(runs) == [values for part in parts for values in part]
    assert (str(runs.ids.dtype), str(runs.offsets.dtype)) == ("uint16", "int64")


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(1, UINT16), (30_522, UINT16), (65_536, UINT16), (65_537, INT32), (1_114_112, INT32)]
)
def test_ids_are_kept_in_two_bytes_as_long_as_they_fit(vocab_size: int, dtype: np.dtype) -> None:
    assert id_dtype(vocab_size) == dtype
    assert from_lists([[vocab_size - 1]], dtype=id_dtype(vocab_size)).ids.tolist() == [vocab_size - 1]


@pytest.mark.parametrize(
    ("token_id", "dtype"), [(65_536, UINT16), (-1, UINT16), (256, np.dtype(np.uint8)), (2**31, INT32), (-1, INT32)]
)
def test_an_id_that_does_not_fit_is_an_error_and_never_wraps(token_id: int, dtype: np.dtype) -> None:
    with pytest.raises(OverflowError):
        from_lists([[1], [token_id]], dtype=dtype)
