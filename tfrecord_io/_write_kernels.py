"""The compiled loops that write Examples: varints and the entries around them.

One entry of an Example, per feature (sizes are varints, each counts the bytes to its right):

    0a E  0a K name  12 V  1a|12 W  0a P  payload
    │     └─ `key` ────┘   │        └ the packed values: varints (int64_list, 1a) or 4 bytes each (float_list, 12)
    └ entry of the map     └ Feature: the kind of its list
"""

from __future__ import annotations

import numpy as np

from tfrecord_io._kernels import FLOAT_LIST, INT64_LIST, copy, jit, store, store_half, varint_size
from tfrecord_io._wide_varints import CAN_SQUEEZE, WIDTH, put_sixteen

SLACK = WIDTH  # bytes past the end of an output that a kernel may write to, and puts back
_TABLE_SIZE = 1 << 16


def _varint_table() -> np.ndarray:
    """The varint of each small value in the low bytes of a word, and how many bytes it has in the highest one.

    Looked up, since ids of 2 and 3 bytes alternate at random, and a branch on their length would be mispredicted for
    every other token. Computing the bytes without a branch takes more than twice as long (measured).
    """
    values = np.arange(_TABLE_SIZE, dtype=np.uint32)
    two, three = (values >= 1 << 7).astype(np.uint32), (values >= 1 << 14).astype(np.uint32)
    bytes_of = (values & 0x7F) | ((values << 1) & 0x7F00) | ((values << 2) & 0x7F0000) | (two << 7) | (three << 15)
    return bytes_of | ((1 + two + three) << 24)


_VARINTS = _varint_table()


@jit
def _spread(value: int) -> int:
    x = np.uint64(value)
    x = (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x00FFFFFFF0000000)) << np.uint64(4))
    x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x0FFFC0000FFFC000)) << np.uint64(2))
    return (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x3F803F803F803F80)) << np.uint64(1))


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
def int_payload_sizes(values_NL: np.ndarray, sizes_N: np.ndarray) -> None:
    """Bytes of each row as packed varints."""
    for row in range(values_NL.shape[0]):
        size = np.int64(-1)
        if values_NL.itemsize <= 4:
            size = _size_of_small(values_NL[row])
        sizes_N[row] = size if size >= 0 else _general_size(values_NL[row])


@jit
def _size_of_small(values_L: np.ndarray) -> int:
    """Of values of up to 32 bits; -1 if one is negative or needs more than 3 bytes.

    Compares, in numbers of 32 bits, since that vectorises: six times as fast as `varint_size` (measured).
    """
    size, bits = np.int32(0), np.int32(0)
    for index in range(len(values_L)):
        value = np.int32(values_L[index])
        more = np.int32(value >= np.int32(1 << 7)) + np.int32(value >= np.int32(1 << 14))
        size = np.int32(size + more)
        bits = np.int32(bits | value)
    return np.int64(-1) if bits < 0 or bits >= 1 << 21 else np.int64(len(values_L)) + size


@jit
def _general_size(values_L: np.ndarray) -> int:
    size = np.int64(0)
    for value in values_L:
        size += varint_size(np.uint64(np.int64(value)))
    return size


@jit
def _nested_sizes(key_size: int, payload_size: int) -> tuple[int, int, int]:
    """E, V and W of the entry, from P."""
    list_size = 1 + varint_size(payload_size) + payload_size
    feature_size = 1 + varint_size(list_size) + list_size
    return key_size + varint_size(feature_size) + feature_size, feature_size, list_size


@jit
def add_entry_sizes(key_size: int, payload_sizes_N: np.ndarray, sizes_N: np.ndarray) -> None:
    """Adds to each record's size that of the whole entry around a payload."""
    for row in range(len(sizes_N)):
        entry_size, _, _ = _nested_sizes(key_size, payload_sizes_N[row])
        sizes_N[row] += 1 + varint_size(entry_size) + entry_size


@jit
def record_sizes(features_sizes_N: np.ndarray, sizes_N: np.ndarray) -> None:
    """Bytes of each record, from those of its map of features."""
    for row in range(len(sizes_N)):
        sizes_N[row] = 1 + varint_size(features_sizes_N[row]) + features_sizes_N[row]


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
        if word < np.uint64(_TABLE_SIZE):
            varint = _VARINTS[word]
            store_half(out, position, varint)
            position += np.int64(varint >> np.uint32(24))
        elif word < np.uint64(1 << 56):
            size = varint_size(word)
            more = (np.uint64(1) << np.uint64(8 * size - 8)) - np.uint64(1)  # the bytes before the last
            store(out, position, _spread(word) | (np.uint64(0x8080808080808080) & more))
            position += size
        else:
            position = _put_varint(out, position, word)
    return position


@jit
def _put_row_wide(out: np.ndarray, position: int, values_L: np.ndarray) -> int:
    """The same, sixteen at a time where values have 32 bits."""
    done = 0
    if values_L.itemsize == 4:
        for start in range(0, len(values_L) - 15, 16):
            size = put_sixteen(out, position, values_L, start)
            position = position + size if size >= 0 else _put_row(out, position, values_L[start : start + 16])
            done = start + 16
    return _put_row(out, position, values_L[done:])


_put_values = _put_row_wide if CAN_SQUEEZE else _put_row


@jit
def write_ints(
    out: np.ndarray, positions_N: np.ndarray, key: np.ndarray, values_NL: np.ndarray, payload_sizes_N: np.ndarray
) -> None:
    """Writes one int64 entry into each record. `out` has SLACK bytes more than the records need."""
    length = values_NL.shape[1]
    after = np.empty(SLACK, np.uint8)
    for row in range(len(positions_N)):
        position = _put_header(out, positions_N[row], key, INT64_LIST, payload_sizes_N[row])
        end = position + payload_sizes_N[row]
        if payload_sizes_N[row] == length:  # one byte each: masks, labels
            payload = out[position:end]
            for column in range(length):
                payload[column] = np.uint8(values_NL[row, column])
        else:
            # What is written at once reaches past the last value, into the next record.
            copy(after, 0, out, end, SLACK)
            _put_values(out, position, values_NL[row])
            copy(out, end, after, 0, SLACK)
        positions_N[row] = end


@jit
def write_floats(out: np.ndarray, positions_N: np.ndarray, key: np.ndarray, bytes_NB: np.ndarray) -> None:
    """Writes one float32 entry into each record, from the values' own bytes, so that NaNs keep theirs."""
    size = bytes_NB.shape[1]
    for row in range(len(positions_N)):
        position = _put_header(out, positions_N[row], key, FLOAT_LIST, size)
        copy(out, position, bytes_NB, row * size, size)
        positions_N[row] = position + size
