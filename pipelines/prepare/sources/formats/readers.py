"""Readers of data files: one for each kind of file, all with the same signature.

    part of a file ──► read(part, types) ──► tables of rows with these types

JSON lines are read by pyarrow where that gives what `datasets` would, and by `datasets` where it does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from pipelines.prepare.sources.files.data_files import FileKind
from pipelines.prepare.sources.formats import json_lines, plain_tables, text_readers
from pipelines.prepare.sources.formats.casting import RowTypeError
from pipelines.prepare.sources.formats.file_parts import FilePart

__all__ = ["read"]


class Reader(Protocol):
    """Reads the rows of a part of a file as tables of any size."""

    def __call__(self, part: FilePart, types: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows with these types. Raises: SourceError, RowTypeError, or whatever the library raises."""


def read(part: FilePart, types: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a part of a file, in tables of any size. Raises: as `Reader`."""
    return _READERS[part.file.kind](part, types)


def _read_text(part: FilePart, types: pa.Schema) -> Iterator[pa.Table]:
    return text_readers.tables(part.file.kind, part.open, types)


def _read_json(part: FilePart, types: pa.Schema) -> Iterator[pa.Table]:
    if not json_lines.supports(types):
        yield from _read_text(part, types)
        return
    with part.open() as stream:
        chunks = json_lines.chunks(stream)
        is_array = stream.peek(1).lstrip().startswith(b"[")  # perhaps one line, and a long one
        first = memoryview(b"") if is_array else next(chunks, memoryview(b""))
        if part.is_whole and (is_array or (first and not json_lines.is_row_line(first))):
            yield from _read_text(part, types)
            return
        num_bytes = 0
        for chunk in itertools.chain([first], chunks):
            try:
                table = json_lines.parse(chunk, types)
            except pa.ArrowException:
                table = _cast_by_datasets(bytes(chunk), types, bytes_before=num_bytes)
            yield from json_lines.check_utf8(table)
            num_bytes += len(chunk)


def _cast_by_datasets(chunk: bytes, types: pa.Schema, *, bytes_before: int) -> pa.Table:
    """Read a chunk that pyarrow refuses. Raises: RowTypeError if `datasets` cannot cast its rows either."""
    try:
        return pa.concat_tables(text_readers.tables("json", lambda: text_readers.in_memory(chunk), types))
    except Exception as error:
        found = json_lines.find_mismatch(chunk, types)
        raise RowTypeError(
            found.problem, rows_before=found.rows_before, bytes_before=bytes_before + found.bytes_before
        ) from error


_READERS: dict[FileKind, Reader] = {
    "arrow": plain_tables.read_arrow,
    "parquet": plain_tables.read_parquet,
    "json": _read_json,
    "csv": _read_text,
    "tsv": _read_text,
    "text": _read_text,
}
