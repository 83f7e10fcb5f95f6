"""Files that tests read rows from, Parquet and ingested Arrow, here or at an address, and splits of such files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources.files import data_files
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats import footers
from pipelines.prepare.sources.formats.features import Columns, columns_of
from pipelines.prepare.sources.formats.groups import Groups, StoredFile
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource

__all__ = ["Stored", "data_file", "in_place", "ingested", "parquet", "rows_of", "store"]


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
            name=split, source_split=split, groups=groups, ranges=((0, groups.total_rows),), reader=self.readers[split]
        )


def data_file(place: str | Path) -> DataFile:
    """The Parquet file at a path or address as it is now."""
    address = str(place)
    name = address.rpartition("/")[2]
    if "://" in address:
        fs, inner = fsspec.core.url_to_fs(address)
        info = fs.info(inner)
        return DataFile(path=address, name=name, kind="parquet", size=info["size"], version=data_files.version_of(info))
    found = Path(address).stat()
    return DataFile(
        path=address, name=name, kind="parquet", size=found.st_size, version="xxh3:0", stamp=found.st_mtime_ns
    )


def parquet(place: str | Path, table: pa.Table, *, rows: int = 10, **options: object) -> DataFile:
    """Writes a Parquet file with row groups of `rows` rows."""
    with fsspec.open(str(place), "wb") as stream:
        pq.write_table(table, stream, row_group_size=rows, **options)
    return data_file(place)


def in_place(*files: DataFile, columns: list[str] | None = None) -> Groups:
    """The row groups of the files, one after the other."""
    read = footers.read_footers(files, columns)
    return Groups.joined([footers.in_place_groups(file, footer) for file, footer in zip(files, read, strict=True)])


def ingested(path: Path, table: pa.Table, *, rows: int = 10, compression: str | None = None) -> Groups:
    """Writes an Arrow IPC file with batches of `rows` rows; its groups."""
    places, counts = [], []
    with pa.OSFile(str(path), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            for batch in table.to_batches(max_chunksize=rows):
                # The writer begins its file with the first batch.
                begin = sink.tell() or 8 + table.schema.serialize().size
                writer.write_batch(batch)
                places.append((begin, sink.tell() - begin))
                counts.append(batch.num_rows)
    found = path.stat()
    file = StoredFile(path=str(path), format="ipc", size=found.st_size, stamp=found.st_mtime_ns)
    at, length = np.array(places, np.int64).reshape(-1, 2).T
    return Groups(
        files=(file,),
        num_rows=np.array(counts, np.int64),
        file=np.zeros(len(counts), np.int32),
        at=at,
        length=length,
        num_bytes=length,
        stored_bytes=length,
    )


def store(folder: Path, *, group_rows: int = 100, **splits: pa.Table | Sequence[Mapping[str, Any]]) -> Stored:
    """Writes each split as one file with row groups of so many rows."""
    groups, readers, columns = {}, {}, {}
    for name, rows in splits.items():
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        file = parquet(folder / f"{name}-{len(list(folder.glob('*.parquet')))}.parquet", table, rows=group_rows)
        groups[name] = in_place(file)
        columns[name] = columns_of(footers.read_footers([file], None)[0].schema)
        readers[name] = RowReader(split=name, types=columns[name].arrow_schema)
    return Stored(groups=groups, readers=readers, columns=columns)


def rows_of(
    split: SplitSource, columns: Sequence[str], row_ranges: Sequence[tuple[int, int]] = ()
) -> list[pa.RecordBatch]:
    """The batches of some rows, or of all. Fails unless they have the numbers asked for."""
    asked = row_ranges or split.ranges
    found = list(split.read(asked, columns))
    numbers = [first + index for first, batch in found for index in range(batch.num_rows)]
    assert numbers == [number for span in asked for number in range(*span)]
    return [batch for _, batch in found]
