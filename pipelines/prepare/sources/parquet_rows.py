"""Row groups of Parquet files, decoded by pyarrow. Footers are kept for as long as there is room for them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources import footers
from pipelines.prepare.sources.access import Located
from pipelines.prepare.sources.casting import require
from pipelines.prepare.sources.kept import Kept
from tfrecord_io.shown import without_access

__all__ = ["read_group"]

# Of footers ready to be used, which take about eight times their bytes in the file.
_MOST_PARSED_BYTES = 64 << 20
_PARSED_SHARE = 8
# Of those as they lie in files far away: parsing one again is faster than asking for it again.
_MOST_FETCHED_BYTES = 32 << 20

_parsed: Kept[pq.FileMetaData] = Kept(_MOST_PARSED_BYTES)
_fetched: Kept[bytes] = Kept(_MOST_FETCHED_BYTES)


def read_group(file: Located, handle: pa.NativeFile, index: int, types: pa.Schema, *, remote: bool) -> pa.RecordBatch:
    """The columns of `types` of a row group, as they are stored.

    Raises: SourceError if the file doesn't have such columns; what pyarrow raises if they are damaged.
    """
    metadata = _metadata(file, handle, remote=remote)
    if index >= metadata.num_row_groups:
        raise ValueError(f"the file has {metadata.num_row_groups} row groups")
    reader = pq.ParquetFile(handle, metadata=metadata, pre_buffer=remote, page_checksum_verification=True)
    require(reader.schema_arrow, types, place=without_access(file.path))
    table = reader.read_row_group(index, columns=types.names, use_threads=False).select(types.names)
    return _one_batch(table)


def _metadata(file: Located, handle: pa.NativeFile, *, remote: bool) -> pq.FileMetaData:
    def fetch() -> tuple[bytes, int]:
        footer = footers.fetched(file, handle)
        return footer, len(footer)

    def parse() -> tuple[pq.FileMetaData, int]:
        footer = _fetched.get(file, fetch) if remote else fetch()[0]
        return footers.parsed(file, footer).metadata, _PARSED_SHARE * len(footer)

    return _parsed.get(file, parse)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"it has {table.nbytes:,} bytes, expected a few million")
    return batches[0]
