"""Row groups of Parquet files, decoded by pyarrow. Footers are kept for as long as there is room for them."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources import footers
from pipelines.prepare.sources.access import Located
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["read_group"]

# As they lie in files; in memory they take a few times as much.
_MOST_KEPT_BYTES = 16 << 20

_Key = tuple[str, int, str, int | None]


class _Kept:
    """The footers used last, in as many bytes. All threads of a process share them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._found: collections.OrderedDict[_Key, pq.FileMetaData] = collections.OrderedDict()
        self._num_bytes = 0

    def get(self, key: _Key) -> pq.FileMetaData | None:
        """The footer if it is kept."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: _Key, footer: pq.FileMetaData) -> None:
        """Keeps a footer, and lets go of those not used for longest."""
        with self._lock:
            if key not in self._found:
                self._found[key] = footer
                self._num_bytes += footer.serialized_size
            while self._num_bytes > self._most_bytes and self._found:
                self._num_bytes -= self._found.popitem(last=False)[1].serialized_size


_kept = _Kept(_MOST_KEPT_BYTES)


def read_group(
    file: Located, handle: pa.NativeFile, index: int, columns: Sequence[str], *, remote: bool
) -> pa.RecordBatch:
    """A row group's `columns`, as they are stored. Raises: SourceError; what pyarrow raises if they are damaged."""
    metadata = _metadata(file, handle)
    if index >= metadata.num_row_groups:
        raise ValueError(f"the file has {metadata.num_row_groups} row groups")
    reader = pq.ParquetFile(handle, metadata=metadata, pre_buffer=remote, page_checksum_verification=True)
    schema = reader.schema_arrow
    for name in columns:
        _require_one(name, schema, file)
    table = reader.read_row_group(index, columns=list(columns), use_threads=False).select(columns)
    return _one_batch(table)


def _metadata(file: Located, handle: pa.NativeFile) -> pq.FileMetaData:
    key = (file.path, file.size, file.version, file.stamp)
    found = _kept.get(key)
    if found is None:
        found = footers.read_metadata(file, handle)
        _kept.put(key, found)
    return found


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
