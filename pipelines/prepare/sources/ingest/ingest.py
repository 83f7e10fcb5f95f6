"""Running ingest tasks: rows of any format become Arrow files with small record batches, each with a receipt.

    IngestTask ──► rows with the types of the source ──► FOLDER/SPLIT-00000-00000.arrow, then ....json
                   (see `formats.readers`)

A task depends only on its part of the source, so that it can be run anywhere, and again. It is done if there is its
receipt, and a file of the size in the receipt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.options.suggestions import to_utf8
from pipelines.prepare.process.threads import run_all
from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.formats import readers
from pipelines.prepare.sources.formats.casting import RowTypeError
from pipelines.prepare.sources.formats.file_parts import FilePart
from pipelines.prepare.sources.formats.row_files import RowFileWriter, even_batches
from pipelines.prepare.sources.ingest import ingest_receipts
from pipelines.prepare.sources.ingest.ingest_receipts import IngestReceipt
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import first_line

__all__ = ["ingest_all", "run"]


def run(
    task: IngestTask, *, addresses: Mapping[str, str] | None = None, stop: threading.Event | None = None
) -> IngestReceipt:
    """Write the rows of a task, then its receipt; return the receipt.

    Raises: SourceError if the file has changed, is damaged or has other types; OutputError; RuntimeError once `stop` is
    set.
    """
    writer = RowFileWriter(task.types)
    batches = even_batches(_rows(task, addresses=addresses or {}))
    storage.write_atomic(task.path, writer.chunks(_until(stop, batches)), inside=task.inside)
    receipt = IngestReceipt.of(task, writer)
    storage.write_bytes(task.receipt_path, receipt.dump(), inside=task.inside)
    return receipt


def ingest_all(
    tasks: Sequence[IngestTask], *, threads: int, addresses: Mapping[str, str] | None = None
) -> list[IngestReceipt]:
    """Run the tasks without a receipt, several at a time in this process; return all receipts, in order.

    Raises: as `run`.
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


_REMEDY = "correct the file or leave it out; if files have different types, convert them to the same types"


def _rows(task: IngestTask, *, addresses: Mapping[str, str]) -> Iterator[pa.Table]:
    """Yield the task's rows in tables of any size. Raises: SourceError, which names the file and the row."""
    part = FilePart(file=task.file, start=task.start, stop=task.stop, is_whole=task.is_whole, addresses=addresses)
    rows = 0
    try:
        for table in readers.read(part, task.types):
            yield table
            rows += table.num_rows
    except (PrepError, MemoryError, GeneratorExit):
        raise
    except RowTypeError as error:
        raise SourceError(
            f"{task.shown}, {_row_of(error, task, rows, addresses)}: {error.problem}", remedy=_REMEDY
        ) from error
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 8]
        raise SourceError(
            f"{task.shown}, {_after(task, rows)}: cannot be read: not UTF-8, {error.reason} at {found!r}",
            remedy=to_utf8(error.object),
        ) from error
    except Exception as error:  # each reader has its own errors
        raise SourceError(
            f"{task.shown}, {_after(task, rows)}: cannot be read: {first_line(error)}", remedy=_REMEDY
        ) from error


def _row_of(error: RowTypeError, task: IngestTask, rows: int, addresses: Mapping[str, str]) -> str:
    """Name the row of an error: by its number, or by its byte in a file that is read from the middle."""
    if not task.start:
        return f"row {rows + error.rows_before:,}"
    begin = byte_ranges.next_line(task.file, task.start, addresses=addresses)
    return f"the row at byte {begin + error.bytes_before:,}"


def _after(task: IngestTask, rows: int) -> str:
    if not task.start:
        return f"after row {rows:,}"
    unit = "row group" if task.file.kind == "parquet" else "byte"
    return f"after {rows:,} rows from {unit} {task.start:,} on"
