"""The compiled loops that write Examples: varints and the entries around them.

One entry of an Example, per feature (sizes are varints, each counts the bytes to its right):

    0a E  0a K name  12 V  1a|12 W  0a P  payload
    │     └─ `key` ────┘   │        └ the packed values: varints (int64_list, 1a) or 4 bytes each (float_list, 12)
    └ entry of the map     └ Feature: the kind of its list

What stands in front of a payload has its size in it, and the size is known once the payload is written. So a payload
is written where it belongs if what stands in front is as wide as in the record before, and moved if it is not, which
is rare: rows have similar sizes. Counting the bytes beforehand would read all values twice.

One kernel writes whole records, whatever the schema: it gets a line of numbers for each feature (see `describe`), with
the address of the values, since a type for each set of columns would be compiled anew for each dataset.
"""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import frame_kernels
from tfrecord_io.codec.addresses import copy_bytes, move_bytes, peek, poke
from tfrecord_io.codec.kernels import FLOAT_LIST, INT64_LIST, jit, varint_size
from tfrecord_io.codec.wide_varints import CAN_SQUEEZE, COUNT, WIDTH, put_many

SLACK = WIDTH  # bytes past the end of what is written that a kernel may write to
FLOATS, UINT8, INT32, INT64 = range(4)  # how the values of a column lie in memory
_ADDRESS, _KIND, _NUM_VALUES, _ROW_BYTES, _KEY, _KEY_SIZE, _WIDTH = range(7)
_NUM_FIELDS = 7

_TABLE_SIZE = 1 << 16
_HEADER_BYTES = 5 * 11  # at most, beside the key: five sizes and their tags


def describe(values_NL: np.ndarray, kind: int, num_values: int, key: np.ndarray) -> tuple[int, ...]:
    """What the kernel is told of a column: where the values and the key are, which must be kept alive, and how they
    lie. The last number is the kernel's own: how wide the header of the last record was.
    """
    row_bytes = num_values * values_NL.itemsize
    return values_NL.ctypes.data, kind, num_values, row_bytes, key.ctypes.data, len(key), 0


def most_bytes(kind: int, num_values: int, key_size: int) -> int:
    """Bytes that an entry may need at most."""
    return key_size + _HEADER_BYTES + num_values * (4 if kind == FLOATS else 2 if kind == UINT8 else 10)


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
def _put_varint(position: int, value: int) -> int:
    left = np.uint64(value)
    while left >= np.uint64(0x80):
        poke(position, 0, np.uint8((left & np.uint64(0x7F)) | np.uint64(0x80)))
        left >>= np.uint64(7)
        position += 1
    poke(position, 0, np.uint8(left))
    return position + 1


@jit
def _put_each(position: int, values: int, start: int, stop: int, like: int) -> int:
    """Writes the values from `start` to `stop` one after the other."""
    for index in range(start, stop):
        word = np.uint64(np.int64(peek(values, index, like)))
        if word < np.uint64(_TABLE_SIZE):
            varint = _VARINTS[word]
            poke(position, 0, varint)
            position += np.int64(varint >> np.uint32(24))
        elif word < np.uint64(1 << 56):
            size = varint_size(word)
            more = (np.uint64(1) << np.uint64(8 * size - 8)) - np.uint64(1)  # the bytes before the last
            poke(position, 0, _spread(word) | (np.uint64(0x8080808080808080) & more))
            position += size
        else:
            position = _put_varint(position, word)
    return position


@jit
def _put_block(position: int, values: int, start: int, stop: int, like: int) -> int:
    """The same, faster where each takes one byte: masks, labels, padding."""
    bits = np.uint64(np.int64(peek(values, start, like)))
    if bits < np.uint64(0x80):  # hardly any token id is: no need to look further
        for index in range(start, stop):
            bits |= np.uint64(np.int64(peek(values, index, like)))
    if bits >= np.uint64(0x80):
        return _put_each(position, values, start, stop, like)
    for index in range(stop - start):
        poke(position, index, np.uint8(peek(values, start + index, like)))
    return position + stop - start


@jit
def _put_narrow(position: int, values: int, count: int, like: int) -> int:
    """Writes `count` values of the type of `like`, 32 or 64 bits, by blocks."""
    for start in range(0, count, COUNT):
        position = _put_block(position, values, start, min(start + COUNT, count), like)
    return position


@jit
def _put_wide(position: int, values: int, count: int, like: int) -> int:
    """The same, where the processor can write a block at once."""
    whole = count - count % COUNT
    for start in range(0, whole, COUNT):
        end = put_many(position, values, start, like)
        position = end if end >= 0 else _put_each(position, values, start, start + COUNT, like)
    return position if whole == count else _put_block(position, values, whole, count, like)


