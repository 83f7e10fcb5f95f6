"""Encode columns as records with compiled loops.

An Example has one entry per feature. E, K, V, W and P are varints, each the number of bytes in the part that follows:

    0a E  0a K name  12 V  1a|12|0a W  0a P  payload
          └─ `key` ────┘   └ kind of list: int64_list (1a, varints), float_list (12, 4 bytes per value) or
                             bytes_list (0a, a single value)
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.codec.kernels import FRAME_BYTES, HEAD_BYTES, copy, frozen, jit, put_frames
from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import MOST_VALUE_BYTES, Feature, Schema

LIST_TAGS = {"int64": 0x1A, "float32": 0x12, "string": 0x0A, "bytes": 0x0A}

# Kernel dtypes by feature dtype and column dtype. Fewer dtypes need fewer compiled kernels.
_INTS = dict.fromkeys(("bool", "int8", "int16", "int32", "uint8", "uint16"), np.int32)
_TAKEN: dict[str, dict[str, Any]] = {
    "int64": {**_INTS, "int64": np.int64, "uint32": np.int64},
    "float32": {"float32": np.float32},
    "string": {"object": object},
    "bytes": {"object": object},
}


def in_order(schema: Schema) -> list[Feature]:
    """Return a schema's features in the order of the written records: by the bytes of their names.

    A name comes before its prefixes (`text_pair` before `text`), as in protobuf's Python runtime (upb).
    """
    return sorted(schema.features, key=lambda feature: feature.name.encode() + b"\xff")


def key(feature: Feature) -> bytes:
    """Return the bytes that all entries of a feature share: tag, size and name of the key, and tag of the value."""
    name = feature.name.encode()
    size = [len(name)] if len(name) < 0x80 else [len(name) & 0x7F | 0x80, len(name) >> 7]  # names have up to 128 bytes
    return bytes([0x0A, *size]) + name + b"\x12"


class _Packed(NamedTuple):
    # Sizes are int64 [N], or one size for all payloads. All payloads are in one uint8 buffer.

    sizes_N: np.ndarray | int
    data: np.ndarray


def write(columns: Mapping[str, np.ndarray], schema: Schema, *, framed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Serialize N rows as Examples, `framed` or not as TFRecord frames. `columns`: as in `examples.encode`.

    Returns: all bytes, uint8; and offsets, int64 [N + 1]: row n is bytes[offsets[n] : offsets[n + 1]].
    """
    if columns.keys() != set(schema.names):
        missing, unknown = sorted(set(schema.names) - set(columns)), sorted(set(columns) - set(schema.names))
        raise SchemaError(f"features: {missing} missing, {unknown} unknown, expected {list(schema.names)}")
    features, keys, key_sizes_F = _plan(schema)
    first = columns[schema.names[0]]
    num_rows = len(first) if first.ndim else 0
    fitted = [_fit(columns[feature.name], feature, num_rows) for feature in features]
    payloads_FN, places_FN = np.empty((2, len(features), num_rows), np.int64)
    for values, payloads_N in zip(fitted, payloads_FN, strict=True):
        if isinstance(values, _Packed):
            payloads_N[:] = values.sizes_N
        else:
            _count_bytes(values, payloads_N)
    offsets = np.zeros(num_rows + 1, np.int64)
    _place_records(payloads_FN, key_sizes_F, framed, places_FN, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _put_prefixes(out, offsets, places_FN[0], framed)
    for feature, key_, values, payloads_N, places_N in zip(features, keys, fitted, payloads_FN, places_FN, strict=True):
        _put_heads(out, places_N, payloads_N, key_, LIST_TAGS[feature.dtype])
        if isinstance(values, _Packed):
            _put_pieces(out, places_N, payloads_N, values.data)
        else:
            _put_ints(out, places_N, values)
    if framed:
        put_frames(out, offsets)
    return out, offsets


@functools.lru_cache(maxsize=256)
def _plan(schema: Schema) -> tuple[list[Feature], list[np.ndarray], np.ndarray]:
    features = in_order(schema)
    keys = [frozen(np.frombuffer(key(feature), np.uint8)) for feature in features]
    return features, keys, np.array(list(map(len, keys)))


def _fit(column: np.ndarray, feature: Feature, num_rows: int) -> np.ndarray | _Packed:
    # Integers become int32 or int64 [N, L]. If a column's bytes are the payloads, the result is `_Packed`.
    taken = _TAKEN[feature.dtype]
    if column.dtype.name not in taken:
        raise SchemaError(
            f"feature {feature.name!r}: dtype {column.dtype.name}, expected {' or '.join(taken)}",
            remedy="convert the array to one of these types",
        )
    if column.shape != (num_rows, *feature.shape):
        raise SchemaError(f"feature {feature.name!r}: shape {column.shape}, expected {(num_rows, *feature.shape)}")
    if feature.is_bytes:
        return _pieces(column, feature)
    shape = num_rows, feature.num_values
    if column.itemsize == 1:  # usually a mask; a value below 128 is its own varint
        values = frozen(column).reshape(shape).view(np.uint8)
        if values.max(initial=0) < 0x80:
            return _Packed(feature.num_values, values.reshape(-1))
    values = frozen(column.astype(taken[column.dtype.name], copy=False)).reshape(shape)
    return _Packed(4 * feature.num_values, values.reshape(-1).view(np.uint8)) if feature.dtype == "float32" else values


def _pieces(column: np.ndarray, feature: Feature) -> _Packed:
    held = str if feature.dtype == "string" else bytes
    if not all(type(value) is held for value in column):
        raise SchemaError(f"feature {feature.name!r}: objects of another type, expected {held.__name__}")
    try:
        values = [value.encode("utf-8", "surrogateescape") for value in column] if held is str else column.tolist()
    except UnicodeEncodeError as error:
        raise SchemaError(f"feature {feature.name!r}: a lone surrogate, expected Unicode text") from error
    sizes_N = np.fromiter(map(len, values), np.int64, len(values))
    if (largest := sizes_N.max(initial=0)) > MOST_VALUE_BYTES:
        raise SchemaError(
            f"feature {feature.name!r}: a value of {largest:,} bytes, expected at most {MOST_VALUE_BYTES:,}"
        )
    return _Packed(sizes_N, np.frombuffer(b"".join(values), np.uint8))


@jit
def _varint_size(value: int) -> int:
    size = 1
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        size += 1
    return size


@jit
def _put_varint(out: np.ndarray, position: int, value: int) -> int:
    while value >= np.uint64(0x80):
        out[position] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value >>= np.uint64(7)
        position += np.uint64(1)
    out[position] = np.uint8(value)
    return position + np.uint64(1)


@jit
def _count_bytes(values_NL: np.ndarray, payloads_N: np.ndarray) -> None:
    length = np.uint64(values_NL.shape[1])
    for row in range(len(payloads_N)):
        size = np.int64(length)
        for column in range(length):
            value = np.uint64(np.int64(values_NL[np.uint64(row), column]))
            for k in range(1, 10):  # unrolled, without branches
                size += np.int64(value >= np.uint64(1) << np.uint64(7 * k))
        payloads_N[row] = size


@jit
def _sizes(key_size: int, payload: int) -> tuple[int, int, int]:
    # E, V and W, see above
    of_list = 1 + _varint_size(np.uint64(payload)) + payload
    of_feature = 1 + _varint_size(np.uint64(of_list)) + of_list
    return key_size + _varint_size(np.uint64(of_feature)) + of_feature, of_feature, of_list


@jit
def _place_records(
    payloads_FN: np.ndarray, key_sizes_F: np.ndarray, framed: bool, places_FN: np.ndarray, offsets: np.ndarray
) -> None:
    around = FRAME_BYTES if framed else 0
    for row in range(len(offsets) - 1):
        size = 0
        for feature in range(len(payloads_FN)):
            places_FN[feature, row] = size
            of_entry, _, _ = _sizes(key_sizes_F[feature], payloads_FN[feature, row])
            size += 1 + _varint_size(np.uint64(of_entry)) + of_entry
        prefix = 1 + _varint_size(np.uint64(size))
        for feature in range(len(payloads_FN)):
            places_FN[feature, row] += offsets[row] + prefix + (HEAD_BYTES if framed else 0)
        offsets[row + 1] = offsets[row] + prefix + size + around


@jit
def _put_prefixes(out: np.ndarray, offsets: np.ndarray, first_N: np.ndarray, framed: bool) -> None:
    for row in range(len(first_N)):
        start, end = offsets[row], offsets[row + 1]
        if framed:
            start, end = start + HEAD_BYTES, end - (FRAME_BYTES - HEAD_BYTES)
        out[start] = 0x0A
        _put_varint(out, np.uint64(start + 1), np.uint64(end - first_N[row]))


@jit
def _put_heads(out: np.ndarray, places_N: np.ndarray, payloads_N: np.ndarray, key: np.ndarray, kind: int) -> None:
    # Each place moves from the start of an entry to its payload.
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
def _put_ints(out: np.ndarray, places_N: np.ndarray, values_NL: np.ndarray) -> None:
    # Writing whole words instead of single bytes would save 1 ns per token of 2 or 3 bytes, 2 % of a build.
    for row in range(len(places_N)):
        at = np.uint64(places_N[row])
        for column in range(values_NL.shape[1]):
            at = _put_varint(out, at, np.uint64(np.int64(values_NL[row, column])))


@jit
def _put_pieces(out: np.ndarray, places_N: np.ndarray, payloads_N: np.ndarray, data: np.ndarray) -> None:
    start = 0
    for row in range(len(places_N)):
        copy(out, places_N[row], data, start, payloads_N[row])
        start += payloads_N[row]
