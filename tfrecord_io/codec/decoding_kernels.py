"""The compiled loops that read Examples: the inverse of `encoding_kernels`."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec.example_layout import LIST_TAGS
from tfrecord_io.codec.kernels import copy, jit

__all__ = ["read_examples", "take_header", "take_ints", "take_size"]

_INT64_LIST, _BYTES_LIST = LIST_TAGS["int64"], LIST_TAGS["bytes"]


@jit
def _take_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
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
def take_size(data: np.ndarray, position: int, tag: int, end: int) -> tuple[int, int]:
    """Read a tag and a size. Returns: the position after them and the end that the size points to; -1 if not so."""
    if position < 0 or position >= end or data[position] != tag:
        return np.int64(-1), np.int64(-1)
    size, position = _take_varint(data, position + 1, end)
    if position < 0 or size > np.uint64(end - position):
        return np.int64(-1), np.int64(-1)
    return position, position + np.int64(size)


@jit
def take_header(data: np.ndarray, position: int, end: int, key: np.ndarray, kind: int) -> tuple[int, int]:
    """Read an entry up to its payload. Returns: where this starts and ends; -1 if any tag, size or key is another."""
    position, entry_end = take_size(data, position, 0x0A, end)
    if position < 0 or entry_end - position < len(key):
        return np.int64(-1), np.int64(-1)
    for k in range(len(key)):
        if data[position + k] != key[k]:
            return np.int64(-1), np.int64(-1)
    size, position = _take_varint(data, position + len(key), entry_end)
    if position < 0 or size != np.uint64(entry_end - position):
        return np.int64(-1), np.int64(-1)
    position, list_end = take_size(data, position, kind, entry_end)
    position, payload_end = take_size(data, position, 0x0A, entry_end)
    if position < 0 or list_end != entry_end or payload_end != entry_end:
        return np.int64(-1), np.int64(-1)
    return position, payload_end


@jit
def take_ints(data: np.ndarray, start: int, end: int, values: np.ndarray, place: int, length: int) -> bool:
    """Read data[start:end] into values[place:place + length]. Returns: whether it is so many minimal varints."""
    first, behind, at, count = np.uint64(start), np.uint64(end), np.uint64(place), np.int64(0)
    for p in range(first, behind):
        count += np.int64(data[p] < 0x80)
    if count != length:
        return False
    if end - start == length:  # one byte each: masks, labels
        for k in range(np.uint64(length)):
            values[at + k] = data[first + k]
        return True
    if data[end - 1] >= 0x80:
        return False
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
    return not bad


@jit
def read_examples(
    data: np.ndarray,
    begins_N: np.ndarray,
    ends_N: np.ndarray,
    keys: np.ndarray,
    entries_F4: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
    spans_FN2: np.ndarray,
) -> int:
    """Read N serialized Examples, number n being data[begins_N[n] : ends_N[n]].

    entries_F4: for each feature of a record, in their order: where its key begins and ends in `keys`, the tag of its
        list, and its number of values.
    ints: int64, the values of the features of integers, one feature behind the other, N rows of each. floats: uint8,
        those of floats likewise, 4 bytes each. spans_FN2: int64, where the values of features of bytes begin and end.

    Returns: the first n that is damaged, or N.
    """
    num_rows = len(begins_N)
    for n in range(num_rows):
        position, end = take_size(data, begins_N[n], 0x0A, ends_N[n])
        if position < 0 or end != ends_N[n]:
            return n
        int_base, float_base, byte_features = np.int64(0), np.int64(0), 0
        for f in range(len(entries_F4)):
            kind, count = entries_F4[f, 2], entries_F4[f, 3]
            start, position = take_header(data, position, end, keys[entries_F4[f, 0] : entries_F4[f, 1]], kind)
            if start < 0:
                return n
            if kind == _INT64_LIST:
                if not take_ints(data, start, position, ints, int_base + n * count, count):
                    return n
                int_base += num_rows * count
            elif kind == _BYTES_LIST:
                spans_FN2[byte_features, n, 0], spans_FN2[byte_features, n, 1] = start, position
                byte_features += 1
            else:
                if position - start != 4 * count:
                    return n
                copy(floats, float_base + n * 4 * count, data, start, 4 * count)
                float_base += num_rows * 4 * count
        if position != end:
            return n
    return num_rows
