"""Running ingest tasks: `datasets` reads rows of any format, which become Parquet parts, each with a receipt.

    IngestTask ──► rows with the types of the source ──► FOLDER/SPLIT-00000-of-00012.parquet, then ....json

A task depends only on its part of the source, so that it can be run anywhere, and again. It is done if there is its
receipt, and a file of the size in the receipt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.process import workers
from pipelines.prepare.sources.ingest import parts
from pipelines.prepare.sources.ingest.receipts import IngestReceipt
from pipelines.prepare.sources.ingest.tasks import IngestSource, IngestTask, SplitStream
from pipelines.prepare.sources.parquet import access, footers
from pipelines.prepare.sources.resolve import library
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["ingest_all", "run"]

# A child process takes about a second of CPU to start, in which another ingests so much.
_LEAST_BYTES = 32_000_000


def run(source: IngestSource, task: IngestTask, *, stop: threading.Event | None = None) -> IngestReceipt:
    """Write the rows of a task, then its receipt; return the receipt.

    Raises: SourceError if a file has changed, is damaged or has other types; OutputError; RuntimeError once `stop` is
    set.
    """
    stream = source.streams[task.split]
    rows: list[int] = []
    written = _Written()
    with library.quiet():
        tables = _until(stop, _rows(stream, task, rows))
        chunks = parts.part_chunks(stream.types, parts.even_tables(tables))
        storage.write_atomic(source.path(task), written.watch(chunks), inside=source.inside)
    receipt = IngestReceipt(task=task, rows=tuple(rows), num_bytes=written.num_bytes, footer=written.footer)
    storage.write_bytes(source.receipt_path(task), receipt.dump(), inside=source.inside)
    return receipt


def ingest_all(source: IngestSource, tasks: Sequence[IngestTask], *, processes: int) -> None:
    """Run tasks in child processes: one for each core, or a single one if there is little to do. Raises: as `run`."""
    streams = [source.streams[split] for split in dict.fromkeys(task.split for task in tasks)]
    total = sum(file.size for stream in streams for file in stream.files)
    paths = [source.folder, *(file.path for stream in streams for file in stream.files)]
    try:
        if processes > 1 and len(tasks) > 1 and total >= _LEAST_BYTES:
            for _ in workers.run(_run_in_child, tasks, context=source, processes=processes):
                pass
            return
        call = workers.call if library.is_seen_by_others(paths) else library.call
        for task in tasks:
            call(_run_in_child, source, task)
    except workers.WorkerDiedError as error:
        raise SourceError(
            f"{_files(source, error.task)}: the process that read it {error.how}",
            remedy="the file is damaged, nested too deeply or needs too much memory: leave it out, or convert it to "
            "Parquet",
        ) from error


def _run_in_child(source: IngestSource, task: IngestTask) -> None:
    run(source, task)


def _files(source: IngestSource, task: IngestTask) -> str:
    stream = source.streams[task.split]
    files = dict.fromkeys(stream.file_of(shard) for shard in stream.shards_of(task))
    first = next(iter(files))
    if first is None:
        return f"split {task.split!r}"
    others = f" or one of the next {len(files) - 1} files" if len(files) > 1 else ""
    return f"{without_access(first.path)}{others}"


class _Written:
    """What is written to a part: its size, and its footer, which is in the last chunk."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._last = b""

    def watch(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.num_bytes += len(chunk)
            self._last = chunk
            yield chunk

    @property
    def footer(self) -> str:
        return footers.digest_of(footers.footer_in(self._last))


def _until(stop: threading.Event | None, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        if stop is not None and stop.is_set():
            raise RuntimeError("another file could not be ingested, or the job was interrupted")
        yield table


def _rows(stream: SplitStream, task: IngestTask, rows: list[int]) -> Iterator[pa.Table]:
    """Yield the task's rows in tables of any size, and note the rows of each shard.

    Raises: SourceError, which names the file and the row.
    """
    numbers = stream.shards_of(task)
    shards = stream.dataset.shard(num_shards=task.parts, index=task.part)
    assert shards.num_shards == len(numbers), "this is how `datasets` groups shards"
    for one, number in zip(library.shards_of(shards), numbers, strict=True):
        rows.append(0)
        file = stream.file_of(number)
        where = without_access(file.path) if file else f"split {task.split!r}, shard {number}"
        if file is not None:
            access.require_unchanged(file)
        for table in _tables(one, rows=stream.batch_rows, where=where):
            yield pa.Table.from_arrays(table.columns, schema=stream.types)
            rows[-1] += table.num_rows
        if file is not None:
            access.require_unchanged(file)


def _tables(dataset: Any, *, rows: int, where: str) -> Iterator[pa.Table]:
    """Yield what `datasets` reads, so many `rows` at a time. Raises: SourceError."""
    done = 0
    with library.reading(lambda: f"{where}, after row {done:,}"):
        for table in dataset.with_format("arrow").iter(rows):
            yield table
            done += table.num_rows
