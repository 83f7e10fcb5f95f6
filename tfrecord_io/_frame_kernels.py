"""The compiled loops under `records`: crc32c, and frames put on and taken off.

A frame, all integers little-endian:

    uint64 size │ uint32 masked crc of the size │ data │ uint32 masked crc of the data
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tfrecord_io._kernels import compiles_for, copy, jit, load, store

FRAME_BYTES = 16  # what a frame adds to its data


def _crc_tables() -> np.ndarray:
    """Row k holds the crc of each byte followed by k zero bytes (polynomial 0x1EDC6F41, bits reversed)."""
    tables = np.zeros((16, 256), np.uint64)
    crc = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        crc = (crc >> np.uint64(1)) ^ (np.uint64(0x82F63B78) * (crc & np.uint64(1)))
    tables[0] = crc
    for k in range(1, 16):
        crc = (crc >> np.uint64(8)) ^ tables[0][crc & np.uint64(0xFF)]
        tables[k] = crc
    return tables.astype(np.uint32)


_CRC = _crc_tables()


@jit
def _crc_of_word(word: int, row: int) -> int:
    """The crc of 8 bytes followed by `row` more zero bytes, without the usual inversions."""
    crc = np.uint32(0)
    for k in range(8):
        crc ^= _CRC[row + 7 - k, (word >> np.uint64(8 * k)) & np.uint64(0xFF)]
    return crc


@intrinsic
def _crc_instruction(typingctx: Any, crc: Any, word: Any) -> Any:
    name = "llvm.x86.sse42.crc32.64.64"

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word_type = ir.IntType(64)
        kind = ir.FunctionType(word_type, [word_type, word_type])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return types.uint64(types.uint64, types.uint64), codegen


@jit
def _crc_by_tables(data: np.ndarray, position: int, end: int, crc: int) -> tuple[int, int]:
    """16 bytes a step: only half of the look-ups wait for the step before. Returns: where it stopped, and the crc."""
    while position + 16 <= end:
        second = _crc_of_word(load(data, position + 8), 0)
        crc = np.uint64(_crc_of_word(load(data, position) ^ crc, 8) ^ second)
        position += 16
    return position, crc


@jit
def _crc_by_instruction(data: np.ndarray, position: int, end: int, crc: int) -> tuple[int, int]:
    """The same, 8 bytes a step."""
    while position + 8 <= end:
        crc = _crc_instruction(crc, load(data, position))
        position += 8
    return position, crc


# SSE 4.2 has an instruction for this very crc.
_crc_of_words = _crc_by_instruction if compiles_for("sse4.2") else _crc_by_tables


@jit
def crc32c(data: np.ndarray, start: int, end: int) -> int:
    """Castagnoli crc of data[start:end]."""
    position, crc = _crc_of_words(data, start, end, np.uint64(0xFFFFFFFF))
    while position < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_CRC[0, (crc ^ np.uint64(data[position])) & np.uint64(0xFF)])
        position += 1
    return crc ^ np.uint64(0xFFFFFFFF)


@jit
def masked_crc32c(data: np.ndarray, start: int, end: int) -> int:
    """The crc as a TFRecord stores it: rotated and shifted, so that a crc over data that holds crcs stays strong."""
    crc = crc32c(data, start, end)
    rotated = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return (rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)


@jit
def _put_crc(out: np.ndarray, position: int, crc: int) -> None:
    for k in range(4):
        out[position + k] = np.uint8((crc >> np.uint64(8 * k)) & np.uint64(0xFF))


@jit
def _take_crc(data: np.ndarray, position: int) -> int:
    crc = np.uint64(0)
    for k in range(4):
        crc |= np.uint64(data[position + k]) << np.uint64(8 * k)
    return crc


@jit
def write_frames(data: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Frames each record. A record is copied and summed in turn, so that the sum finds it in the nearest cache."""
    position = 0
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        store(out, position, np.uint64(end - start))
        _put_crc(out, position + 8, masked_crc32c(out, position, position + 8))
        position += 12
        copy(out, position, data, start, end - start)
        position += end - start
        _put_crc(out, position, masked_crc32c(data, start, end))
        position += 4


@jit
def survey_frames(data: np.ndarray) -> tuple[int, int]:
    """Counts whole frames with a sound length. Returns: how many, and where the first byte after them is."""
    count, position = 0, 0
    while len(data) - position >= 16 and masked_crc32c(data, position, position + 8) == _take_crc(data, position + 8):
        size = load(data, position)
        if size > np.uint64(len(data) - position - 16):
            break
        position += 16 + np.int64(size)
        count += 1
    return count, position


@jit
def read_frames(data: np.ndarray, out: np.ndarray, offsets: np.ndarray) -> int:
    """Takes surveyed frames off. Returns: the first record whose data crc is wrong, or the number of records."""
    position = 0
    offsets[0] = 0
    for row in range(len(offsets) - 1):
        size = np.int64(load(data, position))
        start, end = offsets[row], offsets[row] + size
        offsets[row + 1] = end
        copy(out, start, data, position + 12, size)
        if masked_crc32c(out, start, end) != _take_crc(data, position + 12 + size):
            return row
        position += 16 + size
    return len(offsets) - 1
