"""Loops compiled by Numba (kernels): loads, stores, CRC-32C and TFRecord frames.

Kernels release the GIL, don't check bounds and never raise. Inputs are read-only, so that each element type is compiled
once. Inner loops use unsigned indices, since Numba's test for negative indices prevents SIMD.

Numba's cache ignores changes in other files. After a change here, touch the files of the kernels that call it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

try:
    import numba
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "reading records by number needs numba, which is not installed; run `pip install 'tfrecord-io[random]'`"
    ) from missing

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    """Compile a function with Numba at its first call, and cache the machine code on disk."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no cache folder is writable: compile in every process
        return numba.njit(nogil=True)(function)


def frozen(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of `array`, copied if it is strided, misaligned or byte-swapped."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    view = np.require(native, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


@jit
def load(data: np.ndarray, position: int) -> int:
    """Return the little-endian uint64 at byte `position` of `data`, uint8. LLVM makes it one instruction."""
    at, word = np.uint64(position), np.uint64(0)
    for k in range(8):
        word |= np.uint64(data[at + np.uint64(k)]) << np.uint64(8 * k)
    return word


@jit
def load_4(data: np.ndarray, position: int) -> int:
    at, word = np.uint64(position), np.uint32(0)
    for k in range(4):
        word |= np.uint32(data[at + np.uint64(k)]) << np.uint32(8 * k)
    return word


@jit
def store(data: np.ndarray, position: int, word: int) -> None:
    at = np.uint64(position)
    for k in range(8):
        data[at + np.uint64(k)] = np.uint8(word >> np.uint64(8 * k))


@jit
def store_4(data: np.ndarray, position: int, word: int) -> None:
    at = np.uint64(position)
    for k in range(4):
        data[at + np.uint64(k)] = np.uint8(word >> np.uint32(8 * k))


@jit
def copy(out: np.ndarray, position: int, data: np.ndarray, start: int, size: int) -> None:
    to, source = np.uint64(position), np.uint64(start)
    for k in range(np.uint64(size)):
        out[to + np.uint64(k)] = data[source + np.uint64(k)]


# De Bruijn sequence: the 6 highest bits of its product with a power of two identify the power.
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_BITS = np.zeros(64, np.int64)
_BITS[(np.uint64(1) << np.arange(64, dtype=np.uint64)) * _SEQUENCE >> np.uint64(58)] = np.arange(64)


@jit
def lowest_bit(word: int) -> int:
    return _BITS[(word & (~word + np.uint64(1))) * _SEQUENCE >> np.uint64(58)]


HEAD_BYTES, FRAME_BYTES = 12, 16  # of a frame: bytes before its data, and bytes besides its data


def _crc_tables() -> np.ndarray:
    # Row k has the crcs of each byte followed by k zero bytes. Polynomial 0x1EDC6F41, reversed.
    tables = np.zeros((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ (np.uint32(0x82F63B78) * (crc & np.uint32(1)))
    tables[0] = crc
    for k in range(1, 8):
        crc = (crc >> np.uint32(8)) ^ tables[0][crc & np.uint32(0xFF)]
        tables[k] = crc
    return tables


_CRC = _crc_tables()


@jit
def crc32c(data: np.ndarray, start: int, stop: int) -> int:
    """Return the CRC-32C of data[start:stop]; `data` is uint8."""
    at, crc = start, np.uint32(0xFFFFFFFF)
    while at + 8 <= stop:
        word, crc = load(data, at) ^ np.uint64(crc), np.uint32(0)
        for k in range(8):
            crc ^= _CRC[7 - k, (word >> np.uint64(8 * k)) & np.uint64(0xFF)]
        at += 8
    for p in range(at, stop):
        crc = (crc >> np.uint32(8)) ^ _CRC[0, (crc ^ np.uint32(data[p])) & np.uint32(0xFF)]
    return np.uint64(crc ^ np.uint32(0xFFFFFFFF))


@jit
def masked(crc: int) -> int:
    """Mask a CRC-32C, uint64, as TFRecord stores it: rotated right by 15 bits, plus a constant. Return uint32.

    It takes no data, because passing an array to a kernel takes 31 ns.
    """
    rotated = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return np.uint32((rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF))


@jit
def put_frames(out: np.ndarray, offsets: np.ndarray) -> None:
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1] - 4
        store(out, start, np.uint64(end - start - HEAD_BYTES))
        store_4(out, start + 8, masked(crc32c(out, start, start + 8)))
        store_4(out, end, masked(crc32c(out, start + HEAD_BYTES, end)))


@jit
def read_frames(data: np.ndarray, out: np.ndarray, offsets: np.ndarray) -> tuple[int, int, bool]:
    """Read TFRecord frames from `data` up to the first damaged or incomplete one.

    Sets `offsets`, and copies the content of frame i to out[offsets[i] : offsets[i + 1]].

    Returns: the number of undamaged frames; the position after them; and whether the next frame is complete, but its
        content has a wrong crc. In that case, its content is in `out`, too.
    """
    count, position = 0, np.int64(0)
    offsets[0] = 0
    while len(data) - position >= FRAME_BYTES:
        if masked(crc32c(data, position, position + 8)) != load_4(data, position + 8):
            break
        word, start = load(data, position), position + HEAD_BYTES
        if word > np.uint64(len(data) - position - FRAME_BYTES):
            break
        size = np.int64(word)
        offsets[count + 1] = offsets[count] + size
        copy(out, offsets[count], data, start, size)
        if masked(crc32c(data, start, start + size)) != load_4(data, start + size):
            return count, position, True
        position += FRAME_BYTES + size
        count += 1
    return count, position, False


@jit
def find_frames(
    data: np.ndarray,
    starts_N: np.ndarray,
    stops_N: np.ndarray,
    skips_N: np.ndarray,
    check: bool,
    begins_N: np.ndarray,
    ends_N: np.ndarray,
) -> int:
    """Find N records among the TFRecord frames in `data`: set `begins_N` and `ends_N` to their bounds in bytes.

    Record n is the frame that follows `skips_N[n]` others from byte `starts_N[n]` on. `check`: compare the crcs.

    Returns: the first n with a frame that is damaged or extends past byte `stops_N[n]`, or N if there is none.
    """
    for n in range(len(starts_N)):
        end = starts_N[n] - 4
        for _ in range(skips_N[n] + 1):
            position = end + 4
            if stops_N[n] - position < FRAME_BYTES:
                return n
            if check and masked(crc32c(data, position, position + 8)) != load_4(data, position + 8):
                return n
            size = load(data, position)
            if size > np.uint64(stops_N[n] - position - FRAME_BYTES):
                return n
            begins_N[n], end = position + HEAD_BYTES, position + HEAD_BYTES + np.int64(size)
        if check and masked(crc32c(data, begins_N[n], end)) != load_4(data, end):
            return n
        ends_N[n] = end
    return len(starts_N)
