"""Small Parquet files, and what is read of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources.features import Columns, described
from pipelines.prepare.sources.files import DataFile
from pipelines.prepare.sources.footers import in_place_groups, read_footers
from pipelines.prepare.sources.groups import Groups
from pipelines.prepare.sources.reading import RowReader, SplitSource

__all__ = ["Stored", "rows_of", "store"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """Splits of a source: where their rows are, what reads them, and their columns."""

    groups: Mapping[str, Groups]
    readers: Mapping[str, RowReader]
    columns: Mapping[str, Columns]

    def whole(self, split: str) -> SplitSource:
        """A split with all of its rows."""
        groups = self.groups[split]
        return SplitSource(
            name=split, origin=split, groups=groups, ranges=((0, groups.total_rows),), reader=self.readers[split]
        )


def store(folder: Path, *, group_rows: int = 100, **splits: pa.Table | Sequence[Mapping[str, Any]]) -> Stored:
    """Writes each split as one file with row groups of so many rows."""
    groups, readers, columns = {}, {}, {}
    for name, rows in splits.items():
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        path = folder / f"{name}-{len(list(folder.glob('*.parquet')))}.parquet"
        pq.write_table(table, path, row_group_size=group_rows)
        there = path.stat()
        file = DataFile(
            path=str(path), name=path.name, kind="parquet", size=there.st_size, version="", stamp=there.st_mtime_ns
        )
        (footer,) = read_footers([file], None)
        groups[name] = in_place_groups(file, footer)
        columns[name] = described(footer.schema)
        readers[name] = RowReader(split=name, types=columns[name].arrow_schema)
    return Stored(groups=groups, readers=readers, columns=columns)


def rows_of(
    split: SplitSource, columns: Sequence[str], segments: Sequence[tuple[int, int]] = ()
) -> list[pa.RecordBatch]:
    """The batches of some rows, or of all. Fails unless they have the numbers asked for."""
    asked = segments or split.ranges
    found = list(split.read(asked, columns))
    numbers = [first + index for first, batch in found for index in range(batch.num_rows)]
    assert numbers == [number for span in asked for number in range(*span)]
    return [batch for _, batch in found]
