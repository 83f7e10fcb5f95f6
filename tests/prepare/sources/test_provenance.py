"""From the number of a row in a split back to its data file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.prepare.sources.groups import Groups
from pipelines.prepare.sources.provenance import locate
from tests.prepare.sources.stored import store
from tfrecord_io.errors import SourceError


def joined(folder: Path, *counts: int) -> Groups:
    """The groups of several files with so many rows, in row groups of 3."""
    parts = []
    for count in counts:
        rows = [{"text": f"row {index}"} for index in range(count)]
        parts.append(store(folder, group_rows=3, train=rows).groups["train"])
    return Groups.joined(parts)


def test_every_row_of_files_in_place(tmp_path: Path) -> None:
    groups = joined(tmp_path, 7, 1, 9)
    expected = [(file.path, row) for file, count in zip(groups.files, (7, 1, 9), strict=True) for row in range(count)]
    assert [locate(groups, {}, row) for row in range(17)] == expected


def test_parts_of_an_ingested_file_count_on(tmp_path: Path) -> None:
    groups = joined(tmp_path, 7, 4, 2)
    parts = {0: ("a.jsonl", 0), 1: ("a.jsonl", 7), 2: ("b.jsonl", 0)}
    expected = [*(("a.jsonl", row) for row in range(11)), ("b.jsonl", 0), ("b.jsonl", 1)]
    assert [locate(groups, parts, row) for row in range(13)] == expected


@pytest.mark.parametrize("row", [-1, 7])
def test_a_row_that_is_not_there(tmp_path: Path, row: int) -> None:
    with pytest.raises(SourceError, match=f"row {row} is asked for, but the split has 7"):
        locate(joined(tmp_path, 7), {}, row)
