"""Parquet parts of ingested rows: row groups of at most 1,000 rows and about 1 MB each, and pages with checksums.

    FOLDER/train-00003-of-00012.parquet     its footer says how many rows are of each shard of the stream

A part appears whole or not at all, and checksums are verified whenever it is read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.sources.parquet import row_groups

__all__ = ["even_tables", "part_chunks"]

MOST_ROWS = 1000
MOST_BYTES = 1 << 20
# Groups with equal numbers of rows differ in bytes; up to a quarter more than the limit is accepted.
_TOLERATED_BYTES = MOST_BYTES + MOST_BYTES // 4
# Smaller tables are joined before they are cut into groups.
_GATHERED_ROWS = 10 * MOST_ROWS
_GATHERED_BYTES = 10 * MOST_BYTES


def part_chunks(types: pa.Schema, tables: Iterable[pa.Table], *, rows: Sequence[int] = ()) -> Iterator[bytes]:
    """Yield the bytes of a part with a row group for each table. Raises: whatever `tables` raises.

    `rows` are those of each shard, once all `tables` have come.

    Measured on 37 MB of JSON lines: lz4 takes 0.14 s of CPU, as no compression does, for two thirds of the bytes; a
    dictionary saves no bytes of texts.
    """
    sink = _Chunks()
    with pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"), types, compression="lz4", use_dictionary=False, write_page_checksum=True
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            yield from sink.take()
        writer.add_key_value_metadata({row_groups.SHARD_ROWS: json.dumps(list(rows))})
    yield from sink.take()


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
        return [b"".join(taken)] if taken else []


def even_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows in tables of at most 1,000 rows and about 1 MB; a larger row is a table by itself."""
    for table in _joined(tables):
        if table.num_rows:
            yield from _cut(table)


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


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    rows, size = table.num_rows, table.nbytes
    if rows <= 1 or (rows <= MOST_ROWS and size <= _TOLERATED_BYTES):
        yield table
        return
    count = min(rows, max(2, -(-rows // MOST_ROWS), -(-size // MOST_BYTES)))
    for part in range(count):
        start, stop = rows * part // count, rows * (part + 1) // count
        yield from _cut(table.slice(start, stop - start))
