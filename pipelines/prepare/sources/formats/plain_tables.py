"""Readers for Arrow and Parquet files, which have types of their own: pyarrow alone, one record batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from pipelines.prepare.sources.files import access, byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats import casting
from pipelines.prepare.sources.formats.file_parts import FilePart
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import first_line, without_access

__all__ = ["arrow_schema", "read_arrow", "read_parquet", "row_group_ranges"]

_ARROW_MAGIC = b"ARROW1"
_RANGE_BYTES = 64_000_000
_BATCH_ROWS = 1000


def read_arrow(part: FilePart, types: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of an Arrow file or stream. Raises: SourceError; pa.ArrowException if it is damaged."""
    where = without_access(part.file.path)
    with _memory_as_source_error(where):
        for batch in _arrow_batches(part.file, addresses=part.addresses):
            # Offsets that lead out of the buffers would crash the process.
            batch.validate(full=True)
            yield _with_types(batch, types, where=where)


@contextlib.contextmanager
def _memory_as_source_error(where: str) -> Iterator[None]:
    """Turn MemoryError into SourceError: a damaged file may claim any size for a batch."""
    try:
        yield
    except MemoryError as error:
        raise SourceError(
            f"{where}: cannot be read: not enough memory for a record batch",
            remedy="the file is damaged, or its batches are too large: get it again, or write it with smaller batches",
        ) from error


def _arrow_batches(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    if byte_ranges.read_head(file, len(_ARROW_MAGIC), addresses=addresses) == _ARROW_MAGIC:
        with access.opened(file, addresses) as handle:
            opened = pa.ipc.open_file(handle)
            for number in range(opened.num_record_batches):
                yield opened.get_batch(number)
        return
    with byte_ranges.open_file(file, addresses=addresses) as stream:
        yield from pa.ipc.open_stream(stream)


def arrow_schema(file: DataFile, *, addresses: Mapping[str, str]) -> pa.Schema:
    """Return the schema of an Arrow file or stream, with metadata. Raises: SourceError if it cannot be read."""
    try:
        if byte_ranges.read_head(file, len(_ARROW_MAGIC), addresses=addresses) == _ARROW_MAGIC:
            with access.opened(file, addresses) as handle:
                return pa.ipc.open_file(handle).schema
        with byte_ranges.open_file(file, addresses=addresses) as stream:
            return pa.ipc.open_stream(stream).schema
    except (pa.ArrowException, OSError, EOFError, MemoryError) as error:
        raise SourceError(
            f"{without_access(file.path)}: cannot be read as an Arrow file ({first_line(error)})",
            remedy="get it again from where it was made, or leave it out",
        ) from error


def read_parquet(part: FilePart, types: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of row groups [start, stop). Raises: SourceError; pa.ArrowException if they are damaged."""
    with _parquet_file(part.file, addresses=part.addresses) as opened:
        for batch in opened.iter_batches(
            batch_size=_BATCH_ROWS,
            row_groups=list(range(part.start, part.stop)),
            columns=types.names,
            use_threads=False,
        ):
            yield _with_types(batch, types, where=without_access(part.file.path))


def row_group_ranges(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Cut a Parquet file into [start, stop) ranges of row groups with about 64 MB, uncompressed."""
    with _parquet_file(file, addresses=addresses) as opened:
        metadata = opened.metadata
    start, held = 0, 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).total_byte_size
        if held >= _RANGE_BYTES:
            yield start, group + 1
            start, held = group + 1, 0
    if start < metadata.num_row_groups or not start:
        yield start, metadata.num_row_groups


@contextlib.contextmanager
def _parquet_file(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[Any]:
    with access.opened(file, addresses) as handle, pa.parquet.ParquetFile(handle) as opened:
        yield opened


def _with_types(batch: pa.RecordBatch, types: pa.Schema, *, where: str) -> pa.Table:
    """Return the columns of `types`, in their order; a missing column is null, as in `datasets`."""
    if unexpected := casting.unexpected_column(batch.schema.names, types.names):
        raise SourceError(
            f"{where}: {unexpected} as in the other files",
            remedy="give all files the same columns, or name only some of them by a glob",
        )
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in types
    ]
    whole = pa.RecordBatch.from_arrays(columns, names=types.names)
    return pa.Table.from_batches([casting.cast(whole, types, where=where)]).replace_schema_metadata(types.metadata)
