"""The TFRecord container: messages in frames, one after the other, with no header and no index.

    uint64 size │ uint32 masked crc of the size │ data │ uint32 masked crc of the data        (little-endian)

The crc is CRC-32C (RFC 3720, appendix B.4); masked, it is rotated right by 15 bits and a constant is added, as
`tensorflow/core/lib/hash/crc32c.h` defines it. So a shard cannot be damaged unnoticed, with one exception that the
format does not cover: cut off exactly between two records, it is a shorter, sound shard. Counting is for the manifest.

Reading checks every byte. A size is believed only when its crc is right, and nothing is allocated on its word alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Literal

import numpy as np

from tfrecord_io.codec import encoding, frame_kernels
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.errors import ConfigError, CorruptRecordError
from tfrecord_io.examples import Payloads
from tfrecord_io.schema import MOST_VALUES, Schema

__all__ = [
    "FRAME_BYTES",
    "MOST_RECORD_BYTES",
    "Compression",
    "check_frames",
    "crc32c",
    "encode_framed",
    "masked_crc32c",
    "read_payloads",
]

Compression = Literal["none", "gzip"]
Data = bytes | bytearray | memoryview | np.ndarray

# Of a record beside its data: the size, and the crcs of the size and the data.
FRAME_BYTES = frame_kernels.FRAME_BYTES

# Of any schema that is allowed, with names and lengths.
MOST_RECORD_BYTES = 11 * MOST_VALUES

_REMEDY = "run `prep-tfrecords verify DATASET --repair`, which makes the shard again, or copy it from where it was made"
_HEADER_BYTES = frame_kernels.HEAD_BYTES


def crc32c(data: Data) -> int:
    """CRC-32C of the bytes."""
    array = _as_bytes(data)
    return int(frame_kernels.crc32c(array, 0, len(array)))


def masked_crc32c(data: Data) -> int:
    """CRC-32C of the bytes as a TFRecord stores it."""
    return int(frame_kernels.masked(np.uint64(crc32c(data))))


def encode_framed(columns: Mapping[str, np.ndarray], schema: Schema) -> Payloads:
    """Encode columns, which `examples.encode` describes, straight into frames.

    Message i of the result is record i with its frame, byte for byte what `tf.io.TFRecordWriter` writes.

    Raises: SchemaError if a column is missing, unknown, or of another dtype, shape or number of rows.
    """
    return Payloads(*encoding.write(columns, schema, framed=True))


def read_payloads(
    stream: BinaryIO,
    *,
    compression: Compression,
    place: str,
    batch_bytes: int = 8 << 20,
    most_record_bytes: int = MOST_RECORD_BYTES,
) -> Iterator[Payloads]:
    """Read a shard's messages in order, in batches of about `batch_bytes`; memory does not grow with the shard.

    A record larger than a batch is a batch of its own; `most_record_bytes` is what one can have, which follows from the
    schema: no more is gathered for it. Records and bytes in errors count from the start of the (decompressed) shard.

    Raises:
        CorruptRecordError: a frame is damaged, a record is too large, or gzip data is damaged, cut off or continued.
            Errors of the stream itself pass through.
        ConfigError: at once, for options that are not allowed.
    """
    if compression not in ("none", "gzip") or batch_bytes < 1:
        raise ConfigError(
            f"compression {compression!r} in batches of {batch_bytes} bytes, expected none or gzip, and 1"
        )
    chunks = _inflate if compression == "gzip" else _chunks
    scanner = _Scanner(place, most_record_bytes=most_record_bytes)
    return _batches(chunks(stream, place=place, chunk_bytes=batch_bytes), scanner)


def check_frames(data: np.ndarray, *, place: str, first_record: int) -> None:
    """Raise CorruptRecordError for the first damaged frame; bytes in the message count from the first record."""
    scanner = _Scanner(place, most_record_bytes=MOST_RECORD_BYTES, first_record=first_record)
    scanner.take(_as_bytes(data), last=True)


def _batches(chunks: Iterator[bytes], scanner: _Scanner) -> Iterator[Payloads]:
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        payloads = scanner.take(_as_bytes(rest), last=False)
        if len(payloads):
            rest = rest[len(payloads.data) + len(payloads) * frame_kernels.FRAME_BYTES :]
            yield payloads
    scanner.take(_as_bytes(rest), last=True)


def _chunks(stream: BinaryIO, *, place: str, chunk_bytes: int) -> Iterator[bytes]:
    while chunk := stream.read(chunk_bytes):
        yield chunk


def _inflate(stream: BinaryIO, *, place: str, chunk_bytes: int) -> Iterator[bytes]:
    """Decompress one gzip member, which must be all there is; zlib checks its crc and length."""
    inflater = zlib.decompressobj(wbits=31)
    while not inflater.eof:
        packed = inflater.unconsumed_tail or stream.read(chunk_bytes)
        if not packed:
            raise CorruptRecordError(f"{place}: gzip data is cut off, expected its end mark", remedy=_REMEDY)
        try:
            chunk = inflater.decompress(packed, chunk_bytes)
        except zlib.error as error:
            raise CorruptRecordError(f"{place}: damaged gzip data ({error})", remedy=_REMEDY) from error
        if chunk:
            yield chunk
    if inflater.unused_data or stream.read(1):
        raise CorruptRecordError(f"{place}: more bytes after the end of the gzip data", remedy=_REMEDY)


class _Scanner:
    """Takes frames off successive pieces of a shard, and keeps count of records and bytes."""

    def __init__(self, place: str, *, most_record_bytes: int, first_record: int = 0) -> None:
        self._place = place
        self._most_record_bytes = most_record_bytes
        self._num_records = first_record
        self._num_bytes = 0

    def take(self, data: np.ndarray, *, last: bool) -> Payloads:
        """The messages of all whole frames at the start of `data`; the `last` piece must end with one."""
        num_records, end = frame_kernels.survey_frames(data)
        out = np.empty(end - num_records * frame_kernels.FRAME_BYTES, np.uint8)
        offsets = np.empty(num_records + 1, np.int64)
        sound = frame_kernels.read_frames(data, out, offsets)
        if sound < num_records:
            start = int(offsets[sound]) + sound * frame_kernels.FRAME_BYTES
            message = out[offsets[sound] : offsets[sound + 1]]
            crc_start = start + _HEADER_BYTES + len(message)
            raise self._wrong_crc("data", message, data[crc_start : crc_start + 4], record=sound, byte=start)
        self._check_rest(data[end:], record=num_records, byte=end, last=last)
        self._num_records += num_records
        self._num_bytes += end
        return Payloads(out, offsets)

    def _check_rest(self, rest: np.ndarray, *, record: int, byte: int, last: bool) -> None:
        """Refuse anything after the whole frames but the beginning of one."""
        if len(rest) >= _HEADER_BYTES and masked_crc32c(rest[:8]) != _uint(rest[8:12]):
            raise self._wrong_crc("size", rest[:8], rest[8:12], record=record, byte=byte)
        if len(rest) >= _HEADER_BYTES and (size := _uint(rest[:8])) > self._most_record_bytes:
            raise CorruptRecordError(
                f"{self._where(record, byte)}: {size} bytes, expected at most {self._most_record_bytes}",
                remedy=_REMEDY,
            )
        if last and 0 < len(rest) < _HEADER_BYTES:
            missing = f"at least {_HEADER_BYTES - len(rest)}"
        elif last and len(rest):
            missing = str(_uint(rest[:8]) + frame_kernels.FRAME_BYTES - len(rest))
        else:
            return
        raise CorruptRecordError(f"{self._where(record, byte)}: cut off, {missing} bytes are missing", remedy=_REMEDY)

    def _wrong_crc(
        self, what: str, data: np.ndarray, stored: np.ndarray, *, record: int, byte: int
    ) -> CorruptRecordError:
        got, expected = masked_crc32c(data), _uint(stored)
        return CorruptRecordError(
            f"{self._where(record, byte)}: {what} crc {got:#010x}, expected {expected:#010x}", remedy=_REMEDY
        )

    def _where(self, record: int, byte: int) -> str:
        return f"{self._place}, record {self._num_records + record} at byte {self._num_bytes + byte}"


def _as_bytes(data: Data) -> np.ndarray:
    """A flat read-only view."""
    array = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return frozen(array)


def _uint(data: np.ndarray) -> int:
    return int.from_bytes(data.tobytes(), "little")
