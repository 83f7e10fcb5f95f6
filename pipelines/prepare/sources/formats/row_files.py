"""Writing ingested rows as an Arrow file of record batches with at most 1,000 rows and about 1 MB each.

    ARROW1 | schema | batch | batch | ... | footer          IPC file format, as `pyarrow.ipc.open_file` reads it
                    at      at      at                      by offset and length, each message is read by itself

See https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Batches", "RowFileWriter", "even_batches"]

MOST_ROWS = 1000
MOST_BYTES = 1 << 20
# Batches with equal numbers of rows differ in bytes; up to a quarter more than the limit is accepted.
_TOLERATED_BYTES = MOST_BYTES + MOST_BYTES // 4
# Smaller tables are joined before they are cut into batches.
_GATHERED_ROWS = 10 * MOST_ROWS
_GATHERED_BYTES = 10 * MOST_BYTES
_WRITTEN_BYTES = 1 << 20
_ARROW_MAGIC = b"ARROW1\0\0"
# Each core writes a file of its own.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """The N record batches of a file. All arrays are int64 [N].

    `num_rows`; `at` and `length`: offset and size of the message in the file, in bytes; by column, `num_bytes` of the
    values in memory, and how many of them are `nulls`.
    """

    num_rows: np.ndarray
    at: np.ndarray
    length: np.ndarray
    num_bytes: Mapping[str, np.ndarray]
    nulls: Mapping[str, np.ndarray]


class RowFileWriter:
    """Makes an Arrow file as chunks of bytes, so that memory holds only a few of its batches.

    `num_bytes` is the size of the file once all chunks were taken.
    """

    def __init__(self, types: pa.Schema) -> None:
        self._types = types
        self._messages: list[tuple[int, int, int]] = []
        self._sizes: list[tuple[int, ...]] = []
        self.num_bytes = 0

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        """Yield the file with these batches in chunks of about 1 MB. Raises: whatever `batches` raises."""
        chunks = _Chunks()
        # The writer makes about twenty writes for a batch; Arrow's buffer joins them without holding Python's lock.
        stream = pa.BufferedOutputStream(pa.PythonFile(chunks, mode="w"), _WRITTEN_BYTES)
        with pa.ipc.new_file(stream, self._types, options=_OPTIONS) as writer:
            for batch in batches:
                # With the first batch, the writer writes the magic number and the schema before it.
                before = stream.tell() or len(_ARROW_MAGIC) + self._types.serialize().size
                writer.write_batch(batch)
                self._note(batch, before, stream.tell() - before)
                yield from chunks.take()
        stream.flush()
        self.num_bytes = stream.tell()
        yield from chunks.take()

    def _note(self, batch: pa.RecordBatch, at: int, length: int) -> None:
        self._messages.append((batch.num_rows, at, length))
        self._sizes.append(tuple(size for column in batch.columns for size in (column.nbytes, column.null_count)))

    @property
    def batches(self) -> Batches:
        """The batches written so far."""
        num_rows, at, length = np.array(self._messages, np.int64).reshape(-1, 3).T
        sizes = np.array(self._sizes, np.int64).reshape(-1, len(self._types.names), 2)
        names = self._types.names
        return Batches(
            num_rows=num_rows,
            at=at,
            length=length,
            num_bytes={name: sizes[:, column, 0] for column, name in enumerate(names)},
            nulls={name: sizes[:, column, 1] for column, name in enumerate(names)},
        )


class _Chunks(io.RawIOBase):
    """A binary stream that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Keep `content`; return its size in bytes."""
        self._pending.append(bytes(content))
        return len(content)

    def take(self) -> list[bytes]:
        """Return what was written since the last call."""
        taken, self._pending = self._pending, []
        return taken


def even_batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of at most 1,000 rows and about 1 MB; a larger row is a batch by itself."""
    for table in _joined(tables):
        for part in _parts(table):
            yield from part.combine_chunks().to_batches()


def _joined(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables to tables of some thousand rows."""
    held: list[pa.Table] = []
    rows = num_bytes = 0
    for table in tables:
        held.append(table)
        rows, num_bytes = rows + table.num_rows, num_bytes + table.nbytes
        if rows >= _GATHERED_ROWS or num_bytes >= _GATHERED_BYTES:
            yield pa.concat_tables(held)
            held, rows, num_bytes = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    rows, size = table.num_rows, table.nbytes
    if rows <= 1 or (rows <= MOST_ROWS and size <= _TOLERATED_BYTES):
        yield table
        return
    count = min(rows, max(2, -(-rows // MOST_ROWS), -(-size // MOST_BYTES)))
    for part in range(count):
        start, stop = rows * part // count, rows * (part + 1) // count
        yield from _parts(table.slice(start, stop - start))
