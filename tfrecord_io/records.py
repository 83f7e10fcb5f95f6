"""Read and write TFRecord files: framed messages, one after the other (docs/format.md).

The crc is CRC-32C (RFC 3720, appendix B.4), masked as in `tensorflow/core/lib/hash/crc32c.h`. It detects no missing
records at the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np

from tfrecord_io.codec import encoding, kernels
from tfrecord_io.codec.kernels import FRAME_BYTES, HEAD_BYTES, frozen
from tfrecord_io.errors import ConfigError, CorruptRecordError
from tfrecord_io.examples import REMEDY, Payloads
from tfrecord_io.manifest import Compression
from tfrecord_io.schema import MOST_VALUES, Schema
from tfrecord_io.shown import some

__all__ = [
    "FRAME_BYTES",
    "MOST_RECORD_BYTES",
    "Compression",
    "check_frames",
    "encode_framed",
    "masked_crc32c",
    "read_payloads",
]

Data = bytes | bytearray | memoryview | np.ndarray

# The largest record of any valid schema.
MOST_RECORD_BYTES = 11 * MOST_VALUES


def masked_crc32c(data: Data) -> int:
    """Return the masked CRC-32C of `data`, as TFRecord stores it."""
    array = _as_bytes(data)
    return int(kernels.masked(np.uint64(kernels.crc32c(array, 0, len(array)))))


def encode_framed(columns: Mapping[str, np.ndarray], schema: Schema) -> Payloads:
    """Serialize rows like `examples.encode`, each in a TFRecord frame. Raises: as `examples.encode`."""
    return Payloads(*encoding.write(columns, schema, framed=True))


def read_payloads(
    stream: BinaryIO,
    *,
    compression: Compression,
    place: str,
    batch_bytes: int = 8 << 20,
    most_record_bytes: int = MOST_RECORD_BYTES,
) -> Iterator[Payloads]:
    """Read the messages of a TFRecord file in order, in batches of about `batch_bytes`.

    Memory does not grow with the file. `most_record_bytes`: size of the largest record that the schema allows. `place`:
    the file, for error messages, which count records and bytes from the start of the decompressed file.

    Raises:
        CorruptRecordError: a frame or the gzip data is damaged, or a record is too large.
        ConfigError: `compression` or `batch_bytes` is invalid; raised before the first batch is requested.
    """
    if compression not in ("none", "gzip") or batch_bytes < 1:
        raise ConfigError(
            f"compression is {compression!r} and batch_bytes is {batch_bytes}, expected none or gzip, and at least 1"
        )
    plain = iter(lambda: stream.read(batch_bytes), b"")
    chunks = plain if compression == "none" else _inflate(stream, place=place, chunk_bytes=batch_bytes)
    return _batches(chunks, place=place, most=most_record_bytes)


def check_frames(data: np.ndarray, *, place: str, first_record: int) -> None:
    """Raise CorruptRecordError for the first damaged TFRecord frame in `data`, uint8. `place`: the file's name."""
    _take(_as_bytes(data), place=place, record=first_record, last=True)


def _batches(chunks: Iterator[bytes], *, place: str, most: int) -> Iterator[Payloads]:
    rest, record, byte = bytearray(), 0, 0
    for chunk in chunks:
        rest += chunk
        payloads = _take(_as_bytes(rest), place=place, record=record, byte=byte, most=most, last=False)
        if len(payloads):
            size = len(payloads.data) + len(payloads) * FRAME_BYTES
            rest, record, byte = rest[size:], record + len(payloads), byte + size
            yield payloads
    _take(_as_bytes(rest), place=place, record=record, byte=byte, most=most, last=True)


def _inflate(stream: BinaryIO, *, place: str, chunk_bytes: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    while not inflater.eof:
        packed = inflater.unconsumed_tail or stream.read(chunk_bytes)
        if not packed:
            raise CorruptRecordError(f"{place}: the gzip data is cut off, expected an end mark", remedy=REMEDY)
        try:
            chunk = inflater.decompress(packed, chunk_bytes)
        except zlib.error as error:
            raise CorruptRecordError(f"{place}: damaged gzip data ({error})", remedy=REMEDY) from error
        if chunk:
            yield chunk
    if inflater.unused_data or stream.read(1):
        raise CorruptRecordError(f"{place}: bytes follow the gzip data, expected the end of the file", remedy=REMEDY)


def _take(
    data: np.ndarray, *, place: str, record: int = 0, byte: int = 0, most: int = MOST_RECORD_BYTES, last: bool
) -> Payloads:
    # With `last`, nothing may follow the complete frames.
    out, offsets = np.empty(len(data), np.uint8), np.empty(len(data) // FRAME_BYTES + 1, np.int64)
    count, end, is_damaged = kernels.read_frames(data, out, offsets)
    rest, place = data[end:], f"{place}, record {record + count} at byte {byte + end}"
    size = _uint(rest[:8])
    if is_damaged:
        message = out[offsets[count] : offsets[count + 1]]
        raise _wrong_crc(place, "data", message, rest[HEAD_BYTES + size :][:4])
    if len(rest) >= HEAD_BYTES and masked_crc32c(rest[:8]) != _uint(rest[8:12]):
        raise _wrong_crc(place, "size", rest[:8], rest[8:12])
    if len(rest) >= HEAD_BYTES and size > most:
        raise CorruptRecordError(f"{place}: {some(size, 'byte')}, expected at most {most:,}", remedy=REMEDY)
    if last and len(rest):
        if len(rest) >= HEAD_BYTES:
            missing = some(size + FRAME_BYTES - len(rest), "missing byte")
        else:
            missing = f"at least {some(HEAD_BYTES - len(rest), 'missing byte')}"
        raise CorruptRecordError(f"{place}: cut off, with {missing}", remedy=REMEDY)
    return Payloads(out[: offsets[count]], offsets[: count + 1])


def _wrong_crc(place: str, part: str, data: np.ndarray, stored: np.ndarray) -> CorruptRecordError:
    got, expected = masked_crc32c(data), _uint(stored)
    return CorruptRecordError(f"{place}: {part} crc {got:#010x}, expected {expected:#010x}", remedy=REMEDY)


def _as_bytes(data: Data) -> np.ndarray:
    array = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return frozen(array)


def _uint(data: np.ndarray) -> int:
    return int.from_bytes(data.tobytes(), "little")
