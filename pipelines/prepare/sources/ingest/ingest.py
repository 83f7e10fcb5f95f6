"""Ingest: rows of any format become Arrow files with small record batches, each file with a receipt.

    IngestTask ──► rows with the types of the source ──► FOLDER/SPLIT-00000-00000.arrow, then ....json
                   by whichever reader its kind has

A task depends on nothing but its part of the source, and can be run anywhere and again. Whoever finds its receipt, and
the file as large as that says, need not run it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.options.suggestions import to_utf8
from pipelines.prepare.process.threads import run_all
from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.formats import json_lines, plain_tables, text_readers
from pipelines.prepare.sources.formats.casting import MisfitError
from pipelines.prepare.sources.formats.row_files import RowFile, even_batches
from pipelines.prepare.sources.formats.text_readers import ByteSource
from pipelines.prepare.sources.ingest import ingest_receipts
from pipelines.prepare.sources.ingest.ingest_receipts import IngestReceipt
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import first_line

__all__ = ["ingest_all", "run"]


def run(
    task: IngestTask, *, addresses: Mapping[str, str] | None = None, stop: threading.Event | None = None
) -> IngestReceipt:
    """Writes the rows of a task, then its receipt, which it returns.

    Raises: SourceError if the file has changed, is damaged or holds other types; OutputError; RuntimeError after
    `stop`.
    """
    rows = RowFile(task.types)
    batches = even_batches(_rows(task, addresses=addresses or {}))
    storage.write_atomic(task.path, rows.chunks(_until(stop, batches)), inside=task.inside)
    receipt = IngestReceipt.of(task, rows)
    storage.write_bytes(task.receipt_path, receipt.dump(), inside=task.inside)
    return receipt


def ingest_all(
    tasks: Sequence[IngestTask], *, threads: int, addresses: Mapping[str, str] | None = None
) -> list[IngestReceipt]:
    """Runs the tasks that have no receipt yet, several at a time in this process; the receipts of all, in order.

    Raises: what `run` raises.
    """
    found = ingest_receipts.find_receipts(tasks)
    missing = [task for task, receipt in zip(tasks, found, strict=True) if receipt is None]
    made = iter(run_all(lambda task, stop: run(task, addresses=addresses, stop=stop), missing, threads=threads))
    return [receipt or next(made) for receipt in found]


def _until(stop: threading.Event | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if stop is not None and stop.is_set():
            raise RuntimeError("another file could not be ingested, or the job was interrupted")
        yield batch


_REMEDY = "mend the file or leave it out; of files with other types, bring all into the same types"


def _rows(task: IngestTask, *, addresses: Mapping[str, str]) -> Iterator[pa.Table]:
    """The task's rows, in tables of any size. Raises: SourceError, which names the file and where in it."""
    rows = 0
    try:
        for table in _read(task, addresses=addresses):
            yield table
            rows += table.num_rows
    except (PrepError, MemoryError, GeneratorExit):
        raise
    except MisfitError as error:
        raise SourceError(
            f"{task.shown}, {_place(task, rows, error, addresses)}: {error.what}", remedy=_REMEDY
        ) from error
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 8]
        raise SourceError(
            f"{task.shown}, {_after(task, rows)}: cannot be read: not UTF-8, {error.reason} at {found!r}",
            remedy=to_utf8(error.object),
        ) from error
    except Exception as error:  # of each reader others
        raise SourceError(
            f"{task.shown}, {_after(task, rows)}: cannot be read: {first_line(error)}", remedy=_REMEDY
        ) from error


def _place(task: IngestTask, rows: int, error: MisfitError, addresses: Mapping[str, str]) -> str:
    """Which row it is. How many come before a part of a file nobody knows, but how many bytes."""
    if not task.start:
        return f"row {rows + error.rows:,}"
    begin = byte_ranges.next_line(task.file, task.start, addresses=addresses)
    return f"the row at byte {begin + error.num_bytes:,}"


def _after(task: IngestTask, rows: int) -> str:
    return f"after row {rows:,}" if not task.start else f"after row {rows:,} of those behind {task.start:,}"


def _read(task: IngestTask, *, addresses: Mapping[str, str]) -> Iterator[pa.Table]:
    file = task.file
    if file.kind == "arrow":
        return plain_tables.arrow(file, task.types, addresses=addresses)
    if file.kind == "parquet":
        return plain_tables.parquet(file, task.types, start=task.start, stop=task.stop, addresses=addresses)
    if file.kind == "json" and json_lines.serves(task.types):
        return _json(task, _source(task, addresses=addresses))
    return text_readers.tables(file.kind, _source(task, addresses=addresses), task.types)


def _source(task: IngestTask, *, addresses: Mapping[str, str]) -> ByteSource:
    """Opens what the task has of its file."""
    if task.is_whole:
        return lambda: byte_ranges.open_file(task.file, addresses=addresses)
    return lambda: byte_ranges.open_lines(task.file, task.start, task.stop, addresses=addresses)


def _json(task: IngestTask, source: ByteSource) -> Iterator[pa.Table]:
    with source() as stream:
        chunks = json_lines.chunks(stream)
        is_array = stream.peek(1).lstrip().startswith(b"[")  # which may be one line, and long
        first = memoryview(b"") if is_array else next(chunks, memoryview(b""))
        if task.is_whole and (is_array or (first and not json_lines.is_line(first))):
            yield from text_readers.tables("json", source, task.types)
            return
        num_bytes = 0
        for chunk in itertools.chain([first], chunks):
            try:
                table = json_lines.parse(chunk, task.types)
            except pa.ArrowException:
                table = _cast(bytes(chunk), task.types, num_bytes=num_bytes)
            yield from json_lines.checked(table)
            num_bytes += len(chunk)


def _cast(chunk: bytes, types: pa.Schema, *, num_bytes: int) -> pa.Table:
    """Rows that `datasets` brings into the types of the source. Raises: MisfitError for those that it does not."""
    try:
        return pa.concat_tables(text_readers.tables("json", lambda: text_readers.in_memory(chunk), types))
    except Exception as error:
        found = json_lines.misfit(chunk, types)
        raise MisfitError(found.what, rows=found.rows, num_bytes=num_bytes + found.num_bytes) from error
