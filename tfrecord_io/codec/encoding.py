"""Columns to records, in exactly the memory that they take.

columns ──► checked against the schema ──► payloads counted ──► places ──► heads, values, frames ──► data, offsets
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrecord_io.codec import encoding_kernels, example_layout
from tfrecord_io.codec.frame_kernels import put_frames
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import MOST_VALUE_BYTES, Feature, Schema

__all__ = ["write"]

# What each dtype is converted to for the kernels: few dtypes, so that little is compiled.
_Taken = dict[str, np.dtype]
_INTS: _Taken = dict.fromkeys(("bool", "int8", "int16", "int32", "uint8", "uint16"), np.dtype(np.int32))
_INTS |= dict.fromkeys(("int64", "uint32"), np.dtype(np.int64))
_TAKEN: dict[str, _Taken] = {"int64": _INTS, "float32": {"float32": np.dtype(np.float32)}}
_TAKEN |= {name: {"object": np.dtype(object)} for name in ("string", "bytes")}
_NAMES = {np.dtype(name): name for taken in _TAKEN.values() for name in taken}  # NumPy takes microseconds to tell


class _Pieces(NamedTuple):
    """N values as bytes: their sizes int64 [N], and uint8 one behind the other."""

    sizes_N: np.ndarray
    data: np.ndarray


def write(columns: Mapping[str, np.ndarray], schema: Schema, *, framed: bool) -> tuple[np.ndarray, np.ndarray]:
    """One record for each row, in its frame if `framed`: uint8[total], and the offsets int64[N + 1].

    Raises: SchemaError if a column is missing, unknown, or of another dtype, shape or number of rows.
    """
    features, keys, key_sizes_F = _plan(schema)
    num_rows = _num_rows(columns, schema)
    fitted = [_fit(columns[feature.name], feature, num_rows) for feature in features]
    payloads_FN, places_FN = np.empty((2, len(features), num_rows), np.int64)
    for values, payloads_N in zip(fitted, payloads_FN, strict=True):
        if isinstance(values, _Pieces):
            payloads_N[:] = values.sizes_N
        elif values.dtype == np.uint8:
            payloads_N[:] = values.shape[1]
        else:
            encoding_kernels.count_bytes(values, payloads_N)
    offsets = np.zeros(num_rows + 1, np.int64)
    encoding_kernels.place_records(payloads_FN, key_sizes_F, framed, places_FN, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    encoding_kernels.put_prefixes(out, offsets, places_FN[0], framed)
    for feature, key, values, payloads_N, places_N in zip(features, keys, fitted, payloads_FN, places_FN, strict=True):
        encoding_kernels.put_heads(out, places_N, payloads_N, key, example_layout.LIST_TAGS[feature.dtype])
        if isinstance(values, _Pieces):
            encoding_kernels.put_pieces(out, places_N, payloads_N, values.data)
        elif values.dtype == np.uint8:
            encoding_kernels.put_bytes(out, places_N, values)
        else:
            encoding_kernels.put_ints(out, places_N, payloads_N, values)
    if framed:
        put_frames(out, offsets)
    return out, offsets


@functools.lru_cache(maxsize=256)
def _plan(schema: Schema) -> tuple[list[Feature], list[np.ndarray], np.ndarray]:
    """The features in the order of a record, their constant bytes, and how many these are."""
    features = example_layout.in_order(schema)
    keys = [frozen(np.frombuffer(example_layout.key(feature), np.uint8)) for feature in features]
    return features, keys, np.array([len(key) for key in keys])


def _num_rows(columns: Mapping[str, np.ndarray], schema: Schema) -> int:
    if columns.keys() != set(schema.names):
        missing, unknown = sorted(set(schema.names) - set(columns)), sorted(set(columns) - set(schema.names))
        raise SchemaError(f"columns {missing} are missing and {unknown} unknown, expected {list(schema.names)}")
    first = columns[schema.names[0]]
    return len(first) if first.ndim else 0


def _fit(column: np.ndarray, feature: Feature, num_rows: int) -> np.ndarray | _Pieces:
    """A column as the kernels take it: int32 or int64 [N, L]; or uint8 if its bytes are the payloads already, as with
    floats, and with values of one byte below 128, which are their own varints; or pieces of several sizes.
    """
    taken = _TAKEN[feature.dtype]
    name = _NAMES.get(column.dtype) or column.dtype.name
    if name not in taken:
        raise SchemaError(
            f"column {feature.name!r}: dtype {name}, expected {' or '.join(taken)}",
            remedy="convert the column; a silent conversion could change values",
        )
    if column.shape != (num_rows, *feature.shape):
        raise SchemaError(f"column {feature.name!r}: shape {column.shape}, expected {(num_rows, *feature.shape)}")
    if feature.is_bytes:
        return _pieces(column, feature)
    shape = num_rows, feature.num_values
    if column.itemsize == 1:  # masks, mostly
        values = frozen(column).reshape(shape).view(np.uint8)
        if values.max(initial=0) < 0x80:
            return values
    values = frozen(column.astype(taken[name], copy=False)).reshape(shape)
    return values.view(np.uint8) if feature.dtype == "float32" else values


def _pieces(column: np.ndarray, feature: Feature) -> _Pieces:
    """Return the bytes of a column of objects. Raises: SchemaError for another type, and a value that is too long."""
    held = str if feature.dtype == "string" else bytes
    if not all(type(value) is held for value in column):
        raise SchemaError(f"column {feature.name!r}: objects of other types, expected {held.__name__}")
    try:
        values = [value.encode("utf-8", "surrogateescape") for value in column] if held is str else column.tolist()
    except UnicodeEncodeError as error:
        raise SchemaError(f"column {feature.name!r}: a lone surrogate, expected Unicode text") from error
    sizes_N = np.fromiter(map(len, values), np.int64, len(values))
    if sizes_N.max(initial=0) > MOST_VALUE_BYTES:
        raise SchemaError(
            f"column {feature.name!r}: a value of {sizes_N.max():,} bytes, expected at most {MOST_VALUE_BYTES:,}"
        )
    return _Pieces(sizes_N, np.frombuffer(b"".join(values), np.uint8))
