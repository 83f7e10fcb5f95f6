"""What is said of a dataset before any of its rows is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.rows import opening
from tests.prepare.sources import stored
from tfrecord_io.errors import SourceError


def located(folder: Path, splits: list[str], columns: list[str] | None) -> int:
    """How many rows there are."""
    found = opening.open_source(SourceConfig(dataset=str(folder)), columns=columns)
    groups = opening.locate_rows(found, splits, folder="", inside=None, columns=columns, run=lambda *_: None)
    return sum(each.total_rows for each in groups.values())


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        (pa.table({"text": [[3]], "n": [1]}), r"train-1.parquet: column 'text' holds list<.*>, expected string"),
        (pa.table({"n": [1]}), r"train-1.parquet: no column 'text'"),
    ],
)
def test_a_parquet_file_with_other_columns_is_named_before_rows_are_read(
    tmp_path: Path, table: pa.Table, cause: str
) -> None:
    stored.parquet(tmp_path / "train-0.parquet", pa.table({"text": ["x"], "n": [1]}))
    stored.parquet(tmp_path / "train-1.parquet", table)
    stored.parquet(tmp_path / "test-0.parquet", pa.table({"text": ["x"], "n": [1]}))
    with pytest.raises(SourceError, match=cause):
        located(tmp_path, ["train", "test"], ["text"])
    assert located(tmp_path, ["train"], ["n"]) == 2, "a column that nobody reads"
    assert located(tmp_path, ["test"], ["text"]) == 1, "a split that nobody reads"
