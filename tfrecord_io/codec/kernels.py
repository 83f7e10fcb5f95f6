"""The tools of every compiled loop: how they are compiled, and what they share.

Every kernel releases the GIL. None of them raises: a kernel that meets damage reports where it stopped, and Python,
which is in no hurry then, says what is wrong. Kernels take read-only arrays for what they only read (see `frozen`), so
that each element type is compiled once. No bounds are checked. Indices in inner loops are unsigned: whether a signed
one counts from the end is tested for each element, and such a loop is no SIMD.

Compiled code is kept beside its file, or in the user's cache folder. Numba throws it away when the kernel's own file
changes, but not when a file that it calls into does: after a change here, touch the files of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import entrypoints

__all__ = ["copy", "frozen", "jit", "leave_out_extensions", "load", "load_4", "lowest_bit", "store", "store_4"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor the user's cache folder can be written: compile in every process
        return numba.njit(nogil=True)(function)


def leave_out_extensions() -> None:
    """For a process that is nobody else's: Numba is not to load what other packages teach it (types that no kernel here
    has), which takes longer than all kernels.
    """
    if hasattr(entrypoints, "_already_initialized"):
        entrypoints._already_initialized = True


def frozen(array: np.ndarray) -> np.ndarray:
    """A view of `array`, copied where it is strided, misaligned or byte-swapped, that cannot be written to."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    view = np.require(native, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


@jit
def load(data: np.ndarray, position: int) -> int:
    """The 8 bytes at `position` as a little-endian uint64. LLVM makes one instruction of the loop."""
    at, word = np.uint64(position), np.uint64(0)
    for k in range(8):
        word |= np.uint64(data[at + np.uint64(k)]) << np.uint64(8 * k)
    return word


@jit
def load_4(data: np.ndarray, position: int) -> int:
    """The 4 bytes at `position` as a uint32 likewise."""
    at, word = np.uint64(position), np.uint32(0)
    for k in range(4):
        word |= np.uint32(data[at + np.uint64(k)]) << np.uint32(8 * k)
    return word


@jit
def store(data: np.ndarray, position: int, word: int) -> None:
    """Writes a uint64 as the 8 bytes at `position`, little-endian."""
    at = np.uint64(position)
    for k in range(8):
        data[at + np.uint64(k)] = np.uint8(word >> np.uint64(8 * k))


@jit
def store_4(data: np.ndarray, position: int, word: int) -> None:
    """Writes a uint32 as 4 bytes likewise."""
    at = np.uint64(position)
    for k in range(4):
        data[at + np.uint64(k)] = np.uint8(word >> np.uint32(8 * k))


@jit
def copy(out: np.ndarray, position: int, data: np.ndarray, start: int, size: int) -> None:
    """Copies `size` bytes."""
    to, source = np.uint64(position), np.uint64(start)
    for k in range(np.uint64(size)):
        out[to + np.uint64(k)] = data[source + np.uint64(k)]


# A word with one bit set, times this number, has in its 6 highest bits a number of its own (de Bruijn).
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_BITS = np.zeros(64, np.int64)
_BITS[(np.uint64(1) << np.arange(64, dtype=np.uint64)) * _SEQUENCE >> np.uint64(58)] = np.arange(64)


@jit
def lowest_bit(word: int) -> int:
    """The number of the lowest bit that is set in a uint64, which must not be 0."""
    return _BITS[(word & (~word + np.uint64(1))) * _SEQUENCE >> np.uint64(58)]
