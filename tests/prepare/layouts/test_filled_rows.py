"""Grain's packers make the same rows, or keep the same documents."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.layouts.base import Encoded
from pipelines.prepare.layouts.documents import JoinBuilder, PackBuilder
from pipelines.prepare.tokenize.ragged import from_lists

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def documents_of(sizes: Sequence[int]) -> list[list[int]]:
    """Documents of these sizes; all tokens are distinct."""
    return [list(range(start, stop)) for start, stop in itertools.pairwise(np.cumsum([1, *sizes]).tolist())]


def rows_of(builder: PackBuilder, documents: list[list[int]]) -> dict[str, list[list[int]]]:
    ids = from_lists(documents, dtype=np.dtype(np.int32))
    reasons = np.full(len(ids), "", object)
    builder.add(Encoded(ragged={"input_ids": ids}, arrays={}, reasons=reasons, full_lengths=ids.lengths))
    chunks = list(builder.chunks(None))
    return {name: [row for chunk in chunks for row in chunk[name].tolist()] for name in chunks[0]}


def of_grain(packer: str, documents: list[list[int]], **options: Any) -> Iterator[dict[str, list[int]]]:
    grain = pytest.importorskip("grain")
    source = grain.MapDataset.source([{"x": np.array(document)} for document in documents]).to_iter_dataset()
    for row in getattr(grain.experimental, packer)(source, **options):
        yield {name: np.asarray(values).tolist() for name, values in row.items()}


@given(sizes=SIZES, length=st.integers(1, 24))
def test_segments_of_joined_documents_are_those_of_grain(sizes: list[int], length: int) -> None:
    documents = documents_of(sizes)
    builder = JoinBuilder(length=length, pad_id=0, drop=False, segments=True)
    rows = list(of_grain("ConcatThenSplitIterDataset", documents, length_struct={"x": length}))
    expected = {"input_ids": "x", "segment_ids": "x_segment_ids", "positions": "x_positions"}
    assert rows_of(builder, documents) == {ours: [row[theirs] for row in rows] for ours, theirs in expected.items()}


@given(sizes=SIZES, length=st.integers(8, 24), most=st.integers(1, 5))
def test_packed_rows_hold_the_documents_of_grain_and_as_few_in_a_row(sizes: list[int], length: int, most: int) -> None:
    documents = [document[:length] for document in documents_of(sizes)]
    options = {"length_struct": {"x": length}, "num_packing_bins": 8, "max_sequences_per_bin": most}
    theirs = [
        segments(row["x"], row["x_segment_ids"]) for row in of_grain("FirstFitPackIterDataset", documents, **options)
    ]
    rows = rows_of(PackBuilder(length=length, pad_id=0, truncates=True, most=most), documents_of(sizes))
    ours = list(map(segments, rows["input_ids"], rows["segment_ids"]))
    assert max(map(len, ours)) <= most
    assert sorted(itertools.chain(*ours)) == sorted(itertools.chain(*theirs)) == sorted(documents)


def segments(ids: list[int], segment_ids: list[int]) -> list[list[int]]:
    return [
        [token for token, segment in zip(ids, segment_ids, strict=True) if segment == wanted]
        for wanted in sorted({*segment_ids} - {0})
    ]
