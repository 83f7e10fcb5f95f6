"""TFRecord frames around any messages, and the messages of a shard."""

import io
import struct
from collections.abc import Iterable

import numpy as np

from tfrecord_io import records
from tfrecord_io.examples import Payloads


def framed(messages: Iterable[bytes]) -> bytes:
    """Return the messages as an uncompressed shard."""
    parts: list[bytes] = []
    for message in messages:
        size = struct.pack("<Q", len(message))
        size_crc, crc = (struct.pack("<I", records.masked_crc32c(part)) for part in (size, message))
        parts += [size, size_crc, message, crc]
    return b"".join(parts)


def messages_of(content: bytes, *, place: str = "shard") -> Payloads:
    """Return the messages of an uncompressed shard. Raises: CorruptRecordError."""
    parts = list(records.read_payloads(io.BytesIO(content), compression="none", place=place))
    sizes = [np.diff(part.offsets) for part in parts]
    data = np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)])
    return Payloads(data, np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes])))
