"""The masked CRC-32C of many pieces of an array at once: by google-crc32c where it is installed, or by NumPy.

A crc without its inversions is linear. So the words of a message are summed up by themselves, and then joined in pairs,
of all messages at once; what is on the left of a pair is first moved on by the length of its right:

    crc(a b c d)  =  move(move(a) ^ b) ^ (move(c) ^ d)          zeros in front of a message change nothing
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

__all__ = ["masked_crcs", "sound"]

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_MASK_DELTA = 0xA282EAD8
# Of the matrix of words at a time, so that a batch of long rows takes little memory.
_WORDS_AT_ONCE = 1 << 22


def sound(data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """bool [N]: whether the 4 bytes behind each piece are its masked crc."""
    stored_N4 = data[(begins_N + sizes_N)[:, np.newaxis] + np.arange(4)]
    stored_N: np.ndarray = stored_N4.view("<u4")[:, 0]
    same: np.ndarray = masked_crcs(data, begins_N, sizes_N) == stored_N
    return same


def masked_crcs(data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """The masked crc of each piece, uint32 [N]."""
    crc_N = _crcs(data, begins_N, sizes_N)
    rotated_N = (crc_N >> np.uint32(15)) | (crc_N << np.uint32(17))
    return rotated_N + np.uint32(_MASK_DELTA)


def _crcs(data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    value = _library()
    if value is None:
        return crcs_by_numpy(data, begins_N, sizes_N)
    content = np.ascontiguousarray(data).data
    pieces = zip(begins_N.tolist(), sizes_N.tolist(), strict=True)
    return np.array([value(bytes(content[begin : begin + size])) for begin, size in pieces], np.uint32)


@functools.cache
def _library() -> Callable[..., int] | None:
    """The compiled crc of google-crc32c, which whoever reads from gs:// has."""
    try:
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c.value if google_crc32c.implementation == "c" else None


def crcs_by_numpy(data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """The crc of each piece, uint32 [N], for pieces of at least 4 bytes."""
    crc_N = np.empty(len(sizes_N), np.uint32)
    order = np.argsort(sizes_N, kind="stable")
    at = 0
    while at < len(order):
        words = -(-int(sizes_N[order[-1]]) // 4)
        chosen = order[at : at + max(1, _WORDS_AT_ONCE // max(words, 1))]
        crc_N[chosen] = _joined(_words(data, begins_N[chosen], sizes_N[chosen]))
        at += len(chosen)
    return crc_N ^ np.uint32(0xFFFFFFFF)


def _words(data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """The pieces as words uint32 [N, W], with zeros in front; the first 4 bytes of each inverted, as a crc begins."""
    width = -(-int(sizes_N.max(initial=4)) // 4) * 4
    bytes_NW = np.zeros((len(sizes_N), width), np.uint8)
    for row, begin, size in zip(bytes_NW, begins_N.tolist(), sizes_N.tolist(), strict=True):
        row[width - size :] = data[begin : begin + size]
        row[width - size : width - size + 4] ^= 0xFF
    return bytes_NW.view("<u4").astype(np.uint32, copy=False)


def _joined(words_NW: np.ndarray) -> np.ndarray:
    """uint32 [N]: the crc of each row of words, without inversions."""
    crc_NW, level = _moved(words_NW, 0), 0
    while crc_NW.shape[1] > 1:
        if crc_NW.shape[1] % 2:
            crc_NW = np.pad(crc_NW, ((0, 0), (1, 0)))
        crc_NW = _moved(crc_NW[:, 0::2], level) ^ crc_NW[:, 1::2]
        level += 1
    return crc_NW[:, 0]


def _moved(crc_NW: np.ndarray, level: int) -> np.ndarray:
    """The crcs after 4 * 2^level more zero bytes. Of a word, level 0 gives its own crc."""
    tables = _move_tables(level)
    moved = tables[0][crc_NW & np.uint32(0xFF)]
    for byte in range(1, 4):
        moved ^= tables[byte][(crc_NW >> np.uint32(8 * byte)) & np.uint32(0xFF)]
    return moved


@functools.cache
def _move_tables(level: int) -> np.ndarray:
    """uint32 [4, 256]: what each byte of a crc becomes after 4 * 2^level zero bytes."""
    if level:
        return _moved(_move_tables(level - 1), level - 1)
    crc = np.arange(256, dtype=np.uint64) << (8 * np.arange(4, dtype=np.uint64))[:, np.newaxis]
    for _ in range(32):
        crc = (crc >> np.uint64(1)) ^ (np.uint64(_POLYNOMIAL) * (crc & np.uint64(1)))
    return crc.astype(np.uint32)
