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

from tfrecord_io.codec.addresses import copy_bytes, peek, poke
from tfrecord_io.codec.kernels import compiles_for, jit

HEAD_BYTES, FRAME_BYTES = 12, 16  # of a frame: what is in front of its data, and what it adds to them

_MOST_WORDS = 256  # of a stripe
_FEWEST_WORDS = 8  # below, stripes take longer to put together than they save


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


def _advances() -> np.ndarray:
    """Entry n, multiplied without carries with a crc and fed to the crc instruction, gives the crc after n words of 0.

    As polynomials modulo the crc's own, entry n is x^(64 n - 33): the product of two numbers in reversed bits is off by
    x, and the instruction multiplies by x^32. Entry 1 is x^31, which is 1 in reversed bits.
    """
    advances, advance = [0], 1
    for _ in range(2 * _MOST_WORDS):
        advances.append(advance)
        for _ in range(8):
            advance = (advance >> 8) ^ int(_CRC[0, advance & 0xFF])
    return np.array(advances, np.uint64)


_ADVANCES = _advances()


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


@intrinsic
def _product(typingctx: Any, one: Any, other: Any) -> Any:
    """The low word of the product without carries."""
    name = "llvm.x86.pclmulqdq"

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair, index = ir.VectorType(ir.IntType(64), 2), ir.IntType(32)(0)
        kind = ir.FunctionType(pair, [pair, pair, ir.IntType(8)])
        pairs = [builder.insert_element(pair(None), arg, index) for arg in args]
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.extract_element(builder.call(function, [*pairs, ir.IntType(8)(0)]), index)

    return types.uint64(types.uint64, types.uint64), codegen


@jit
def _word(address: int) -> int:
    return peek(address, 0, np.uint64(0))


@jit
def _crc_by_tables(position: int, end: int, crc: int) -> tuple[int, int]:
    """16 bytes a step: only half of the look-ups wait for the step before. Returns: where it stopped, and the crc."""
    while position + 16 <= end:
        second = _crc_of_word(_word(position + 8), 0)
        crc = np.uint64(_crc_of_word(_word(position) ^ crc, 8) ^ second)
        position += 16
    return position, crc


@jit
def _crc_by_instruction(position: int, end: int, crc: int) -> tuple[int, int]:
    """The same, 8 bytes a step."""
    while position + 8 <= end:
        crc = _crc_instruction(crc, _word(position))
        position += 8
    return position, crc


