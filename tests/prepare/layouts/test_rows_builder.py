"""The builder of layouts that do not join rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.layouts.base import Encoded, Piece
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.ragged import from_lists
from tfrecord_io.errors import SchemaError

UINT16 = np.dtype(np.uint16)
LENGTH, PAD = 7, 99_999


def encoded(*lists: list[int], unusable: int | None = None) -> Encoded:
    reasons = np.array(["too_long" if index == unusable else "" for index in range(len(lists))], object)
    ids = from_lists(list(lists), dtype=UINT16)
    return Encoded(ragged={"input_ids": ids}, arrays={}, reasons=reasons, full_lengths=ids.lengths)


def test_a_builder_that_was_emptied_begins_anew() -> None:
    builder = RowsBuilder([Field(name="input_ids", length=3, fill=0, side="right", held=UINT16)])
    builder.add(encoded([1], [2, 2], [3], unusable=1))
    (first,) = builder.chunks(None)
    assert first["input_ids"].tolist() == [[1, 0, 0], [3, 0, 0]]
    assert builder.rows_used == 2
    builder.add(encoded([4], [5, 5], unusable=0))
    (second,) = builder.chunks(None)
    assert second["input_ids"].tolist() == [[5, 5, 0]]
    assert builder.rows_used == 1
    builder.add(encoded([6], [7, 7, 7]))
    assert builder.lineage(None)(1) == [Piece(1, 0, 3)]


@pytest.mark.parametrize("side", ["left", "right"])
@settings(deadline=None)
@given(rows=st.lists(st.lists(st.integers(0, 65_535), max_size=LENGTH), min_size=1, max_size=10))
def test_the_unmasked_values_of_a_padded_row_are_the_row(side: Side, rows: list[list[int]]) -> None:
    builder = RowsBuilder([Field(name="input_ids", length=LENGTH, fill=PAD, side=side, held=UINT16, mask="mask")])
    builder.add(encoded(*rows))
    (padded,) = builder.chunks(None)
    ids, mask = padded["input_ids"], padded["mask"].astype(bool)
    assert (str(ids.dtype), str(padded["mask"].dtype)) == ("int32", "int8")
    assert [each[keep].tolist() for each, keep in zip(ids, mask, strict=True)] == rows
    assert (ids[~mask] == PAD).all()
    assert (np.sort(mask, axis=1) == (mask if side == "left" else mask[:, ::-1])).all()


def test_a_row_that_is_too_long_is_refused() -> None:
    builder = RowsBuilder([Field(name="input_ids", length=2, fill=0, side="right", held=UINT16)])
    builder.add(encoded([1], [1, 2, 3]))
    with pytest.raises(SchemaError, match="a row of 3 tokens, expected at most 2"):
        list(builder.chunks(None))
