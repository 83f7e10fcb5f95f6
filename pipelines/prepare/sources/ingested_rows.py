"""Record batches of ingested Arrow IPC files, each read by where its message lies.

ARROW1 | schema | batch | batch | ...       the schema is read once of a file, a batch by (offset, bytes)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.prepare.sources.access import Located
from pipelines.prepare.sources.casting import is_list
from pipelines.prepare.sources.kept import Kept

__all__ = ["read_batches"]

_MAGIC = b"ARROW1\x00\x00"
_HEAD_BYTES = 16 << 10
_MOST_SCHEMA_BYTES = 64 << 20
_MOST_KEPT_BYTES = 4 << 20

_schemas: Kept[bytes] = Kept(_MOST_KEPT_BYTES)


def read_batches(
    file: Located, handle: pa.NativeFile, messages: Sequence[tuple[int, int]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the `columns` of each batch; `messages` are offset and bytes of batches that lie side by side.

    Raises: what pyarrow raises if they are damaged.
    """
    head = _schema_of(file, handle)
    schema = pa.ipc.read_schema(pa.py_buffer(head))
    options = pa.ipc.IpcReadOptions(included_fields=sorted(_index(schema, name) for name in columns), use_threads=False)
    begin, end = messages[0][0], sum(messages[-1])
    content = memoryview(handle.read_at(end - begin, begin))
    for offset, length in messages:
        message = content[offset - begin : offset - begin + length]
        if len(message) != length:
            raise EOFError(f"it ends before byte {offset + length:,}")
        stream = pa.ipc.open_stream(pa.py_buffer(b"".join((head, message))), options=options)
        yield _valid(stream.read_next_batch().select(list(columns)))


def _valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch. Raises: pa.ArrowInvalid if following its offsets would lead out of it.

    Whether texts are UTF-8 is for whoever reads them, and would take longer than the rest of reading.
    """
    for column in batch.columns:
        held = column.storage if isinstance(column, pa.ExtensionArray) else column
        held.view(_as_bytes(held.type)).validate(full=True)
    return batch


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in place of strings."""
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
    if (index := schema.get_field_index(name)) < 0:
        raise KeyError(f"no column {name!r}")
    return int(index)


def _schema_of(file: Located, handle: pa.NativeFile) -> bytes:
    """The message with which the file begins, and so every stream of its batches."""

    def read() -> tuple[bytes, int]:
        found = _schema_message(handle, file.size)
        return found, len(found)

    return _schemas.get(file, read)


def _schema_message(handle: pa.NativeFile, size: int) -> bytes:
    """Raises: what pyarrow raises if there is none."""
    num_bytes = _HEAD_BYTES
    while True:
        head = handle.read_at(min(size, num_bytes), 0)
        try:
            return _first_message(head.removeprefix(_MAGIC))
        except (pa.ArrowException, OSError, EOFError):
            if num_bytes >= min(size, _MOST_SCHEMA_BYTES):
                raise
        num_bytes *= 8


def _first_message(content: bytes) -> bytes:
    message = pa.ipc.read_message(pa.BufferReader(content))
    if message.type != "schema":
        raise pa.ArrowInvalid(f"it begins with a {message.type}, expected a schema")
    return bytes(message.serialize().to_pybytes())
