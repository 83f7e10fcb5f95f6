"""The TFRecord container: messages in frames, one after the other. The work is done in `codec.records`."""

from __future__ import annotations

from tfrecord_io.codec.records import (
    FRAME_BYTES,
    MOST_RECORD_BYTES,
    Compression,
    Frames,
    Memory,
    crc32c,
    encode_framed,
    frame,
    masked_crc32c,
    read_payloads,
    scan,
)

__all__ = [
    "FRAME_BYTES",
    "MOST_RECORD_BYTES",
    "Compression",
    "Frames",
    "Memory",
    "crc32c",
    "encode_framed",
    "frame",
    "masked_crc32c",
    "read_payloads",
    "scan",
]
