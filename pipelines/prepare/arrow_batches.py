"""Record batches of which only the wanted bytes are read.

Metadata says where in a body each buffer lies, and Arrow finds out without looking into the body. So a batch is
decoded over memory that nothing was read into yet, and the arrays' addresses tell what to read where:

    memory        schema | dictionaries | metadata | body
                                                     validity | offsets   | text ............. | numbers ....
    one column                                          ====    =======     ==================
    rows [2, 5)                                         =         ==            ====
    lengths only                                        ====    =======

Memory that is not read into stays untouched, and costs address space only. What is outside of the rows and columns that
were asked for is left as it was found: a batch has to be cut to them before it is looked at.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection

import numpy as np
import pyarrow as pa

from pipelines.prepare.arrow_messages import Message

__all__ = ["Body", "ReadInto"]

# Fills the memory with the bytes of the file from an offset on.
ReadInto = Callable[[memoryview, int], None]

# Ranges so close to each other are read together, with what is between them.
_GAP_BYTES = 4096
# Above this memory is not kept to be used again.
_LARGE_BYTES = 16 << 20


class Body:
    """One batch of a file with that `schema`; `before` it are the dictionaries, with the schema, if there are any.

    A compressed batch cannot be read in parts: all of it is, at once.

    Raises: pa.ArrowInvalid here and in `load`, if the file does not hold what it says.
    """

    def __init__(self, message: Message, *, schema: pa.Schema, before: bytes, read_into: ReadInto) -> None:
        self._read_into = read_into
        buffer = _allocate(len(before) + message.stop - message.offset)
        self._memory, self._address = memoryview(buffer).cast("B"), buffer.address
        # Where in the file the memory would begin.
        self._origin = message.offset - len(before)
        self._ranges: list[tuple[int, int]] = []
        self._is_whole = message.is_whole
        self._memory[: len(before)] = before
        self._want(len(before), len(self._memory) if self._is_whole else len(before) + message.metadata_bytes)
        self._flush()
        # Arrow has no other way to take dictionaries in, and this one takes three times as long.
        reader = pa.ipc.open_stream(buffer) if before else None
        self._batch = reader.read_next_batch() if reader else pa.ipc.read_record_batch(buffer, schema)
        if any(len(column) != message.num_rows for column in self._batch.columns):
            raise pa.ArrowInvalid(f"the columns of the batch at byte {message.offset} have not {message.num_rows} rows")

    def load(self, columns: Collection[str], start: int, stop: int, *, unread: Collection[str] = ()) -> pa.RecordBatch:
        """Rows [start, stop) of some columns; of those that are `unread` only what tells nulls and lengths."""
        batch = self._batch.select(list(columns))
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._want_rows(column, start, stop, values=name not in unread)
        self._flush()
        return batch.slice(start, stop - start)

    def _want_rows(self, array: pa.Array, start: int, stop: int, *, values: bool) -> None:
        """Rows [start, stop) of a column, or of an array in one."""
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if isinstance(array, pa.DictionaryArray):
            array = array.indices
        if start >= stop:
            return
        kind, buffers = array.type, array.buffers()
        bits, offset_type = _bits(kind), _offset_type(kind)
        if not (bits or offset_type or pa.types.is_fixed_size_list(kind) or pa.types.is_struct(kind)):
            for buffer in filter(None, buffers):
                self._want_items(buffer, 0, buffer.size, bits=8)
            return
        if buffers[0] is not None:
            self._want_items(buffers[0], start, stop, bits=1)
        if bits:
            self._want_items(buffers[1], start, stop, bits=bits, values=values)
        elif offset_type:
            low, high = self._between(buffers[1], start, stop, offset_type)
            if pa.types.is_nested(kind):
                self._want_inner(array.values, low, high, values=values)
            else:
                self._want_items(buffers[2], low, high, bits=8, values=values)
        elif pa.types.is_fixed_size_list(kind):
            self._want_inner(array.values, start * kind.list_size, stop * kind.list_size, values=values)
        else:
            for index in range(kind.num_fields):
                self._want_inner(array.field(index), start, stop, values=values)

    def _want_inner(self, array: pa.Array, start: int, stop: int, *, values: bool) -> None:
        """What is nested in a column. A slice of the column still has all of it, and must find nothing absurd there:
        numbers may be anything, but their nulls have to be as many as is said.
        """
        if stop > len(array):
            raise pa.ArrowInvalid(f"items up to {stop} of a nested column that has {len(array)}")
        if not pa.types.is_primitive(array.type):
            start, stop = 0, len(array)
        elif (validity := array.buffers()[0]) is not None:
            self._want_items(validity, 0, len(array), bits=1)
        self._want_rows(array, start, stop, values=values)

    def _between(self, buffer: pa.Buffer, start: int, stop: int, offset_type: str) -> tuple[int, int]:
        """Where the items of rows [start, stop) begin and end. Their offsets have to be read for it."""
        dtype = np.dtype(offset_type)
        self._want_items(buffer, start, stop + 1, bits=8 * dtype.itemsize)
        self._flush()
        offsets = np.frombuffer(buffer, dtype, count=stop + 1 - start, offset=start * dtype.itemsize)
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
            raise pa.ArrowInvalid(f"offsets of rows {start} to {stop} are not ascending")
        return int(offsets[0]), int(offsets[-1])

    def _want_items(self, buffer: pa.Buffer | None, start: int, stop: int, *, bits: int, values: bool = True) -> None:
        """Items [start, stop) of a buffer, which has to have them even if their values are not wanted."""
        if start >= stop:
            return
        low, high = start * bits // 8, -(-stop * bits // 8)
        if buffer is None or high > buffer.size:
            raise pa.ArrowInvalid(f"values up to byte {high} of a buffer that has {buffer and buffer.size} bytes")
        if values and not self._is_whole:
            place = buffer.address - self._address
            self._want(place + low, place + high)

    def _want(self, low: int, high: int) -> None:
        if not 0 <= low <= high <= len(self._memory):
            raise pa.ArrowInvalid("values that are not in the file as they are, such as of another byte order")
        self._ranges.append((low, high))

    def _flush(self) -> None:
        """Reads what is wanted by now, neighbours together."""
        wanted, self._ranges = sorted(self._ranges), []
        merged: list[tuple[int, int]] = []
        for low, high in wanted:
            if merged and low <= merged[-1][1] + _GAP_BYTES:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        for low, high in merged:
            self._read_into(self._memory[low:high], self._origin + low)


def _allocate(num_bytes: int) -> pa.Buffer:
    """Memory of zeros, to be filled. What Arrow gives was used before, so that its pages are there, which is fast; but
    those of a large batch are hardly all needed, and such memory is to be new, and given back.

    Zeros, since what is not read lies between what is, and a copy of the batch in a file would have it too: the same
    rows are to be the same bytes.
    """
    if num_bytes < _LARGE_BYTES:
        buffer = pa.allocate_buffer(num_bytes)
        np.asarray(memoryview(buffer).cast("B")).fill(0)
        return buffer
    return pa.py_buffer(mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _bits(kind: pa.DataType) -> int:
    """Of a value, where all are of one width; else 0."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 0


def _offset_type(kind: pa.DataType) -> str:
    """Of the numbers that say where in another buffer a row lies, if it has such; else nothing."""
    is_of = pa.types
    if is_of.is_string(kind) or is_of.is_binary(kind) or is_of.is_list(kind) or is_of.is_map(kind):
        return "<i4"
    if is_of.is_large_string(kind) or is_of.is_large_binary(kind) or is_of.is_large_list(kind):
        return "<i8"
    return ""
