"""Decoding stored groups of rows by pyarrow: a row group of a Parquet file, or record batches of an ingested file.

    Parquet    ... | row group | ... | footer | its length | PAR1
    ingested   ARROW1 | schema | batch | batch | ...       each batch is read by (offset, bytes) of its message

The footer or schema of a file is needed for each of its groups, so both are cached.
"""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources.files.access import FileVersion
from pipelines.prepare.sources.formats import footers, nested
from pipelines.prepare.sources.formats.casting import is_list, require_castable
from tfrecord_io.shown import without_access

__all__ = ["FileCache", "read_batches", "read_group"]

# Parsed footers take about eight times their bytes in the file.
_MOST_PARSED_BYTES = 64 << 20
_PARSED_SHARE = 8
_ARROW_MAGIC = b"ARROW1\x00\x00"
_HEAD_BYTES = 16 << 10
_MOST_SCHEMA_BYTES = 64 << 20
_MOST_SCHEMAS_BYTES = 4 << 20

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
_schemas: FileCache[bytes] = FileCache(_MOST_SCHEMAS_BYTES)


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


def read_batches(
    file: FileVersion, handle: pa.NativeFile, messages: Sequence[tuple[int, int]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the `columns` of each batch; `messages` are (offset, bytes) of consecutive batches.

    Raises: EOFError, KeyError or pyarrow's errors if the file is damaged.
    """
    head = _schema_of(file, handle)
    schema = pa.ipc.read_schema(pa.py_buffer(head))
    options = pa.ipc.IpcReadOptions(
        included_fields=sorted({_index(schema, name) for name in columns}), use_threads=False
    )
    begin, end = messages[0][0], sum(messages[-1])
    content = memoryview(handle.read_at(end - begin, begin))
    for offset, length in messages:
        message = content[offset - begin : offset - begin + length]
        if len(message) != length:
            raise EOFError(f"the file ends before byte {offset + length:,}")
        stream = pa.ipc.open_stream(pa.py_buffer(b"".join((head, message))), options=options)
        batch = stream.read_next_batch()
        _require_valid_offsets(batch)
        yield nested.select(batch, columns)


def _require_valid_offsets(batch: pa.RecordBatch) -> None:
    """Raise pa.ArrowInvalid if offsets lead out of the batch.

    Texts are not checked for UTF-8: that takes longer than the rest of reading, and is done where they are used.
    """
    for column in batch.columns:
        held = column.storage if isinstance(column, pa.ExtensionArray) else column
        held.view(_as_bytes(held.type)).validate(full=True)


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes in place of strings."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if is_list(kind):
        item = kind.value_field.with_type(_as_bytes(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return _BYTES.get(kind, kind)


_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def _index(schema: pa.Schema, name: str) -> int:
    if (path := nested.path_of(schema, name)) is None:
        raise KeyError(f"no column {name!r}")
    return int(schema.get_field_index(path[0]))


def _schema_of(file: FileVersion, handle: pa.NativeFile) -> bytes:
    """Return the schema message of an ingested file, with which a stream of its batches has to begin."""

    def read() -> tuple[bytes, int]:
        message = _schema_message(handle, file.size)
        return message, len(message)

    return _schemas.get(file, read)


def _schema_message(handle: pa.NativeFile, size: int) -> bytes:
    """Read the schema message, whatever its size. Raises: pyarrow's errors if there is none."""
    num_bytes = _HEAD_BYTES
    while True:
        head = handle.read_at(min(size, num_bytes), 0)
        try:
            return _first_message(head.removeprefix(_ARROW_MAGIC))
        except (pa.ArrowException, OSError, EOFError):
            if num_bytes >= min(size, _MOST_SCHEMA_BYTES):
                raise
        num_bytes *= 8


def _first_message(content: bytes) -> bytes:
    message = pa.ipc.read_message(pa.BufferReader(content))
    if message.type != "schema":
        raise pa.ArrowInvalid(f"the file begins with a {message.type}, expected a schema")
    return bytes(message.serialize().to_pybytes())
