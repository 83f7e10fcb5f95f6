"""Rows of files that have types of their own, Arrow and Parquet, by pyarrow alone.

An Arrow file is read as a stream, also where it has the footer of a file: what comes before is a stream with a mark of
eight bytes in front. So nothing is sought, and memory holds one record batch.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from pipelines.prepare import storage
from pipelines.prepare.sources import byte_ranges
from pipelines.prepare.sources.files import DataFile
from pipelines.prepare.sources.messages import first_line
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["arrow", "arrow_schema", "parquet", "runs_of_row_groups"]

_FILE_MARK = b"ARROW1\0\0"
_RUN_BYTES = 64_000_000
_BATCH_ROWS = 1000


def arrow(file: DataFile, types: pa.Schema, *, addresses: Mapping[str, str]) -> Iterator[pa.Table]:
    """The rows of an Arrow file or stream. Raises: SourceError; pa.ArrowException if it is damaged or doesn't fit."""
    with byte_ranges.open_file(file, addresses=addresses) as stream:
        if stream.peek(len(_FILE_MARK)).startswith(_FILE_MARK):
            stream.read(len(_FILE_MARK))
        for batch in pa.ipc.open_stream(stream):
            # Offsets that lead out of the buffers would end the process.
            batch.validate(full=True)
            yield _with_types(pa.Table.from_batches([batch]), types)


def arrow_schema(file: DataFile, *, addresses: Mapping[str, str]) -> pa.Schema:
    """The columns of an Arrow file or stream, with metadata. Raises: SourceError if it is none."""
    try:
        with byte_ranges.open_file(file, addresses=addresses) as stream:
            if stream.peek(len(_FILE_MARK)).startswith(_FILE_MARK):
                stream.read(len(_FILE_MARK))
            return pa.ipc.open_stream(stream).schema
    except (pa.ArrowException, OSError, EOFError) as error:
        raise SourceError(
            f"{without_access(file.path)}: no Arrow file that can be read ({first_line(error)})",
            remedy="get it again from where it was made, or leave it out",
        ) from error


def parquet(
    file: DataFile, types: pa.Schema, *, start: int, stop: int, addresses: Mapping[str, str]
) -> Iterator[pa.Table]:
    """The rows of row groups [start, stop). Raises: SourceError; pa.ArrowException if they are damaged."""
    with _parquet_file(file, addresses=addresses) as opened:
        for batch in opened.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=list(range(start, stop)), columns=types.names, use_threads=False
        ):
            yield _with_types(pa.Table.from_batches([batch]), types)


def runs_of_row_groups(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Cuts a Parquet file into runs of row groups of about 64 MB, uncompressed."""
    with _parquet_file(file, addresses=addresses) as opened:
        metadata = opened.metadata
    start, held = 0, 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).total_byte_size
        if held >= _RUN_BYTES:
            yield start, group + 1
            start, held = group + 1, 0
    if start < metadata.num_row_groups or not start:
        yield start, metadata.num_row_groups


@contextlib.contextmanager
def _parquet_file(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[Any]:
    with byte_ranges.open_seekable(file, addresses=addresses) as stream, pa.parquet.ParquetFile(stream) as opened:
        yield opened


def _with_types(table: pa.Table, types: pa.Schema) -> pa.Table:
    """The columns by name, in the order of `types`; one that is not there is null, as `datasets` has it."""
    if table.schema.equals(types):
        return table.replace_schema_metadata(types.metadata)
    if unknown := [name for name in table.column_names if name not in types.names]:
        raise pa.ArrowInvalid(f"column {unknown[0]!r}, expected only {', '.join(map(repr, types.names))}")
    columns = [
        _cast(table[field.name], field) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in types
    ]
    return pa.Table.from_arrays(columns, schema=types)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_primitive(column.type) != pa.types.is_primitive(field.type):
        raise pa.ArrowInvalid(f"column {field.name!r} holds {column.type}, expected {field.type}")
    return column.cast(field.type)
