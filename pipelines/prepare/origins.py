"""Which data file a row of a split comes from. `datasets` joins the files of a split in their order and keeps no trace
of where one ends, so that the rows of those before it are counted when somebody asks.
"""

from __future__ import annotations

import pyarrow.parquet as pq

from pipelines.prepare import arrow_files, data_files, paths
from pipelines.prepare.opened import Source
from tfrecord_io.errors import SourceError

__all__ = ["locate"]


def locate(source: Source, split: str, row: int) -> tuple[str | None, int]:
    """The file with row `row` of a split, and the row's number there, from 0; for a hub dataset None and `row`.

    Raises: SourceError if the files have fewer rows.
    """
    files = source.files.get(split, ())
    if not files:
        return None, row
    if len(files) == 1:
        return files[0], row
    first = 0
    for path in files:
        count = _num_rows(path)
        if row < first + count:
            return path, row - first
        first += count
    raise SourceError(
        f"split {split!r}: row {row} is asked for, but its files have only {first} rows",
        remedy="the source has changed; build the dataset anew",
    )


def _num_rows(path: str) -> int:
    """Rows of one file, read as `datasets` read it with the others."""
    kind = paths.kind_of(path)
    assert kind is not None, "it was opened with the others"
    if kind == "parquet" and "://" not in path:
        return int(pq.read_metadata(path).num_rows)
    if kind == "arrow" and "://" not in path:
        return arrow_files.num_rows(path)
    import datasets  # takes most of a second, and is seldom needed here

    loaded = datasets.load_dataset(
        data_files.BUILDERS[kind],
        data_files=[data_files.literal(path)],
        split="train",
        keep_in_memory=False,
        **data_files.options(kind),
    )
    return int(loaded.num_rows)