@jit
def _crc_by_stripes(position: int, end: int, crc: int) -> tuple[int, int]:
    """The same in three stripes, since the instruction takes three cycles but can begin in each of them."""
    while end - position >= 24 * _FEWEST_WORDS:
        words = min((end - position) // 24, _MOST_WORDS)
        second_start, third_start = position + 8 * words, position + 16 * words
        second, third = np.uint64(0), np.uint64(0)
        for offset in range(0, 8 * words, 8):
            crc = _crc_instruction(crc, _word(position + offset))
            second = _crc_instruction(second, _word(second_start + offset))
            third = _crc_instruction(third, _word(third_start + offset))
        before = _product(crc, _ADVANCES[2 * words]) ^ _product(second, _ADVANCES[words])
        crc = _crc_instruction(np.uint64(0), before) ^ third
        position += 24 * words
    return _crc_by_instruction(position, end, crc)


def _best_way() -> Any:
    """SSE 4.2 has an instruction for this very crc."""
    if not compiles_for("sse4.2"):
        return _crc_by_tables
    return _crc_by_stripes if compiles_for("pclmul") else _crc_by_instruction


_crc_of_words = _best_way()


@jit
def _crc_between(start: int, end: int) -> int:
    """Castagnoli crc of the bytes between two addresses."""
    position, crc = _crc_of_words(start, end, np.uint64(0xFFFFFFFF))
    while position < end:
        byte = np.uint64(peek(position, 0, np.uint8(0)))
        crc = (crc >> np.uint64(8)) ^ np.uint64(_CRC[0, (crc ^ byte) & np.uint64(0xFF)])
        position += 1
    return crc ^ np.uint64(0xFFFFFFFF)


@jit
def _masked_crc_between(start: int, end: int) -> int:
    """The crc as a TFRecord stores it: rotated and shifted, so that a crc over data that holds crcs stays strong."""
    crc = _crc_between(start, end)
    rotated = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return np.uint32((rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF))


@jit
def crc32c(data: np.ndarray) -> int:
    """Castagnoli crc of bytes."""
    first = np.int64(data.ctypes.data)
    return _crc_between(first, first + len(data))


@jit
def masked_crc32c(data: np.ndarray) -> int:
    """The crc of bytes as a TFRecord stores it."""
    first = np.int64(data.ctypes.data)
    return _masked_crc_between(first, first + len(data))


@jit
def put_frame(start: int, end: int) -> int:
    """Writes the frame that begins at an address around its data, which lie there already and end at another.

    Returns: the address after the frame.
    """
    poke(start, 0, np.uint64(end - start - HEAD_BYTES))
    poke(start + 8, 0, _masked_crc_between(start, start + 8))
    poke(end, 0, _masked_crc_between(start + HEAD_BYTES, end))
    return end + 4


@jit
def write_frames(data: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Frames each record. A record is copied and summed in turn, so that the sum finds it in the nearest cache."""
    first, position = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    for row in range(len(offsets) - 1):
        size = offsets[row + 1] - offsets[row]
        copy_bytes(position + HEAD_BYTES, first + offsets[row], size)
        position = put_frame(position, position + HEAD_BYTES + size)


@jit
def survey_frames(data: np.ndarray) -> tuple[int, int]:
    """Counts whole frames with a sound length. Returns: how many, and where the first byte after them is."""
    count, position, first = 0, np.int64(0), np.int64(data.ctypes.data)
    while len(data) - position >= FRAME_BYTES:
        here = first + position
        if _masked_crc_between(here, here + 8) != peek(here + 8, 0, np.uint32(0)):
            break
        size = _word(here)
        if size > np.uint64(len(data) - position - FRAME_BYTES):
            break
        position += FRAME_BYTES + np.int64(size)
        count += 1
    return count, position


@jit
def read_frames(data: np.ndarray, out: np.ndarray, offsets: np.ndarray) -> int:
    """Takes surveyed frames off. Returns: the first record whose data crc is wrong, or the number of records."""
    position, first = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    offsets[0] = 0
    for row in range(len(offsets) - 1):
        size = np.int64(_word(position))
        start = first + offsets[row]
        offsets[row + 1] = offsets[row] + size
        copy_bytes(start, position + HEAD_BYTES, size)
        if _masked_crc_between(start, start + size) != peek(position + HEAD_BYTES + size, 0, np.uint32(0)):
            return row
        position += FRAME_BYTES + size
    return len(offsets) - 1


@jit
def find_frame(first: int, start: int, stop: int, skip: int, check: bool) -> tuple[int, int]:
    """Finds the data of the record that is `skip` frames after byte `start` of what lies at an address.

    Returns: where they begin, and their size; -1 twice if a frame on the way is damaged or goes on after `stop`.
    """
    position = start
    while stop - position >= FRAME_BYTES:
        here = first + position
        if check and _masked_crc_between(here, here + 8) != peek(here + 8, 0, np.uint32(0)):
            break
        if _word(here) > np.uint64(stop - position - FRAME_BYTES):
            break
        size = np.int64(_word(here))
        if skip == 0:
            here += HEAD_BYTES
            if check and _masked_crc_between(here, here + size) != peek(here + size, 0, np.uint32(0)):
                break
            return position + HEAD_BYTES, size
        position += FRAME_BYTES + size
        skip -= 1
    return np.int64(-1), np.int64(-1)
