"""The tools of every compiled loop: how they are compiled, and the memory accesses that Numba has no words for.

Every kernel releases the GIL. None of them raises: a kernel that meets damage reports where it stopped, and Python,
which is in no hurry then, says what is wrong. Kernels take read-only arrays for what they only read (see `frozen`), so
that each element type is compiled once.

Compiled code is kept beside its file, or in the user's cache folder. Numba throws it away when the kernel's own file
changes, but not when a file that it calls into does: after a change here, touch the files of the kernels.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, config, entrypoints, types
from numba.extending import intrinsic

INT64_LIST, FLOAT_LIST = 0x1A, 0x12  # tags of an Example's lists of values

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


def compiles_for(*features: str) -> bool:
    """Whether the processor that code is compiled for is an x86-64 with all these features, by LLVM's names."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    if config.CPU_NAME or config.CPU_FEATURES is not None:  # set by who wants code for another processor
        return all(f"+{feature}" in (config.CPU_FEATURES or "") for feature in features)
    host = get_host_cpu_features()
    return all(host.get(feature) for feature in features)


def frozen(array: np.ndarray) -> np.ndarray:
    """A view of `array`, copied where it is strided, misaligned or byte-swapped, that cannot be written to."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    view = np.require(native, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


@intrinsic
def load(typingctx: Any, data: Any, position: Any) -> Any:
    """The 8 bytes at `position` as a little-endian uint64; no alignment needed, no bounds checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word_pointer(context, builder, signature, args), align=1)

    return types.uint64(data, types.int64), codegen


@intrinsic
def store(typingctx: Any, data: Any, position: Any, word: Any) -> Any:
    """Writes a uint64 as the 8 bytes at `position`; no alignment needed, no bounds checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word_pointer(context, builder, signature, args), align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), codegen


def _word_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    word = context.get_value_type(types.uint64).as_pointer()
    return builder.bitcast(byte_pointer(context, builder, signature.args[0], args[0], args[1]), word)


def byte_pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """For intrinsics: the address of an array's element, its bytes if these are its elements."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@intrinsic
def copy(typingctx: Any, out: Any, position: Any, data: Any, start: Any, size: Any) -> Any:
    """memcpy of `size` bytes, no bounds checked. A loop over bytes reaches a third of its speed (measured)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = byte_pointer(context, builder, signature.args[0], args[0], args[1])
        source = byte_pointer(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, target, source, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), codegen


@intrinsic
def leading_zeros(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], context.get_constant(types.boolean, True))  # undefined for 0

    return types.uint64(types.uint64), codegen


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, True))  # undefined for 0

    return types.uint64(types.uint64), codegen


@jit
def varint_size(value: int) -> int:
    """Bytes of a varint, 1 to 10: one for every 7 bits begun."""
    bits = np.uint64(64) - leading_zeros(np.uint64(value) | np.uint64(1))
    return np.int64((bits * np.uint64(9) + np.uint64(64)) >> np.uint64(6))
