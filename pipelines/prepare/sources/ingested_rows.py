"""Record batches of ingested Arrow IPC files, each read by where its message lies.

ARROW1 | schema | batch | batch | ...       the schema is read once of a file, a batch by (offset, bytes)
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.prepare.sources.access import Located

__all__ = ["read_batches"]

_MAGIC = b"ARROW1\x00\x00"
_HEAD_BYTES = 16 << 10
_MOST_SCHEMA_BYTES = 64 << 20
_KNOWN_SCHEMAS = 4_096

_Key = tuple[str, int, str, int | None]


def read_batches(
    file: Located, handle: pa.NativeFile, messages: Sequence[tuple[int, int]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the `columns` of each batch; `messages` are offset and bytes of batches that lie side by side.

    Raises: what pyarrow raises if they are damaged.
    """
    head = _schemas.get(file, handle)
    schema = pa.ipc.read_schema(pa.py_buffer(head))
    options = pa.ipc.IpcReadOptions(included_fields=sorted(_index(schema, name) for name in columns))
    begin, end = messages[0][0], sum(messages[-1])
    content = memoryview(handle.read_at(end - begin, begin))
    for offset, length in messages:
        message = content[offset - begin : offset - begin + length]
        if len(message) != length:
            raise EOFError(f"it ends before byte {offset + length:,}")
        stream = pa.ipc.open_stream(pa.py_buffer(b"".join((head, message))), options=options)
        yield stream.read_next_batch().select(list(columns))


def _index(schema: pa.Schema, name: str) -> int:
    if (index := schema.get_field_index(name)) < 0:
        raise KeyError(f"no column {name!r}")
    return int(index)


class _Schemas:
    """The schema messages of files, each read once in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[_Key, bytes] = {}

    def get(self, file: Located, handle: pa.NativeFile) -> bytes:
        """The message, as it begins a stream."""
        key = (file.path, file.size, file.version, file.stamp)
        with self._lock:
            found = self._found.get(key)
        if found is None:
            found = _schema_message(handle, file.size)
            with self._lock:
                if len(self._found) >= _KNOWN_SCHEMAS:
                    self._found.clear()
                self._found[key] = found
        return found


def _schema_message(handle: pa.NativeFile, size: int) -> bytes:
    """Raises: what pyarrow raises if there is none."""
    num_bytes = _HEAD_BYTES
    while True:
        head = handle.read_at(min(size, num_bytes), 0)
        try:
            return _interned(_first_message(head.removeprefix(_MAGIC)))
        except (pa.ArrowException, OSError, EOFError):
            if num_bytes >= min(size, _MOST_SCHEMA_BYTES):
                raise
        num_bytes *= 8


def _first_message(content: bytes) -> bytes:
    message = pa.ipc.read_message(pa.BufferReader(content))
    if message.type != "schema":
        raise pa.ArrowInvalid(f"it begins with a {message.type}, expected a schema")
    return bytes(message.serialize().to_pybytes())


@functools.lru_cache(maxsize=64)
def _interned(message: bytes) -> bytes:
    """The same object for equal messages: files of a split have all the same schema."""
    return message


_schemas = _Schemas()
