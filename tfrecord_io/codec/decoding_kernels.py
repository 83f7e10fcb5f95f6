"""The compiled loops that read Examples, the inverse of `encoding_kernels`. They report what they find wrong, see
`examples`.
"""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec.kernels import FLOAT_LIST, INT64_LIST, copy, jit, load, trailing_zeros, varint_size

# What a kernel says of a record.
OK, BAD_PREFIX, NO_ENTRY, OTHER_KIND, BAD_SIZES, BAD_COUNT, BAD_VARINT, EXTRA_BYTES = range(8)


@jit
def _gather(word: int) -> int:
    x = np.uint64(word)
    x = (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


@jit
def take_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
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


@jit
def read_prefixes(data: np.ndarray, offsets: np.ndarray, positions_N: np.ndarray, faults_N: np.ndarray) -> None:
    """Sets each record's position past its prefix, or its fault."""
    for row in range(len(positions_N)):
        start, end = offsets[row], offsets[row + 1]
        positions_N[row], faults_N[row] = start, BAD_PREFIX
        if start < end and data[start] == 0x0A:
            size, position = take_varint(data, start + 1, end)
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
    size, position = take_varint(data, position + 1, end)
    if position < 0 or size > np.uint64(end - position):
        return np.int64(-1), np.int64(-1)
    return position, position + np.int64(size)


@jit
def take_header(data: np.ndarray, position: int, end: int, key: np.ndarray, kind: int) -> tuple[int, int, int]:
    """Returns: where the payload starts and ends, and the fault. No size is believed before it is checked."""
    position, entry_end = _take_size(data, position, 0x0A, end)
    if position < 0:
        return position, position, NO_ENTRY
    if entry_end - position < len(key):
        return position, position, NO_ENTRY
    for k in range(len(key)):
        if data[position + k] != key[k]:
            return position, position, NO_ENTRY
    size, position = take_varint(data, position + len(key), entry_end)
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
def take_row(data: np.ndarray, position: int, end: int, values_L: np.ndarray) -> bool:
    """Reads varints until `values_L` is full. Returns: whether all of them were minimal and within 64 bits."""
    for column in range(len(values_L)):
        word = np.uint64(0)
        if position + 8 <= len(data):
            word = ~load(data, position) & np.uint64(0x8080808080808080)  # a bit at every last byte of a varint
        if word == np.uint64(0):  # more than 8 bytes, or at the very end of the data
            value, position = take_varint(data, position, end)
            if position < 0:
                return False
        else:
            last_bit = trailing_zeros(word)
            value = _gather(load(data, position) & ((np.uint64(2) << last_bit) - np.uint64(1)))
            size = np.int64(last_bit >> np.uint64(3)) + 1
            if size != varint_size(value):
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
        start, end, fault = take_header(data, positions_N[row], offsets[row + 1], key, INT64_LIST)
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
        elif payload[-1] >= 0x80 or not take_row(data, start, end, values_NL[row]):
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
        start, end, fault = take_header(data, positions_N[row], offsets[row + 1], key, FLOAT_LIST)
        counts_N[row] = (end - start) // 4
        if fault == OK and end - start != bytes_NB.shape[1]:
            fault = BAD_COUNT
        if fault != OK:
            faults_N[row] = fault
            continue
        copy(bytes_NB, row * bytes_NB.shape[1], data, start, end - start)
        positions_N[row] = end
