"""The compiled loop that takes single records out of groups of frames: see `random_access`."""

from __future__ import annotations

import numpy as np

from tfrecord_io._frame_kernels import find_frame
from tfrecord_io._kernels import INT64_LIST, copy, jit
from tfrecord_io._read_kernels import OK, take_header, take_row, take_varint

__all__ = ["read_rows"]


@jit
def _take_ints(data: np.ndarray, start: int, end: int, values_L: np.ndarray) -> bool:
    """Reads a list of varints. Returns: whether they were as many as `values_L` has places, and each was minimal."""
    payload, count = data[start:end], np.int64(0)
    for p in range(len(payload)):
        count += np.int64(payload[p] < 0x80)
    if count != len(values_L) or payload[-1] >= 0x80:
        return False
    if len(payload) > count:
        return take_row(data, start, end, values_L)
    for column in range(len(payload)):  # one byte each: masks, labels
        values_L[column] = payload[column]
    return True


@jit
def read_rows(
    data: np.ndarray,
    starts_N: np.ndarray,
    stops_N: np.ndarray,
    skips_N: np.ndarray,
    check: bool,
    keys: np.ndarray,
    entries_F4: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
) -> int:
    """Reads N records, record n being that `skips_N[n]` frames after byte `starts_N[n]` of the data.

    entries_F4: for each feature of a record, in their order: where its key begins and ends in `keys`, the tag of its
        list, and its number of values.
    ints: int64, the values of the features of integers, one feature behind the other, N rows of each. floats: uint8,
        those of floats likewise, 4 bytes each.

    Returns: the first n that is damaged, or N.
    """
    first, num_rows = np.int64(data.ctypes.data), len(starts_N)
    for n in range(num_rows):
        position, size = find_frame(first, starts_N[n], stops_N[n], skips_N[n], check)
        end = position + size
        if position < 0 or size < 1 or data[position] != 0x0A:
            return n
        map_size, position = take_varint(data, position + 1, end)
        if position < 0 or map_size != np.uint64(end - position):
            return n
        int_base, float_base = np.int64(0), np.int64(0)
        for f in range(len(entries_F4)):
            kind, count = entries_F4[f, 2], entries_F4[f, 3]
            key = keys[entries_F4[f, 0] : entries_F4[f, 1]]
            start, position, fault = take_header(data, position, end, key, kind)
            if fault != OK:
                return n
            if kind == INT64_LIST:
                at = int_base + n * count
                if not _take_ints(data, start, position, ints[at : at + count]):
                    return n
                int_base += num_rows * count
            else:
                if position - start != 4 * count:
                    return n
                copy(floats, float_base + n * 4 * count, data, start, 4 * count)
                float_base += num_rows * 4 * count
        if position != end:
            return n
    return num_rows
