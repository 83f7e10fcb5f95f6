"""The compiled loops that read Examples: the inverse of `encoding_kernels`. `examples` puts the faults into words."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec.example_layout import LIST_TAGS
from tfrecord_io.codec.kernels import copy, jit

# What a kernel says of a record.
OK, BAD_PREFIX, NO_ENTRY, OTHER_KIND, BAD_SIZES, BAD_COUNT, BAD_VARINT, EXTRA_BYTES = range(8)
_INT64_LIST, _FLOAT_LIST, _BYTES_LIST = LIST_TAGS["int64"], LIST_TAGS["float32"], LIST_TAGS["bytes"]


@jit
def take_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """Read a varint. Returns: value and position after it, -1 if it is cut off, not minimal, or past 64 bits."""
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
    """Set each record's position past its prefix, or its fault."""
    for row in range(len(positions_N)):
        start, end = offsets[row], offsets[row + 1]
        positions_N[row], faults_N[row] = start, BAD_PREFIX
        if start < end and data[start] == 0x0A:
            size, position = take_varint(data, start + 1, end)
            if position >= 0 and size == np.uint64(end - position):
                positions_N[row], faults_N[row] = position, OK


@jit
def read_ends(offsets: np.ndarray, positions_N: np.ndarray, faults_N: np.ndarray) -> None:
    """Find records that go on after their last feature."""
    for row in range(len(positions_N)):
        if faults_N[row] == OK and positions_N[row] != offsets[row + 1]:
            faults_N[row] = EXTRA_BYTES


@jit
def _take_size(data: np.ndarray, position: int, tag: int, end: int) -> tuple[int, int]:
    """Read a tag and a size. Returns: the position after them and the end that the size points to; -1 if not so."""
    if position < 0 or position >= end or data[position] != tag:
        return np.int64(-1), np.int64(-1)
    size, position = take_varint(data, position + 1, end)
    if position < 0 or size > np.uint64(end - position):
        return np.int64(-1), np.int64(-1)
    return position, position + np.int64(size)


@jit
def take_header(data: np.ndarray, position: int, end: int, key: np.ndarray, kind: int) -> tuple[int, int, int]:
    """Read an entry up to its payload. Returns: where this starts and ends, and the fault. Each size is checked."""
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
def take_ints(data: np.ndarray, start: int, end: int, values: np.ndarray, place: int, length: int) -> tuple[int, int]:
    """Read data[start:end], varints, into values[place:place + length]. Returns: their number, and the fault."""
    first, behind, at, count = np.uint64(start), np.uint64(end), np.uint64(place), np.int64(0)
    for p in range(first, behind):
        count += np.int64(data[p] < 0x80)
    if count != length:
        return count, BAD_COUNT
    if end - start == length:  # one byte each: masks, labels
        for k in range(np.uint64(length)):
            values[at + k] = data[first + k]
        return count, OK
    if data[end - 1] >= 0x80:
        return count, BAD_VARINT
    # Each byte stores the value so far. A branch on the last byte would be mispredicted for every other token.
    value, shift, bad = np.uint64(0), np.uint64(0), False
    for p in range(first, behind):
        byte = np.uint64(data[p])
        value |= (byte & np.uint64(0x7F)) << (shift & np.uint64(63))
        values[at] = np.int64(value)
        bad |= (byte == np.uint64(0)) & (shift != np.uint64(0))  # not minimal
        bad |= (byte > np.uint64(1)) & (shift == np.uint64(63))  # or past 64 bits
        is_last = byte < np.uint64(0x80)
        at += np.uint64(is_last)
        value = np.uint64(0) if is_last else value
        shift = np.uint64(0) if is_last else shift + np.uint64(7)
    return count, BAD_VARINT if bad else OK


@jit
def read_ints(
    data: np.ndarray,
    offsets: np.ndarray,
    positions_N: np.ndarray,
    faults_N: np.ndarray,
    key: np.ndarray,
    values: np.ndarray,
    counts_N: np.ndarray,
) -> None:
    """Read one int64 entry of each record that is sound so far, and count its values."""
    length = len(values) // max(1, len(positions_N))
    for row in range(len(positions_N)):
        if faults_N[row] != OK:
            continue
        start, end, fault = take_header(data, positions_N[row], offsets[row + 1], key, _INT64_LIST)
        if fault == OK:
            counts_N[row], fault = take_ints(data, start, end, values, row * length, length)
        faults_N[row] = fault
        if fault == OK:
            positions_N[row] = end


@jit
def read_floats(
    data: np.ndarray,
    offsets: np.ndarray,
    positions_N: np.ndarray,
    faults_N: np.ndarray,
    key: np.ndarray,
    values: np.ndarray,
    counts_N: np.ndarray,
) -> None:
    """Read one float32 entry of each record that is sound so far, as bytes, and count its values."""
    size = len(values) // max(1, len(positions_N))
    for row in range(len(positions_N)):
        if faults_N[row] != OK:
            continue
        start, end, fault = take_header(data, positions_N[row], offsets[row + 1], key, _FLOAT_LIST)
        counts_N[row] = (end - start) // 4
        if fault == OK and end - start != size:
            fault = BAD_COUNT
        faults_N[row] = fault
        if fault == OK:
            copy(values, row * size, data, start, size)
            positions_N[row] = end


@jit
def find_pieces(
    data: np.ndarray,
    offsets: np.ndarray,
    positions_N: np.ndarray,
    faults_N: np.ndarray,
    key: np.ndarray,
    spans_N2: np.ndarray,
    counts_N: np.ndarray,
) -> None:
    """Find where the one value of an entry of bytes begins and ends, in each record that is sound so far."""
    for row in range(len(positions_N)):
        if faults_N[row] != OK:
            continue
        start, end, fault = take_header(data, positions_N[row], offsets[row + 1], key, _BYTES_LIST)
        faults_N[row], counts_N[row] = fault, 1
        if fault == OK:
            spans_N2[row, 0], spans_N2[row, 1] = start, end
            positions_N[row] = end
