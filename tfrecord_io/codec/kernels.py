"""Tools for every compiled loop: the decorator, and small functions on arrays.

Every kernel releases the GIL, and none raises: a kernel that meets damage returns where it stopped, and Python, which
has the time then, says what is wrong. Kernels take read-only arrays for what they only read (see `frozen`), so that
each element type is compiled once. Bounds are not checked. Inner loops use unsigned indices, since Numba tests for each
element whether a signed one counts from the end, and LLVM can't turn such a loop into SIMD.

Numba caches compiled code beside the file, or in the user's cache folder. It drops the code when the kernel's own file
changes, but not when a file that the kernel calls into does: after a change here, touch the files of the kernels.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    """Compile a kernel at its first call, once for each combination of argument types, and cache the code."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor the user's cache folder can be written: compile in every process
        return numba.njit(nogil=True)(function)


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view of `array`, or of a copy if it is strided, misaligned or byte-swapped."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    view = np.require(native, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


@jit
def load(data: np.ndarray, position: int) -> int:
    """The 8 bytes at `position` as a little-endian uint64. LLVM compiles the loop to one instruction."""
    at, word = np.uint64(position), np.uint64(0)
    for k in range(8):
        word |= np.uint64(data[at + np.uint64(k)]) << np.uint64(8 * k)
    return word


@jit
def load_4(data: np.ndarray, position: int) -> int:
    """The 4 bytes at `position` as a little-endian uint32."""
    at, word = np.uint64(position), np.uint32(0)
    for k in range(4):
        word |= np.uint32(data[at + np.uint64(k)]) << np.uint32(8 * k)
    return word


@jit
def store(data: np.ndarray, position: int, word: int) -> None:
    """Write a uint64 as the 8 bytes at `position`, little-endian."""
    at = np.uint64(position)
    for k in range(8):
        data[at + np.uint64(k)] = np.uint8(word >> np.uint64(8 * k))


@jit
def store_4(data: np.ndarray, position: int, word: int) -> None:
    """Write a uint32 as the 4 bytes at `position`, little-endian."""
    at = np.uint64(position)
    for k in range(4):
        data[at + np.uint64(k)] = np.uint8(word >> np.uint32(8 * k))


@jit
def copy(out: np.ndarray, position: int, data: np.ndarray, start: int, size: int) -> None:
    """Copy `size` bytes from data[start:] to out[position:]."""
    to, source = np.uint64(position), np.uint64(start)
    for k in range(np.uint64(size)):
        out[to + np.uint64(k)] = data[source + np.uint64(k)]


# A de Bruijn sequence: times a word with a single bit set, its 6 highest bits are different for each bit.
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_BITS = np.zeros(64, np.int64)
_BITS[(np.uint64(1) << np.arange(64, dtype=np.uint64)) * _SEQUENCE >> np.uint64(58)] = np.arange(64)


@jit
def lowest_bit(word: int) -> int:
    """Number of the lowest bit that is set in a uint64 other than 0."""
    return _BITS[(word & (~word + np.uint64(1))) * _SEQUENCE >> np.uint64(58)]
