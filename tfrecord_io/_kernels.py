"""The compiled loops under `examples`: varints and the entries of an Example; and the tools of every kernel.

Every kernel releases the GIL. None of them raises: a kernel that meets damage reports where it stopped, and Python,
which is in no hurry then, says what is wrong. Kernels take read-only arrays for what they only read (see `frozen`), so
that each element type is compiled once.

Compiled code is kept beside this file, or in the user's cache folder. Numba throws it away when the kernel's own file
changes, but not when a file that it calls into does: after a change of `load` or `store`, touch `_frame_kernels` too.

One entry of an Example, written and read per feature (sizes are varints, each counts the bytes to its right):

    0a E  0a K name  12 V  1a|12 W  0a P  payload
    │     └─ `key` ────┘   │        └ the packed values: varints (int64_list, 1a) or 4 bytes each (float_list, 12)
    └ entry of the map     └ Feature: the kind of its list
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

INT64_LIST, FLOAT_LIST = 0x1A, 0x12
# What a reading kernel says of a record, see `examples`.
OK, BAD_PREFIX, NO_ENTRY, OTHER_KIND, BAD_SIZES, BAD_COUNT, BAD_VARINT, EXTRA_BYTES = range(8)
SLACK = 8  # bytes past the end of an output that a kernel may write to, and puts back

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor the user's cache folder can be written: compile in every process
        return numba.njit(nogil=True)(function)


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
    return builder.bitcast(_byte_pointer(context, builder, signature.args[0], args[0], args[1]), word)


def _byte_pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@intrinsic
def copy(typingctx: Any, out: Any, position: Any, data: Any, start: Any, size: Any) -> Any:
    """memcpy of `size` bytes, no bounds checked. A loop over bytes reaches a third of its speed (measured)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _byte_pointer(context, builder, signature.args[0], args[0], args[1])
        source = _byte_pointer(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, target, source, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), codegen


@intrinsic
def _leading_zeros(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], context.get_constant(types.boolean, True))  # undefined for 0

    return types.uint64(types.uint64), codegen


@intrinsic
def _trailing_zeros(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, True))  # undefined for 0

    return types.uint64(types.uint64), codegen


# ---------------------------------------------------------------------------------------------------------- varints
# A varint below 2**56 is spread over one word (7 bits a byte) by three halving steps, rather than byte by byte: ids of
# 2 and 3 bytes alternate at random, and a branch on their length would be mispredicted for every other token.


@jit
def _varint_size(value: int) -> int:
    """Bytes of a varint, 1 to 10: one for every 7 bits begun."""
    bits = np.uint64(64) - _leading_zeros(np.uint64(value) | np.uint64(1))
    return np.int64((bits * np.uint64(9) + np.uint64(64)) >> np.uint64(6))


@jit
def _spread(value: int) -> int:
    x = np.uint64(value)
    x = (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x00FFFFFFF0000000)) << np.uint64(4))
    x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x0FFFC0000FFFC000)) << np.uint64(2))
    return (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x3F803F803F803F80)) << np.uint64(1))


