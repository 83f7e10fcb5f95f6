"""Checksums of pieces of an array without Numba: by google-crc32c where it is installed, else by a table in Python.

google-crc32c takes 0.2 us for a record of 1.3 kB, the table 110 us.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

__all__ = ["crc32c", "sound"]

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_MASK_DELTA = 0xA282EAD8


def sound(data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """Return whether the 4 bytes behind each piece are its masked crc, bool [N]."""
    stored_N4 = data[(begins_N + sizes_N)[:, np.newaxis] + np.arange(4)]
    stored_N = stored_N4.view("<u4")[:, 0]
    crc_of, view = _fastest(), data.data
    pieces = zip(begins_N.tolist(), sizes_N.tolist(), strict=True)
    crc_N = np.array([crc_of(bytes(view[begin : begin + size])) for begin, size in pieces], np.uint32)
    masked_N = ((crc_N >> np.uint32(15)) | (crc_N << np.uint32(17))) + np.uint32(_MASK_DELTA)
    same: np.ndarray = masked_N == stored_N
    return same


@functools.cache
def _fastest() -> Callable[[bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        return crc32c
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes, by a table."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) * (crc & np.uint32(1)))
    found: list[int] = crc.tolist()
    return found
