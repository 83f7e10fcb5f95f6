"""Decoding row groups of Parquet files by pyarrow. The footer, needed for each group of a file, is cached."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources.parquet import footers, nested
from pipelines.prepare.sources.parquet.access import FileVersion
from pipelines.prepare.sources.parquet.casting import require_castable
from tfrecord_io.shown import without_access

__all__ = ["FileCache", "read_group"]

# Parsed footers take about eight times their bytes in the file.
_MOST_PARSED_BYTES = 64 << 20
_PARSED_SHARE = 8

Value = TypeVar("Value")

_Key = tuple[str, int, str, int | None]


class FileCache(Generic[Value]):
    """A least-recently-used cache of one value per file version, with a limit in bytes, shared by threads.

    Threads that ask for a value while another one reads it wait for that one, so that a footer is fetched once.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._sizes: collections.OrderedDict[_Key, int] = collections.OrderedDict()
        self._values: dict[_Key, concurrent.futures.Future[Value]] = {}

    def get(self, file: FileVersion, read: Callable[[], tuple[Value, int]]) -> Value:
        """Return the cached value, or else the one that `read` returns with its bytes. Raises: as `read`."""
        key = (file.path, file.size, file.version, file.stamp)
        with self._lock:
            coming = self._values.get(key)
            if coming is None:
                reading = self._values[key] = concurrent.futures.Future()
            elif key in self._sizes:
                self._sizes.move_to_end(key)
        if coming is not None:
            return coming.result()
        try:
            value, num_bytes = read()
        except BaseException as error:
            with self._lock:
                del self._values[key]
            reading.set_exception(error)
            raise
        reading.set_result(value)
        self._keep(key, num_bytes)
        return value

    def _keep(self, key: _Key, num_bytes: int) -> None:
        with self._lock:
            self._sizes[key] = num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._most_bytes and len(self._sizes) > 1:
                oldest, freed = self._sizes.popitem(last=False)
                self._num_bytes -= freed
                del self._values[oldest]


_footers: FileCache[pq.FileMetaData] = FileCache(_MOST_PARSED_BYTES)


def read_group(
    file: FileVersion, handle: pa.NativeFile, index: int, types: pa.Schema, *, remote: bool
) -> pa.RecordBatch:
    """Read the columns of `types` of a row group, and of a struct only its fields among them, in their stored types.

    Raises: SourceError if the file lacks such columns; ValueError or pyarrow's errors if they are damaged.
    """
    metadata = _metadata(file, handle)
    if index >= metadata.num_row_groups:
        raise ValueError(f"the file has {metadata.num_row_groups} row groups")
    reader = pq.ParquetFile(handle, metadata=metadata, pre_buffer=remote, page_checksum_verification=True)
    require_castable(reader.schema_arrow, types, where=without_access(file.path))
    table = reader.read_row_group(index, columns=types.names, use_threads=False)
    return _one_batch(nested.select(table, types.names))


def _metadata(file: FileVersion, handle: pa.NativeFile) -> pq.FileMetaData:
    def parse() -> tuple[pq.FileMetaData, int]:
        footer = footers.fetch_footer(file, handle)
        return footers.parse_footer(file, footer).metadata, _PARSED_SHARE * len(footer)

    return _footers.get(file, parse)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"the row group has {table.nbytes:,} bytes, expected a few million")
    return batches[0]