@jit
def _gather(word: int) -> int:
    x = np.uint64(word)
    x = (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


@jit
def _put_varint(out: np.ndarray, position: int, value: int) -> int:
    left = np.uint64(value)
    while left >= np.uint64(0x80):
        out[position] = np.uint8((left & np.uint64(0x7F)) | np.uint64(0x80))
        left >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(left)
    return position + 1


@jit
def _take_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """Returns: the value and the position after it; position -1 if it is cut off, not minimal, or past 64 bits."""
    value, shift = np.uint64(0), np.uint64(0)
    for p in range(position, min(position + 10, end)):
        byte = np.uint64(data[p])
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            padded = byte == np.uint64(0) and p > position
            too_large = shift == np.uint64(63) and byte > np.uint64(1)
            return value, np.int64(-1 if padded or too_large else p + 1)
        shift += np.uint64(7)
    return value, np.int64(-1)


# ---------------------------------------------------------------------------------------------------------- writing
@jit
def int_payload_sizes(values_NL: np.ndarray, sizes_N: np.ndarray) -> None:
    """Bytes of each row as packed varints. Compares instead of `_varint_size`, since comparing vectorises."""
    for row in range(values_NL.shape[0]):
        size = np.int64(values_NL.shape[1])
        for column in range(values_NL.shape[1]):
            value = np.int64(values_NL[row, column])
            size += np.int64(value >= 1 << 7) + np.int64(value >= 1 << 14) + np.int64(value >= 1 << 21)
            size += np.int64(value >= 1 << 28) + np.int64(value >= 1 << 35) + np.int64(value >= 1 << 42)
            size += np.int64(value >= 1 << 49) + np.int64(value >= 1 << 56) + np.int64(9) * np.int64(value < 0)
        sizes_N[row] = size


@jit
def _nested_sizes(key_size: int, payload_size: int) -> tuple[int, int, int]:
    """E, V and W of the entry, from P."""
    list_size = 1 + _varint_size(payload_size) + payload_size
    feature_size = 1 + _varint_size(list_size) + list_size
    return key_size + _varint_size(feature_size) + feature_size, feature_size, list_size


@jit
def add_entry_sizes(key_size: int, payload_sizes_N: np.ndarray, sizes_N: np.ndarray) -> None:
    """Adds to each record's size that of the whole entry around a payload."""
    for row in range(len(sizes_N)):
        entry_size, _, _ = _nested_sizes(key_size, payload_sizes_N[row])
        sizes_N[row] += 1 + _varint_size(entry_size) + entry_size


@jit
def record_sizes(features_sizes_N: np.ndarray, sizes_N: np.ndarray) -> None:
    """Bytes of each record, from those of its map of features."""
    for row in range(len(sizes_N)):
        sizes_N[row] = 1 + _varint_size(features_sizes_N[row]) + features_sizes_N[row]


@jit
def write_prefixes(out: np.ndarray, features_sizes_N: np.ndarray, positions_N: np.ndarray) -> None:
    """Begins each record, and moves its position past what was written, as every writing kernel does."""
    for row in range(len(positions_N)):
        out[positions_N[row]] = 0x0A
        positions_N[row] = _put_varint(out, positions_N[row] + 1, features_sizes_N[row])


@jit
def _put_header(out: np.ndarray, position: int, key: np.ndarray, kind: int, payload_size: int) -> int:
    entry_size, feature_size, list_size = _nested_sizes(len(key), payload_size)
    out[position] = 0x0A
    position = _put_varint(out, position + 1, entry_size)
    for byte in key:
        out[position] = byte
        position += 1
    position = _put_varint(out, position, feature_size)
    out[position] = kind
    position = _put_varint(out, position + 1, list_size)
    out[position] = 0x0A
    return _put_varint(out, position + 1, payload_size)


@jit
def _put_row(out: np.ndarray, position: int, values_L: np.ndarray) -> int:
    for value in values_L:
        word = np.uint64(np.int64(value))
        if word < np.uint64(1 << 21):  # nearly every token id, at half the work of the general case
            two, three = np.uint64(word >= np.uint64(1 << 7)), np.uint64(word >= np.uint64(1 << 14))
            low = (word & np.uint64(0x7F)) | ((word << np.uint64(1)) & np.uint64(0x7F00))
            low |= (word << np.uint64(2)) & np.uint64(0x7F0000)
            store(out, position, low | (two << np.uint64(7)) | (three << np.uint64(15)))
            position += 1 + np.int64(two + three)
        elif word < np.uint64(1 << 56):
            size = _varint_size(word)
            more = (np.uint64(1) << np.uint64(8 * size - 8)) - np.uint64(1)  # the bytes before the last
            store(out, position, _spread(word) | (np.uint64(0x8080808080808080) & more))
            position += size
        else:
            position = _put_varint(out, position, word)
    return position


@jit
def write_ints(
    out: np.ndarray, positions_N: np.ndarray, key: np.ndarray, values_NL: np.ndarray, payload_sizes_N: np.ndarray
) -> None:
    """Writes one int64 entry into each record. `out` has SLACK bytes more than the records need."""
    length = values_NL.shape[1]
    for row in range(len(positions_N)):
        position = _put_header(out, positions_N[row], key, INT64_LIST, payload_sizes_N[row])
        end = position + payload_sizes_N[row]
        if payload_sizes_N[row] == length:  # one byte each: masks, labels
            payload = out[position:end]
            for column in range(length):
                payload[column] = np.uint8(values_NL[row, column])
        else:
            after = load(out, end)  # words reach past the last value, into the next record
            _put_row(out, position, values_NL[row])
            store(out, end, after)
        positions_N[row] = end


@jit
def write_floats(out: np.ndarray, positions_N: np.ndarray, key: np.ndarray, bytes_NB: np.ndarray) -> None:
    """Writes one float32 entry into each record, from the values' own bytes, so that NaNs keep theirs."""
    size = bytes_NB.shape[1]
    for row in range(len(positions_N)):
        position = _put_header(out, positions_N[row], key, FLOAT_LIST, size)
        copy(out, position, bytes_NB, row * size, size)
        positions_N[row] = position + size


# ---------------------------------------------------------------------------------------------------------- reading
@jit
def read_prefixes(data: np.ndarray, offsets: np.ndarray, positions_N: np.ndarray, faults_N: np.ndarray) -> None:
    """Sets each record's position past its prefix, or its fault."""
    for row in range(len(positions_N)):
        start, end = offsets[row], offsets[row + 1]
        positions_N[row], faults_N[row] = start, BAD_PREFIX
        if start < end and data[start] == 0x0A:
            size, position = _take_varint(data, start + 1, end)
            if position >= 0 and size == np.uint64(end - position):
                positions_N[row], faults_N[row] = position, OK


@jit
def read_ends(offsets: np.ndarray, positions_N: np.ndarray, faults_N: np.ndarray) -> None:
    """Finds records that go on after their last feature."""
    for row in range(len(positions_N)):
        if faults_N[row] == OK and positions_N[row] != offsets[row + 1]:
            faults_N[row] = EXTRA_BYTES


@jit
def _take_size(data: np.ndarray, position: int, tag: int, end: int) -> tuple[int, int]:
    """Reads a tag and a size. Returns: the position after them and the end that the size points to; -1 if not so."""
    if position < 0 or position >= end or data[position] != tag:
        return np.int64(-1), np.int64(-1)
    size, position = _take_varint(data, position + 1, end)
    if position < 0 or size > np.uint64(end - position):
        return np.int64(-1), np.int64(-1)
    return position, position + np.int64(size)


@jit
def _take_header(data: np.ndarray, position: int, end: int, key: np.ndarray, kind: int) -> tuple[int, int, int]:
    """Returns: where the payload starts and ends, and the fault. No size is believed before it is checked."""
    position, entry_end = _take_size(data, position, 0x0A, end)
    if position < 0:
        return position, position, NO_ENTRY
    if entry_end - position < len(key):
        return position, position, NO_ENTRY
    for k in range(len(key)):
        if data[position + k] != key[k]:
            return position, position, NO_ENTRY
    size, position = _take_varint(data, position + len(key), entry_end)
    if position < 0 or size != np.uint64(entry_end - position):
        return position, position, BAD_SIZES
    if position < entry_end and data[position] != kind:
        return position, position, OTHER_KIND
    position, list_end = _take_size(data, position, kind, entry_end)
    position, payload_end = _take_size(data, position, 0x0A, entry_end)
    if position < 0 or list_end != entry_end or payload_end != entry_end:
        return position, position, BAD_SIZES
    return position, payload_end, OK


@jit
def _take_row(data: np.ndarray, position: int, end: int, values_L: np.ndarray) -> bool:
    """Reads varints until `values_L` is full. Returns: whether all of them were minimal and within 64 bits."""
    for column in range(len(values_L)):
        word = np.uint64(0)
        if position + 8 <= len(data):
            word = ~load(data, position) & np.uint64(0x8080808080808080)  # a bit at every last byte of a varint
        if word == np.uint64(0):  # more than 8 bytes, or at the very end of the data
            value, position = _take_varint(data, position, end)
            if position < 0:
                return False
        else:
            last_bit = _trailing_zeros(word)
            value = _gather(load(data, position) & ((np.uint64(2) << last_bit) - np.uint64(1)))
            size = np.int64(last_bit >> np.uint64(3)) + 1
            if size != _varint_size(value):
                return False
            position += size
        values_L[column] = np.int64(value)
    return True


@jit
def read_ints(
    data: np.ndarray,
    offsets: np.ndarray,
    positions_N: np.ndarray,
    faults_N: np.ndarray,
    key: np.ndarray,
    values_NL: np.ndarray,
    counts_N: np.ndarray,
) -> None:
    """Reads one int64 entry of each record that is sound so far; counts its values."""
    length = values_NL.shape[1]
    for row in range(len(positions_N)):
        if faults_N[row] != OK:
            continue
        start, end, fault = _take_header(data, positions_N[row], offsets[row + 1], key, INT64_LIST)
        if fault != OK:
            faults_N[row] = fault
            continue
        payload, count = data[start:end], np.int64(0)
        for p in range(len(payload)):
            count += np.int64(payload[p] < 0x80)
        counts_N[row] = count
        if count != length:
            faults_N[row] = BAD_COUNT
        elif end - start == length:  # one byte each: masks, labels
            for column in range(length):
                values_NL[row, column] = payload[column]
        elif payload[-1] >= 0x80 or not _take_row(data, start, end, values_NL[row]):
            faults_N[row] = BAD_VARINT
        if faults_N[row] == OK:
            positions_N[row] = end


@jit
def read_floats(
    data: np.ndarray,
    offsets: np.ndarray,
    positions_N: np.ndarray,
    faults_N: np.ndarray,
    key: np.ndarray,
    bytes_NB: np.ndarray,
    counts_N: np.ndarray,
) -> None:
    """Reads one float32 entry of each record that is sound so far, as bytes; counts its values."""
    for row in range(len(positions_N)):
        if faults_N[row] != OK:
            continue
        start, end, fault = _take_header(data, positions_N[row], offsets[row + 1], key, FLOAT_LIST)
        counts_N[row] = (end - start) // 4
        if fault == OK and end - start != bytes_NB.shape[1]:
            fault = BAD_COUNT
        if fault != OK:
            faults_N[row] = fault
            continue
        copy(bytes_NB, row * bytes_NB.shape[1], data, start, end - start)
        positions_N[row] = end
