"""Row groups of Parquet files, decoded by pyarrow. Footers are kept for as long as there is room for them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources import footers
from pipelines.prepare.sources.access import Located
from pipelines.prepare.sources.kept import Kept
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["read_group"]

# Of footers ready to be used, which take about eight times their bytes in the file.
_MOST_PARSED_BYTES = 64 << 20
_PARSED_SHARE = 8
# Of those as they lie in files far away: parsing one again is faster than asking for it again.
_MOST_FETCHED_BYTES = 32 << 20

_parsed: Kept[pq.FileMetaData] = Kept(_MOST_PARSED_BYTES)
_fetched: Kept[bytes] = Kept(_MOST_FETCHED_BYTES)


def read_group(
    file: Located, handle: pa.NativeFile, index: int, columns: Sequence[str], *, remote: bool
) -> pa.RecordBatch:
    """A row group's `columns`, as they are stored. Raises: SourceError; what pyarrow raises if they are damaged."""
    metadata = _metadata(file, handle, remote=remote)
    if index >= metadata.num_row_groups:
        raise ValueError(f"the file has {metadata.num_row_groups} row groups")
    reader = pq.ParquetFile(handle, metadata=metadata, pre_buffer=remote, page_checksum_verification=True)
    schema = reader.schema_arrow
    for name in columns:
        _require_one(name, schema, file)
    table = reader.read_row_group(index, columns=list(columns), use_threads=False).select(columns)
    return _one_batch(table)


def _metadata(file: Located, handle: pa.NativeFile, *, remote: bool) -> pq.FileMetaData:
    def fetch() -> tuple[bytes, int]:
        footer = footers.fetched(file, handle)
        return footer, len(footer)

    def parse() -> tuple[pq.FileMetaData, int]:
        footer = _fetched.get(file, fetch) if remote else fetch()[0]
        return footers.parsed(file, footer).metadata, _PARSED_SHARE * len(footer)

    return _parsed.get(file, parse)


def _require_one(name: str, schema: pa.Schema, file: Located) -> None:
    if (count := len(schema.get_all_field_indices(name))) != 1:
        raise SourceError(
            f"{without_access(file.path)}: {'several columns' if count else 'no column'} {name!r}, expected one as in "
            "the other files",
            remedy="bring all files into the same columns, or name only some of them by a glob",
        )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"it has {table.nbytes:,} bytes, expected a few million")
    return batches[0]