@jit
def _put_bytes(position: int, values: int, count: int) -> int:
    """Writes `count` values of 8 bits: mostly masks, which are their own varints."""
    bits = np.uint64(0)
    for index in range(count // 8):
        bits |= peek(values, index, np.uint64(0))
    for index in range(count - count % 8, count):
        bits |= np.uint64(peek(values, index, np.uint8(0)))
    if bits & np.uint64(0x8080808080808080):
        return _put_each(position, values, 0, count, np.uint8(0))
    copy_bytes(position, values, count)
    return position + count


_put_values = _put_wide if CAN_SQUEEZE else _put_narrow


@jit
def _field(columns: int, index: int, field: int) -> int:
    return peek(columns, index * _NUM_FIELDS + field, np.int64(0))


@jit
def _put_payload(position: int, columns: int, index: int, row: int) -> int:
    """Writes the values of a row, and returns the position after them."""
    kind, count = _field(columns, index, _KIND), _field(columns, index, _NUM_VALUES)
    size = _field(columns, index, _ROW_BYTES)
    values = _field(columns, index, _ADDRESS) + row * size
    if kind == INT32:
        return _put_values(position, values, count, np.int32(0))
    if kind == INT64:
        return _put_values(position, values, count, np.int64(0))
    if kind == UINT8:
        return _put_bytes(position, values, count)
    copy_bytes(position, values, size)  # floats: their own bytes, so that NaNs keep theirs
    return position + size


@jit
def _nested_sizes(key_size: int, payload_size: int) -> tuple[int, int, int]:
    """E, V and W of the entry, from P."""
    list_size = 1 + varint_size(payload_size) + payload_size
    feature_size = 1 + varint_size(list_size) + list_size
    return key_size + varint_size(feature_size) + feature_size, feature_size, list_size


@jit
def _put_header(position: int, columns: int, index: int, payload_size: int) -> None:
    key_size = _field(columns, index, _KEY_SIZE)
    entry_size, feature_size, list_size = _nested_sizes(key_size, payload_size)
    poke(position, 0, np.uint8(0x0A))
    position = _put_varint(position + 1, entry_size)
    copy_bytes(position, _field(columns, index, _KEY), key_size)
    position = _put_varint(position + key_size, feature_size)
    poke(position, 0, np.uint8(FLOAT_LIST if _field(columns, index, _KIND) == FLOATS else INT64_LIST))
    position = _put_varint(position + 1, list_size)
    poke(position, 0, np.uint8(0x0A))
    _put_varint(position + 1, payload_size)


@jit
def _put_entry(position: int, columns: int, index: int, row: int) -> int:
    expected = _field(columns, index, _WIDTH)
    size = _put_payload(position + expected, columns, index, row) - position - expected
    entry_size, _, _ = _nested_sizes(_field(columns, index, _KEY_SIZE), size)
    width = 1 + varint_size(entry_size) + entry_size - size
    if width != expected:
        move_bytes(position + width, position + expected, size)
        poke(columns, index * _NUM_FIELDS + _WIDTH, width)
    _put_header(position, columns, index, size)
    return position + width + size


@jit
def _put_record(position: int, columns: int, num_columns: int, row: int, expected: int) -> tuple[int, int]:
    """Returns: the position after the record, and the width of its prefix, `expected` for the next."""
    end = position + expected
    for index in range(num_columns):
        end = _put_entry(end, columns, index, row)
    size = end - position - expected
    width = 1 + varint_size(size)
    if width != expected:
        move_bytes(position + width, position + expected, size)
    poke(position, 0, np.uint8(0x0A))
    _put_varint(position + 1, size)
    return position + width + size, width


@jit
def write_records(out: np.ndarray, offsets: np.ndarray, row: int, columns: np.ndarray, most: int, framed: bool) -> int:
    """Writes records from `row` on, each in its frame if `framed`, and where each ends. Stops where fewer than `most`
    bytes are left: what a record may need with its frame and SLACK.

    Returns: the first row that is not written, or the number of rows.
    """
    first, described = np.int64(out.ctypes.data), np.int64(columns.ctypes.data)
    head = frame_kernels.HEAD_BYTES if framed else 0
    prefix = np.int64(0)
    while row < len(offsets) - 1 and offsets[row] + most <= len(out):
        start = first + offsets[row]
        end, prefix = _put_record(start + head, described, len(columns), row, prefix)
        if framed:
            end = frame_kernels.put_frame(start, end)
        row += 1
        offsets[row] = end - first
    return row
