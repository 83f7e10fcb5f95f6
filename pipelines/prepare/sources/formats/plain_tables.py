"""Rows of files that have types of their own, Arrow and Parquet, by pyarrow alone, one record batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from pipelines.prepare.sources.files import access, byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats import casting
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import first_line, without_access

__all__ = ["arrow", "arrow_schema", "parquet", "runs_of_row_groups"]

_FILE_MARK = b"ARROW1"
_RUN_BYTES = 64_000_000
_BATCH_ROWS = 1000


def arrow(file: DataFile, types: pa.Schema, *, addresses: Mapping[str, str]) -> Iterator[pa.Table]:
    """The rows of an Arrow file or stream. Raises: SourceError; pa.ArrowException if it is damaged or doesn't fit."""
    place = without_access(file.path)
    with _explained_memory(place):
        for batch in _arrow_batches(file, addresses=addresses):
            # Offsets that lead out of the buffers would end the process.
            batch.validate(full=True)
            yield _with_types(batch, types, place=place)


@contextlib.contextmanager
def _explained_memory(place: str) -> Iterator[None]:
    """Where a file is damaged, it may say that a batch has any number of bytes."""
    try:
        yield
    except MemoryError as error:
        raise SourceError(
            f"{place}: cannot be read: a record batch for which there is not enough memory",
            remedy="the file is damaged, or its batches are too large: get it again, or write it in smaller ones",
        ) from error


def _arrow_batches(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    if byte_ranges.read_head(file, len(_FILE_MARK), addresses=addresses) == _FILE_MARK:
        with access.opened(file, addresses) as handle:
            opened = pa.ipc.open_file(handle)
            for number in range(opened.num_record_batches):
                yield opened.get_batch(number)
        return
    with byte_ranges.open_file(file, addresses=addresses) as stream:
        yield from pa.ipc.open_stream(stream)


def arrow_schema(file: DataFile, *, addresses: Mapping[str, str]) -> pa.Schema:
    """The columns of an Arrow file or stream, with metadata. Raises: SourceError if it is none."""
    try:
        if byte_ranges.read_head(file, len(_FILE_MARK), addresses=addresses) == _FILE_MARK:
            with access.opened(file, addresses) as handle:
                return pa.ipc.open_file(handle).schema
        with byte_ranges.open_file(file, addresses=addresses) as stream:
            return pa.ipc.open_stream(stream).schema
    except (pa.ArrowException, OSError, EOFError, MemoryError) as error:
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
            yield _with_types(batch, types, place=without_access(file.path))


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
    with access.opened(file, addresses) as handle, pa.parquet.ParquetFile(handle) as opened:
        yield opened


def _with_types(batch: pa.RecordBatch, types: pa.Schema, *, place: str) -> pa.Table:
    """The columns by name, in the order of `types`; one that is not there is null, as `datasets` has it."""
    if unknown := casting.unknown_column(batch.schema.names, types.names):
        raise SourceError(
            f"{place}: {unknown} as elsewhere",
            remedy="bring all files into the same columns, or name only some of them by a glob",
        )
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in types
    ]
    whole = pa.RecordBatch.from_arrays(columns, names=types.names)
    return pa.Table.from_batches([casting.cast(whole, types, place=place)]).replace_schema_metadata(types.metadata)
