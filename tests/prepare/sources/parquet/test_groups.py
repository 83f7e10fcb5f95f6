"""Segments of a split are cut where groups end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from tfrecord_io.errors import SourceError


def groups(*counts: int, name: str = "a") -> Groups:
    many = len(counts)
    return Groups(
        files=(StoredFile(path=f"/{name}", size=1),),
        num_rows=np.array(counts, np.int64),
        file=np.zeros(many, np.int32),
        at=np.arange(many, dtype=np.int64),
        num_bytes=np.array(counts, np.int64) * 10,
        stored_bytes=np.array(counts, np.int64) * 5,
        source_rows=np.array([sum(counts)], np.int64),
        nulls={"text": np.ones(many, np.int64), name: np.ones(many, np.int64)},
    )


def row_ranges(total: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    bound = st.integers(0, total)
    return st.lists(st.tuples(bound, bound).map(lambda pair: (min(pair), max(pair))), max_size=8)


@given(st.data())
def test_pieces_are_the_rows_of_the_segments_in_their_order(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=4))
    joined = Groups.joined([groups(*some, name=str(index)) for index, some in enumerate(counts)])
    # Each row by the file, the group and its number in there.
    lies = [(file, at, row) for file, some in enumerate(counts) for at, many in enumerate(some) for row in range(many)]
    wanted = data.draw(row_ranges(len(lies)))
    pieces = joined.pieces(wanted)
    fields = zip(*(getattr(pieces, name).tolist() for name in ("starts", "counts", "skips", "file", "at")), strict=True)
    found = [(start + row, (file, at, skip + row)) for start, count, skip, file, at in fields for row in range(count)]
    assert found == [(row, lies[row]) for start, stop in wanted for row in range(start, stop)]
    assert pieces.num_rows == sum(stop - start for start, stop in wanted)
    assert (pieces.counts > 0).all()


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(SourceError, match="rows up to 6 were planned, but the source has 5"):
        groups(2, 3).pieces([(0, 6)])
    with pytest.raises(SourceError):
        groups(2, 3).pieces([(-1, 2)])


def test_joined_groups_have_the_files_of_all_and_the_nulls_that_all_know() -> None:
    joined = Groups.joined([groups(2, 3, name="a"), groups(4, name="b")])
    assert [file.path for file in joined.files] == ["/a", "/b"]
    assert joined.file.tolist() == [0, 0, 1]
    assert joined.ends.tolist() == [2, 5, 9]
    assert {name: nulls.tolist() for name, nulls in joined.nulls.items()} == {"text": [1, 1, 1]}
