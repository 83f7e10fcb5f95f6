"""Where the record batches of an Arrow IPC file lie, from the headers of its messages alone.

    stream   schema | dictionary ... | batch | batch | ... | end mark, or the end of the file
    file     ARROW1 | the same | footer: where each dictionary and batch is | its length | ARROW1

    message  FF FF FF FF | bytes of metadata | metadata: what it is, bytes of body, rows | body
             (files written before Arrow 0.15 have no FF FF FF FF)

Format: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc; metadata
and footer are FlatBuffers tables, of which the few fields named below are read: Message.fbs and File.fbs beside it.

Few hundred bytes are read for each message, so that a file of 1,000 batches is looked through in about 10 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

__all__ = ["Layout", "Message", "Read", "layout_of"]

# Gives `length` bytes of the file from `offset` on, as (offset, length).
Read = Callable[[int, int], bytes]

_MAGIC = b"ARROW1"
_START_OF_FILE = 8  # the magic, padded
_END_OF_FILE = struct.Struct(f"<i{len(_MAGIC)}s")
_BLOCK = struct.Struct("<q16x")  # offset, length of the metadata, length of the body

_CONTINUATION = -1
_PREFIX = struct.Struct("<ii")
_LEGACY_PREFIX = struct.Struct("<i")
# What most metadata fits into.
_HEAD_BYTES = 4096

_I32, _U32, _I64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q")
_U8, _U16 = struct.Struct("<B"), struct.Struct("<H")

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3


class Message(NamedTuple):
    """One message: `metadata_bytes` from `offset` on, with what comes before the metadata, and then the body.

    A batch whose body `is_whole` makes sense only as a whole: it is compressed, or has notes of its own, by which
    Arrow 0.17 said so.
    """

    kind: int
    offset: int
    metadata_bytes: int
    body_bytes: int
    num_rows: int = 0
    is_whole: bool = False

    @property
    def stop(self) -> int:
        """Where it ends in the file."""
        return self.offset + self.metadata_bytes + self.body_bytes


class Layout(NamedTuple):
    """The messages of a file."""

    schema: Message
    dictionaries: tuple[Message, ...]
    batches: tuple[Message, ...]
    is_stream: bool

    def before(self, batch: Message) -> list[Message]:
        """What has to be known to understand `batch`: in a stream, dictionaries may be replaced as it goes on."""
        known = (each for each in self.dictionaries if not self.is_stream or each.offset < batch.offset)
        return [self.schema, *known]


def layout_of(read: Read, num_bytes: int) -> Layout:
    """The messages of a file of `num_bytes`. Raises: pa.ArrowInvalid if it is not an Arrow IPC file, or not whole."""
    try:
        is_stream = read(0, min(num_bytes, len(_MAGIC))) != _MAGIC
        schema = _message(read, 0 if is_stream else _START_OF_FILE, num_bytes)
        if schema is None or schema.kind != _SCHEMA:
            raise pa.ArrowInvalid("it does not begin with a schema")
        messages = list((_following if is_stream else _in_footer)(read, schema, num_bytes))
    except struct.error as error:
        raise pa.ArrowInvalid(f"its metadata is damaged: {error}") from error
    return Layout(
        schema=schema,
        dictionaries=tuple(message for message in messages if message.kind == _DICTIONARY),
        batches=tuple(message for message in messages if message.kind == _BATCH),
        is_stream=is_stream,
    )


def _following(read: Read, first: Message, num_bytes: int) -> Iterator[Message]:
    """Those that come one after another, as in a stream."""
    message = _message(read, first.stop, num_bytes)
    while message is not None:
        yield message
        message = _message(read, message.stop, num_bytes)


def _in_footer(read: Read, _: Message, num_bytes: int) -> Iterator[Message]:
    """Those that the footer tells of: dictionaries, then batches."""
    for place in _places(_footer(read, num_bytes)):
        message = _message(read, place, num_bytes)
        if message is None:
            raise pa.ArrowInvalid(f"its footer tells of a message at byte {place}, where there is none")
        yield message


def _footer(read: Read, num_bytes: int) -> bytes:
    end = num_bytes - _END_OF_FILE.size
    length, magic = _END_OF_FILE.unpack(read(end, _END_OF_FILE.size)) if end > 0 else (0, b"")
    if magic != _MAGIC or not 0 < length <= end:
        raise pa.ArrowInvalid("its footer is missing")
    return read(end - length, length)


def _places(footer: bytes) -> Iterator[int]:
    table = _pointed(footer, 0)
    for place in filter(None, (_field(footer, table, 2), _field(footer, table, 3))):
        vector = _pointed(footer, place)
        (count,) = _U32.unpack_from(footer, vector)
        for index in range(count):
            yield _BLOCK.unpack_from(footer, vector + _U32.size + index * _BLOCK.size)[0]


def _message(read: Read, offset: int, num_bytes: int) -> Message | None:
    """The message at `offset`; None at the end."""
    if offset == num_bytes:
        return None
    if not 0 <= offset < num_bytes:
        raise pa.ArrowInvalid(f"it has {num_bytes} bytes, and a message at byte {offset}")
    head = read(offset, min(_HEAD_BYTES, num_bytes - offset))
    start, (length,) = _LEGACY_PREFIX.size, _LEGACY_PREFIX.unpack_from(head)
    if length == _CONTINUATION:
        start, (_, length) = _PREFIX.size, _PREFIX.unpack_from(head)
    if length == 0:
        return None
    if length < 0 or offset + start + length > num_bytes:
        raise pa.ArrowInvalid(f"it ends amid a message, or there is none at byte {offset}")
    if start + length > len(head):
        head = read(offset, start + length)
    message = _parse(head[start : start + length], offset=offset, start=start)
    if message.body_bytes < 0 or message.stop > num_bytes:
        raise pa.ArrowInvalid(f"it has {num_bytes} bytes, and a message up to byte {message.stop}")
    return message


def _parse(metadata: bytes, *, offset: int, start: int) -> Message:
    table = _pointed(metadata, 0)
    kind_at, header_at, body_at = (_field(metadata, table, field) for field in (1, 2, 3))
    kind = _U8.unpack_from(metadata, kind_at)[0] if kind_at else 0
    body_bytes = _I64.unpack_from(metadata, body_at)[0] if body_at else 0
    num_rows, is_whole = 0, False
    if kind == _BATCH:
        batch = _pointed(metadata, header_at)
        rows_at = _field(metadata, batch, 0)
        num_rows = _I64.unpack_from(metadata, rows_at)[0] if rows_at else 0
        is_whole = bool(_field(metadata, batch, 3) or _field(metadata, table, 4))
    if num_rows < 0:
        raise pa.ArrowInvalid(f"the batch at byte {offset} has {num_rows} rows")
    return Message(kind, offset, start + len(metadata), body_bytes, num_rows, is_whole)


def _pointed(content: bytes, place: int) -> int:
    """Where the table or vector is that is pointed to at `place`."""
    return place + _U32.unpack_from(content, place)[0]


def _field(content: bytes, table: int, field: int) -> int:
    """Where a field of a table is; 0 if the table is without it."""
    kinds = table - _I32.unpack_from(content, table)[0]
    entry = 4 + 2 * field
    if kinds < 0 or entry >= _U16.unpack_from(content, kinds)[0]:
        return 0
    (place,) = _U16.unpack_from(content, kinds + entry)
    return table + place if place else 0
