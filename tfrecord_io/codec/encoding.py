"""Columns to the kernel that writes records, and the memory that it writes to.

    columns ──► checked against the schema ──► one line of numbers for each ──► kernel ──► data, offsets
                                                                                 │  ▲
                                                              no room for a row: ▼  │ twice the memory, and go on

How many bytes the records have is known only when they are written: an integer takes 1 to 10. Token ids take at most 3,
so there is room for 3 at first. Memory that is not written to costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from tfrecord_io.codec import encoding_kernels, example_layout
from tfrecord_io.codec.encoding_kernels import FLOATS, INT32, INT64, SLACK, UINT8
from tfrecord_io.codec.frame_kernels import FRAME_BYTES
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import Feature, Schema

__all__ = ["Memory", "key", "write"]

_Layouts = dict[str, tuple[int, np.dtype]]

# How the kernel takes each dtype. The rare ones are converted first, so that less is compiled.
_INTS: _Layouts = {
    "bool": (UINT8, np.dtype(np.uint8)),
    "int8": (INT32, np.dtype(np.int32)),
    "int16": (INT32, np.dtype(np.int32)),
    "int32": (INT32, np.dtype(np.int32)),
    "int64": (INT64, np.dtype(np.int64)),
    "uint8": (UINT8, np.dtype(np.uint8)),
    "uint16": (INT32, np.dtype(np.int32)),
    "uint32": (INT64, np.dtype(np.int64)),
}
_FLOATS: _Layouts = {"float32": (FLOATS, np.dtype(np.float32))}
_NAMES = {np.dtype(name): name for name in (*_INTS, *_FLOATS)}  # NumPy takes microseconds to tell
_USUAL_BYTES = {FLOATS: 4, UINT8: 1, INT32: 3, INT64: 3}  # of a value
_HEADER_BYTES = 24  # of an entry without its key, unless it is huge


class Memory:
    """Memory that one call after the other writes to: what a call returned is overwritten by the next.

    A process that asks for tens of megabytes gets them from the system each time, which first clears them: a third of
    the time that records took (measured: 13.5 against 10.0 ms for 32 MB). Less than that is kept by the C library, and
    then this saves nothing. For one thread at a time.
    """

    def __init__(self) -> None:
        self._room = np.empty(0, np.uint8)

    def at_least(self, size: int, *, keep: int = 0) -> np.ndarray:
        """uint8 [size or more], in which the first `keep` bytes are those of the last time."""
        if len(self._room) < size:
            kept, self._room = self._room[:keep], np.empty(size, np.uint8)
            self._room[:keep] = kept
        return self._room


def key(feature: Feature) -> np.ndarray:
    """The constant bytes of an entry, as kernels take them."""
    return frozen(np.frombuffer(example_layout.key(feature), np.uint8))


@dataclasses.dataclass(frozen=True, eq=False)
class _Entry:
    """What a schema says of a feature's entry in every record."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_values: int
    key: np.ndarray


def write(
    columns: Mapping[str, np.ndarray], schema: Schema, *, memory: Memory | None, framed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The columns' records, each in its frame if `framed`: uint8[total] in `memory`, and int64[N + 1] that cuts it up.

    Raises: SchemaError if a column is missing, unknown, or of another dtype, shape or number of rows.
    """
    entries = _plan(schema)
    memory = Memory() if memory is None else memory
    num_rows = _num_rows(columns, schema)
    fitted = [_fit(columns[entry.name], entry, num_rows) for entry in entries]  # alive while the kernel reads them
    lines, usual, most = [], 2 * FRAME_BYTES, 2 * FRAME_BYTES + SLACK
    for entry, (values, kind) in zip(entries, fitted, strict=True):
        lines.append(encoding_kernels.describe(values, kind, entry.num_values, entry.key))
        usual += len(entry.key) + _HEADER_BYTES + entry.num_values * _USUAL_BYTES[kind]
        most += encoding_kernels.most_bytes(kind, entry.num_values, len(entry.key))

    table, offsets = np.array(lines, np.int64), np.zeros(num_rows + 1, np.int64)
    room, row = memory.at_least(num_rows * usual + most), 0
    while (row := encoding_kernels.write_records(room, offsets, row, table, most, framed)) < num_rows:
        room = memory.at_least(2 * len(room), keep=int(offsets[row]))
    return room[: offsets[-1]], offsets


@functools.lru_cache(maxsize=256)
def _plan(schema: Schema) -> tuple[_Entry, ...]:
    """The entries of every record, in their order."""
    return tuple(
        _Entry(feature.name, feature.dtype, feature.shape, feature.num_values, key(feature))
        for feature in example_layout.in_order(schema)
    )


def _num_rows(columns: Mapping[str, np.ndarray], schema: Schema) -> int:
    if columns.keys() != set(schema.names):
        missing, unknown = sorted(set(schema.names) - set(columns)), sorted(set(columns) - set(schema.names))
        raise SchemaError(f"columns {missing} are missing and {unknown} unknown, expected {list(schema.names)}")
    first = columns[schema.names[0]]
    return len(first) if first.ndim else 0


def _fit(column: np.ndarray, entry: _Entry, num_rows: int) -> tuple[np.ndarray, int]:
    """A column as the kernel takes it, one row after the other; and how the values lie in it."""
    allowed = _INTS if entry.dtype == "int64" else _FLOATS
    name = _NAMES.get(column.dtype) or column.dtype.name
    if name not in allowed:
        raise SchemaError(
            f"column {entry.name!r}: dtype {name}, expected {' or '.join(allowed)}",
            remedy="convert the column; a silent conversion could change values",
        )
    if column.shape != (num_rows, *entry.shape):
        raise SchemaError(f"column {entry.name!r}: shape {column.shape}, expected {(num_rows, *entry.shape)}")
    kind, dtype = allowed[name]
    if column.dtype == np.bool_:
        column = column.view(dtype)
    if column.dtype != dtype or not (column.flags.c_contiguous and column.flags.aligned):
        column = np.require(column, dtype, ["C", "A"])
    return column, kind
