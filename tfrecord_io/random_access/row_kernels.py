"""The compiled loops that read groups of frames and take single records out of them: see `random_access`."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tfrecord_io.codec.addresses import pointer
from tfrecord_io.codec.decoding_kernels import OK, take_header, take_row, take_varint
from tfrecord_io.codec.frame_kernels import find_frame
from tfrecord_io.codec.kernels import INT64_LIST, copy, jit

__all__ = ["read_rows", "read_spans"]


@intrinsic
def _pread(typingctx: Any, descriptor: Any, address: Any, size: Any, offset: Any) -> Any:
    """pread(2) of the C library, on systems whose sizes and offsets have 64 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long, byte = ir.IntType(64), ir.IntType(8)
        kind = ir.FunctionType(long, [ir.IntType(32), byte.as_pointer(), long, long])
        function = cgutils.get_or_insert_function(builder.module, kind, "pread")
        descriptor = builder.trunc(args[0], ir.IntType(32))
        return builder.call(function, [descriptor, pointer(builder, args[1], byte), args[2], args[3]])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@jit
def read_spans(descriptors_R: np.ndarray, starts_R: np.ndarray, stops_R: np.ndarray, out: np.ndarray) -> int:
    """Reads bytes [start, stop) of open files, one span behind the other, into `out`.

    The interpreter is let go of once, and not for each span: with eight threads, waiting to get it back took longer
    than reading (measured: 35 against 10 us for a row of 512 tokens).

    Returns: how many spans were read to their end, up to the first that was not.
    """
    address = np.int64(out.ctypes.data)
    for r in range(len(descriptors_R)):
        size = stops_R[r] - starts_R[r]
        if _pread(descriptors_R[r], address, size, starts_R[r]) != size:
            return r
        address += size
    return len(descriptors_R)


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
