"""Parquet files that tests read rows from, here or at an address, and splits of such files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve import data_files
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.features import Columns, columns_of
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource
from pipelines.prepare.sources.rows.unused_rows import reasons_of, without_reasons
from tests import building


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """Splits of a source: where their rows are, what reads them, and their columns."""

    groups: Mapping[str, Groups]
    readers: Mapping[str, RowReader]
    columns: Mapping[str, Columns]

    def chosen(self, config: SourceConfig) -> dict[str, SplitSource]:
        lengths = {name: of_split.total_rows for name, of_split in self.groups.items()}
        return selection.located(selection.select_ranges(config, lengths), self.groups, self.readers)


def data_file(place: str | Path) -> DataFile:
    """Return the Parquet file at a path or address."""
    address = str(place)
    name = address.rpartition("/")[2]
    if "://" in address:
        fs, inner = fsspec.core.url_to_fs(address)
        info = fs.info(inner)
        return DataFile(path=address, name=name, size=info["size"], version=data_files.version_of(info))
    stat = Path(address).stat()
    return DataFile(path=address, name=name, size=stat.st_size, version="xxh3:0", stamp=data_files.stamp_of(stat))


def parquet(place: str | Path, table: pa.Table, *, rows: int = 10, **options: object) -> DataFile:
    with fsspec.open(str(place), "wb") as stream:
        pq.write_table(table, stream, row_group_size=rows, **options)
    return data_file(place)


def in_place(*files: DataFile, columns: list[str] | None = None) -> Groups:
    return Groups.joined([footer.groups for footer in row_groups.read_footers(files, columns)])


def store(folder: Path, *, group_rows: int = 100, **splits: pa.Table | Sequence[Mapping[str, Any]]) -> Stored:
    """Write each split as one file with row groups of the given sizes."""
    groups, readers, columns = {}, {}, {}
    for name, rows in splits.items():
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        file = parquet(folder / f"{name}-{len(list(folder.glob('*.parquet')))}.parquet", table, rows=group_rows)
        groups[name] = in_place(file)
        columns[name] = columns_of(row_groups.read_footers([file], None)[0].schema)
        readers[name] = RowReader(split=name, types=columns[name].arrow_schema)
    return Stored(groups=groups, readers=readers, columns=columns)


def rows_of(
    split: SplitSource, columns: Sequence[str], row_ranges: Sequence[tuple[int, int]] = ()
) -> list[pa.RecordBatch]:
    """The batches of some rows, or of all. Fails unless they have the numbers asked for."""
    spans = row_ranges or split.ranges
    batches = list(split.read(spans, columns))
    numbers = [first + index for first, batch in batches for index in range(batch.num_rows)]
    assert numbers == [number for span in spans for number in range(*span)]
    return [batch for _, batch in batches]


def rows_in(dataset: str | Path, *names: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of a dataset's split `train`, in all columns or some, as builds read them."""
    split = building.opened(SourceConfig(dataset=str(dataset), **options)).splits["train"]
    read = split.read(split.ranges, names or split.reader.types.names)
    return [row for _, batch in read for row in batch.to_pylist()]


def kept_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    reasons = reasons_of(batch)
    return batch if reasons is None else without_reasons(batch.filter(pa.array(reasons == "")))
