"""A layout moves tokens to their places: it loses none and invents none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize import arrays
from pipelines.prepare.tokenize.document_frames import DocumentFrame
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from tests.support.speed import slow_but
from tfrecord_io.errors import SchemaError

UINT16, INT32 = np.dtype(np.uint16), np.dtype(np.int32)
LENGTH, PAD, SEPARATOR, BOS = 7, 99_999, 70_001, 70_002

# Any id at all, the padding's own too: what is padding is said by the mask, not by the id.
IDS = st.integers(0, 100_000)
ROWS = st.lists(st.lists(IDS, max_size=LENGTH), max_size=10)
DOCUMENTS = st.lists(st.lists(IDS, max_size=20), max_size=10)
BOTH_SIDES = pytest.mark.parametrize("side", ["left", "right"])


def _runs(lists: list[list[int]]) -> RaggedTokens:
    return from_lists(lists, dtype=INT32)


def _pad(lists: list[list[int]], *, side: Side, types: list[int] | None = None) -> dict[str, np.ndarray]:
    flat = None if types is None else np.array(types, np.uint8)
    return arrays.pad(_runs(lists), flat, length=5, pad_id=0, pad_type=3, side=side)


def _listed(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in arrays.items()}


# --- pad ------------------------------------------------------------------------------------------------------------


def test_padding_on_the_right() -> None:
    assert _listed(_pad([[7, 8, 9], [], [1, 2, 3, 4, 5]], side="right", types=[0, 0, 1, 0, 0, 0, 1, 1])) == {
        "input_ids": [[7, 8, 9, 0, 0], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]],
        "attention_mask": [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
        "token_type_ids": [[0, 0, 1, 3, 3], [3, 3, 3, 3, 3], [0, 0, 0, 1, 1]],
    }


def test_padding_on_the_left() -> None:
    assert _listed(_pad([[7, 8, 9], [], [1, 2, 3, 4, 5]], side="left", types=[0, 0, 1, 0, 0, 0, 1, 1])) == {
        "input_ids": [[0, 0, 7, 8, 9], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]],
        "attention_mask": [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
        "token_type_ids": [[3, 3, 0, 0, 1], [3, 3, 3, 3, 3], [0, 0, 0, 1, 1]],
    }


def test_padded_features_have_the_dtypes_that_the_docstring_promises() -> None:
    padded = _pad([[1]], side="right", types=[0])
    assert {name: str(values.dtype) for name, values in padded.items()} == {
        "input_ids": "int32",
        "attention_mask": "int8",
        "token_type_ids": "uint8",
    }


@BOTH_SIDES
def test_a_row_that_is_too_long_is_refused(side: Side) -> None:
    with pytest.raises(SchemaError, match="a row of 6 tokens, expected at most 5"):
        _pad([[1], [1, 2, 3, 4, 5, 6]], side=side)


@BOTH_SIDES
@settings(deadline=None)
@given(rows=ROWS)
def test_the_unmasked_tokens_of_a_padded_row_are_the_row(side: Side, rows: list[list[int]]) -> None:
    padded = arrays.pad(_runs(rows), None, length=LENGTH, pad_id=PAD, pad_type=0, side=side)
    mask = padded["attention_mask"].astype(bool)
    assert [ids[keep].tolist() for ids, keep in zip(padded["input_ids"], mask, strict=True)] == rows
    assert (padded["input_ids"][~mask] == PAD).all()


@BOTH_SIDES
@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_type_ids_stay_with_their_tokens(side: Side, rows: list[list[int]], data: st.DataObject) -> None:
    size = sum(map(len, rows))
    types = np.array(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), np.uint8)
    padded = arrays.pad(_runs(rows), types, length=LENGTH, pad_id=PAD, pad_type=9, side=side)
    mask = padded["attention_mask"].astype(bool)
    assert padded["token_type_ids"][mask].tolist() == types.tolist()
    assert (padded["token_type_ids"][~mask] == 9).all()


def test_narrow_ids_are_widened_and_keep_their_values() -> None:
    padded = arrays.pad(
        from_lists([[65_535]], dtype=UINT16), None, length=2, pad_id=1_000_000, pad_type=0, side="right"
    )
    assert padded["input_ids"].tolist() == [[65_535, 1_000_000]]


# --- join and cut ---------------------------------------------------------------------------------------------------


def test_documents_are_joined_each_with_its_separator() -> None:
    assert arrays.join(_runs([[1, 2], [], [3]]), frame=DocumentFrame(after=(9,))).tolist() == [1, 2, 9, 9, 3, 9]


def test_only_the_last_block_is_padded() -> None:
    assert _listed(arrays.cut(np.arange(1, 8), length=3, pad_id=0)) == {
        "input_ids": [[1, 2, 3], [4, 5, 6], [7, 0, 0]],
        "num_tokens": [3, 3, 1],
    }


@pytest.mark.parametrize("before", slow_but([(), (BOS,), (BOS, BOS + 1)], (BOS,)))
@pytest.mark.parametrize("after", slow_but([(), (SEPARATOR,), (SEPARATOR, SEPARATOR)], (), (SEPARATOR,)))
@settings(deadline=None)
@given(documents=DOCUMENTS, length=st.integers(1, 12))
def test_the_blocks_without_padding_are_the_documents_with_their_special_tokens(
    before: tuple[int, ...], after: tuple[int, ...], documents: list[list[int]], length: int
) -> None:
    expected = [token for document in documents for token in [*before, *document, *after]]
    frame = DocumentFrame(before=before, after=after)
    blocks = arrays.cut(arrays.join(_runs(documents), frame=frame), length=length, pad_id=PAD)
    real = np.arange(length) < blocks["num_tokens"][:, None]
    assert blocks["input_ids"][real].tolist() == expected
    assert (blocks["input_ids"][~real] == PAD).all()


@given(tokens=st.lists(IDS, max_size=40), length=st.integers(1, 12))
def test_every_block_but_the_last_is_full_and_none_is_empty(tokens: list[int], length: int) -> None:
    blocks = arrays.cut(np.array(tokens, np.int32), length=length, pad_id=PAD)
    assert (blocks["num_tokens"][:-1] == length).all()
    assert (blocks["num_tokens"] > 0).all()
    assert {name: str(values.dtype) for name, values in blocks.items()} == {"input_ids": "int32", "num_tokens": "int32"}
