"""Arrow IPC files to be read, and what was read of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

__all__ = ["reads", "write"]


def write(path: Path, table: pa.Table, *, chunk: int = 7, stream: bool = True, **options: Any) -> str:
    """Writes batches of `chunk` rows in one of the two formats; `options` are those of `pa.ipc.IpcWriteOptions`."""
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return str(path)


@contextlib.contextmanager
def reads() -> Iterator[list[tuple[int, int]]]:
    """Collects which bytes, [start, stop), are read by position."""
    seen: list[tuple[int, int]] = []
    pread, preadv = os.pread, os.preadv

    def one(descriptor: int, length: int, offset: int) -> bytes:
        content = pread(descriptor, length, offset)
        seen.append((offset, offset + len(content)))
        return content

    def into(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        seen.append((offset, offset + count))
        return count

    with mock.patch.object(os, "pread", one), mock.patch.object(os, "preadv", into):
        yield seen
