"""One Arrow file of ingested rows: record batches of at most 1,000 rows and about 1 MB, and where each of them lies.

    ARROW1 | schema | batch | batch | ... | footer          IPC file format, as `pyarrow.ipc.open_file` reads it
                    at      at      at                      offset and length of each message: readable by itself

See https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Batches", "RowFile", "even_batches"]

MOST_ROWS = 1000
MOST_BYTES = 1 << 20
# Cut into equal numbers of rows, batches are of about equal size; what is a quarter above is not cut again.
_TOLERATED_BYTES = MOST_BYTES + MOST_BYTES // 4
# Tables of fewer rows are put together.
_GATHERED_ROWS = 10 * MOST_ROWS
_GATHERED_BYTES = 10 * MOST_BYTES
_WRITTEN_BYTES = 1 << 20
_MARK = b"ARROW1\0\0"
# Each file is written by one thread, of which there are as many as cores.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """The N record batches of a file. All arrays are int64 [N].

    `num_rows`; `at` and `length` of the message in the file, in bytes; by column `num_bytes`, of the values in memory,
    and `nulls`, how many are null.
    """

    num_rows: np.ndarray
    at: np.ndarray
    length: np.ndarray
    num_bytes: Mapping[str, np.ndarray]
    nulls: Mapping[str, np.ndarray]


class RowFile:
    """An Arrow file that comes as chunks of bytes while it is made, so that memory holds a few of its batches.

    `num_bytes` of the file, once all chunks were taken.
    """

    def __init__(self, types: pa.Schema) -> None:
        self._types = types
        self._places: list[tuple[int, int, int]] = []
        self._sizes: list[tuple[int, ...]] = []
        self.num_bytes = 0

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        """The file with these batches, in chunks of about 1 MB. Raises: whatever `batches` raises."""
        chunks = _Chunks()
        # Gathered there, without Python's lock, a batch is one piece instead of twenty.
        stream = pa.BufferedOutputStream(pa.PythonFile(chunks, mode="w"), _WRITTEN_BYTES)
        with pa.ipc.new_file(stream, self._types, options=_OPTIONS) as writer:
            for batch in batches:
                # The writer begins with the first batch: the mark of the format, and the schema.
                before = stream.tell() or len(_MARK) + self._types.serialize().size
                writer.write_batch(batch)
                self._note(batch, before, stream.tell() - before)
                yield from chunks.take()
        stream.flush()
        self.num_bytes = stream.tell()
        yield from chunks.take()

    def _note(self, batch: pa.RecordBatch, at: int, length: int) -> None:
        self._places.append((batch.num_rows, at, length))
        self._sizes.append(tuple(size for column in batch.columns for size in (column.nbytes, column.null_count)))

    @property
    def batches(self) -> Batches:
        """Where the batches lie that were written so far."""
        num_rows, at, length = np.array(self._places, np.int64).reshape(-1, 3).T
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
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, content: Any) -> int:
        """As io.RawIOBase has it."""
        self._pending.append(bytes(content))
        return len(content)

    def take(self) -> list[bytes]:
        """What was written since the last time."""
        taken, self._pending = self._pending, []
        return taken


def even_batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """The rows in record batches of at most 1,000 rows and about 1 MB, or of one row that is larger."""
    for table in _gathered(tables):
        for part in _parts(table):
            yield from part.combine_chunks().to_batches()


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables of some thousand rows, in which small ones are put together."""
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
