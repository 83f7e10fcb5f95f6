"""The compiled loops that write Examples: varints, and the entries around them.

One entry of an Example, per feature (sizes are varints, each counts the bytes to its right):

    0a E  0a K name  12 V  1a|12|0a W  0a P  payload
    │     └─ `key` ────┘   │           └ the packed values: varints (int64_list, 1a) or 4 bytes each (float_list, 12);
    │                      │             or the one value of a bytes_list (0a)
    └ entry of the map     └ Feature: the kind of its list

All sizes follow from the sizes of the payloads. So the payloads are counted first, which gives each entry and record
its place; then one feature after the other is written into all records.
"""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec.frame_kernels import FRAME_BYTES, HEAD_BYTES
from tfrecord_io.codec.kernels import copy, jit, store_4

__all__ = ["count_bytes", "place_records", "put_bytes", "put_heads", "put_ints", "put_pieces", "put_prefixes"]
__all__ += ["varint_size"]

_PAST_THREE_BYTES = np.uint64(1 << 21)


@jit
def varint_size(value: int) -> int:
    """Bytes of a uint64 as a varint."""
    size = 1
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        size += 1
    return size


@jit
def _put_varint(out: np.ndarray, position: int, value: int) -> int:
    """Write a uint64 as a varint at a uint64 position. Returns: the position after it."""
    while value >= np.uint64(0x80):
        out[position] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value >>= np.uint64(7)
        position += np.uint64(1)
    out[position] = np.uint8(value)
    return position + np.uint64(1)


@jit
def count_bytes(values_NL: np.ndarray, payloads_N: np.ndarray) -> None:
    """Set `payloads_N` to the bytes of each row as varints; values int32 or int64."""
    length = np.uint64(values_NL.shape[1])
    for row in range(len(payloads_N)):
        r, bits, size = np.uint64(row), np.uint64(0), np.int64(length)
        for column in range(length):
            value = np.uint64(np.int64(values_NL[r, column]))
            bits |= value
            size += np.int64(value >= np.uint64(1 << 7)) + np.int64(value >= np.uint64(1 << 14))
        if bits >= _PAST_THREE_BYTES:
            size = np.int64(0)
            for column in range(length):
                size += varint_size(np.uint64(np.int64(values_NL[r, column])))
        payloads_N[row] = size


@jit
def _sizes(key_size: int, payload: int) -> tuple[int, int, int]:
    """The sizes E, V and W of an entry, from K and P."""
    of_list = 1 + varint_size(np.uint64(payload)) + payload
    of_feature = 1 + varint_size(np.uint64(of_list)) + of_list
    return key_size + varint_size(np.uint64(of_feature)) + of_feature, of_feature, of_list


@jit
def place_records(
    payloads_FN: np.ndarray, key_sizes_F: np.ndarray, framed: bool, places_FN: np.ndarray, offsets: np.ndarray
) -> None:
    """Set `offsets` to where records begin, with their frames if `framed`, and the last one ends; and `places_FN` to
    where entries begin.
    """
    around = FRAME_BYTES if framed else 0
    for row in range(len(offsets) - 1):
        size = 0
        for feature in range(len(payloads_FN)):
            places_FN[feature, row] = size
            of_entry, _, _ = _sizes(key_sizes_F[feature], payloads_FN[feature, row])
            size += 1 + varint_size(np.uint64(of_entry)) + of_entry
        prefix = 1 + varint_size(np.uint64(size))
        for feature in range(len(payloads_FN)):
            places_FN[feature, row] += offsets[row] + prefix + (HEAD_BYTES if framed else 0)
        offsets[row + 1] = offsets[row] + prefix + size + around


@jit
def put_prefixes(out: np.ndarray, offsets: np.ndarray, first_N: np.ndarray, framed: bool) -> None:
    """Write what each record has in front of its first entry, which is at `first_N`."""
    for row in range(len(first_N)):
        start, end = offsets[row], offsets[row + 1]
        if framed:
            start, end = start + HEAD_BYTES, end - (FRAME_BYTES - HEAD_BYTES)
        out[start] = 0x0A
        _put_varint(out, np.uint64(start + 1), np.uint64(end - first_N[row]))


