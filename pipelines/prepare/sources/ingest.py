"""Ingest: rows of any format become Arrow files with small record batches, each file with a receipt.

    IngestTask ──► rows with the types of the source ──► FOLDER/SPLIT-00000-00000.arrow, then ....json

A task depends on nothing but its part of the source, and can be run anywhere and again. Whoever finds its receipt, and
the file as large as that says, need not run it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.sources import ingest_receipts, rows_of
from pipelines.prepare.sources.ingest_receipts import IngestReceipt
from pipelines.prepare.sources.ingest_tasks import IngestTask
from pipelines.prepare.sources.row_files import RowFile, even_batches

__all__ = ["ingest_all", "run"]


def run(
    task: IngestTask, *, addresses: Mapping[str, str] | None = None, stop: threading.Event | None = None
) -> IngestReceipt:
    """Writes the rows of a task, then its receipt, which it returns.

    Raises: SourceError if the file has changed, is damaged or holds other types; OutputError; RuntimeError after
    `stop`.
    """
    known = addresses or {}
    rows = RowFile(task.types)
    tables = rows_of.tables(task, addresses=known)
    storage.write_atomic(task.path, rows.chunks(_until(stop, even_batches(tables))), inside=task.inside)
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
    missing = [number for number, receipt in enumerate(found) if receipt is None]
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, min(threads, len(missing)))) as pool:
        made = {pool.submit(run, tasks[number], addresses=addresses, stop=stop): number for number in missing}
        try:
            for done in futures.as_completed(made):
                found[made[done]] = done.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    return [receipt for receipt in found if receipt is not None]


def _until(stop: threading.Event | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if stop is not None and stop.is_set():
            raise RuntimeError("another file could not be ingested, or the job was interrupted")
        yield batch
