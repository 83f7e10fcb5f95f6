"""The builder of layouts that do not join rows."""

from __future__ import annotations

import numpy as np

from pipelines.prepare.layouts.base import Encoded, Piece
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.tokenize.ragged import from_lists

UINT16 = np.dtype(np.uint16)


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