@jit
def put_heads(out: np.ndarray, places_N: np.ndarray, payloads_N: np.ndarray, key: np.ndarray, kind: int) -> None:
    """Write what entries have in front of their payloads, and move `places_N` from the entries on to the payloads."""
    for row in range(len(places_N)):
        of_entry, of_feature, of_list = _sizes(len(key), payloads_N[row])
        at = np.uint64(places_N[row])
        out[at] = 0x0A
        at = _put_varint(out, at + np.uint64(1), np.uint64(of_entry))
        for k in range(len(key)):
            out[at + np.uint64(k)] = key[k]
        at = _put_varint(out, at + np.uint64(len(key)), np.uint64(of_feature))
        out[at] = kind
        at = _put_varint(out, at + np.uint64(1), np.uint64(of_list))
        out[at] = 0x0A
        places_N[row] = _put_varint(out, at + np.uint64(1), np.uint64(payloads_N[row]))


@jit
def _short_varint(value: int) -> int:
    """A uint32 below 2^21 as a varint, in the low bytes of a word; the highest byte is its size."""
    two, three = np.uint32(value >= np.uint32(1 << 7)), np.uint32(value >= np.uint32(1 << 14))
    first, second = value & np.uint32(0x7F), (value << np.uint32(1)) & np.uint32(0x7F00)
    third = (value << np.uint32(2)) & np.uint32(0x7F0000)
    marks = (two << np.uint32(7)) | (three << np.uint32(15))
    return first | second | third | marks | ((np.uint32(1) + two + three) << np.uint32(24))


@jit
def put_ints(out: np.ndarray, places_N: np.ndarray, payloads_N: np.ndarray, values_NL: np.ndarray) -> None:
    """Write rows of int32 or int64 as varints.

    The varints of a row are computed first, by SIMD, then stored one behind the other as whole words: the next word
    overwrites the surplus bytes of the one before. A branch on the size would be mispredicted for every other token.
    """
    length = np.uint64(values_NL.shape[1])
    whole = length - min(length, np.uint64(3))  # a word of the last three could reach past the row
    words_L = np.empty(length, np.uint32)
    for row in range(len(places_N)):
        at, r = np.uint64(places_N[row]), np.uint64(row)
        if payloads_N[row] == np.int64(length):  # one byte each: masks, labels
            for column in range(length):
                out[at + column] = np.uint8(values_NL[r, column])
            continue
        bits = np.uint64(0)
        for column in range(length):
            value = np.uint64(np.int64(values_NL[r, column]))
            bits |= value
            words_L[column] = _short_varint(np.uint32(value))
        first = whole if bits < _PAST_THREE_BYTES else np.uint64(0)
        for column in range(first):
            store_4(out, at, words_L[column])
            at += np.uint64(words_L[column] >> np.uint32(24))
        for column in range(first, length):
            at = _put_varint(out, at, np.uint64(np.int64(values_NL[r, column])))


@jit
def put_bytes(out: np.ndarray, places_N: np.ndarray, bytes_NB: np.ndarray) -> None:
    """Write rows of payloads as they are; floats come as bytes, so that every NaN keeps its bits."""
    rows, size = bytes_NB.reshape(-1), bytes_NB.shape[1]
    for row in range(len(places_N)):
        copy(out, places_N[row], rows, row * size, size)


@jit
def put_pieces(out: np.ndarray, places_N: np.ndarray, payloads_N: np.ndarray, data: np.ndarray) -> None:
    """Write payloads of several sizes, which `data` has one behind the other."""
    start = 0
    for row in range(len(places_N)):
        copy(out, places_N[row], data, start, payloads_N[row])
        start += payloads_N[row]
