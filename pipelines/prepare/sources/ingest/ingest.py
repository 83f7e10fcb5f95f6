"""Running ingest tasks: `datasets` reads rows of any format, which become Parquet parts.

    IngestTask ──► rows with the types of the source ──► FOLDER/SPLIT-00000-of-00012.parquet

A task depends only on its part of the source, so that it can be run anywhere, and again. It is done if its part is
there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.process import workers
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import Done
from pipelines.prepare.sources.ingest import parts
from pipelines.prepare.sources.ingest.tasks import IngestSource, IngestTask, SplitStream
from pipelines.prepare.sources.parquet import access
from pipelines.prepare.sources.resolve import library
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["call", "children", "naming_files", "run"]

# A child process takes about a second of CPU to start, in which another ingests so much.
_LEAST_BYTES = 32_000_000


def run(source: IngestSource, task: IngestTask) -> int:
    """Write the rows of a task; return their number.

    Raises: SourceError if a file has changed, is damaged or has other types; OutputError.
    """
    stream = source.streams[task.split]
    rows: list[int] = []
    with library.quiet():
        chunks = parts.part_chunks(stream.types, parts.even_tables(_rows(stream, task, rows)), rows=rows)
        storage.write_atomic(source.path(task), chunks, inside=source.inside)
    return sum(rows)


def call(source: IngestSource, task: IngestTask, progress: Progress) -> Done:
    """Run a task, in the form that workers call. Beam gives them plain tuples. Raises: as `run`."""
    del progress
    return Done(counts={"rows_ingested": run(source, IngestTask(*task))})


def children(source: IngestSource, tasks: Sequence[IngestTask], *, most: int) -> int:
    """Return how many child processes should read the tasks' files: one if there is little to do, at most `most`.

    Returns 0 if others cannot see the files, so that this process has to read them.
    """
    streams = [source.streams[split] for split in dict.fromkeys(task.split for task in tasks)]
    files = [file for stream in streams for file in stream.files]
    if not library.is_seen_by_others([source.folder, *(file.path for file in files)]):
        return 0
    return most if sum(file.size for file in files) >= _LEAST_BYTES else 1


@contextlib.contextmanager
def naming_files(source: IngestSource) -> Iterator[None]:
    """Raise SourceError, which names the files, if the process of a task died."""
    try:
        yield
    except workers.WorkerDiedError as error:
        raise SourceError(
            f"{_files(source, error.task)}: the process that read it {error.how}",
            remedy="the file is damaged, nested too deeply or needs too much memory: leave it out, or convert it to "
            "Parquet",
        ) from error


def _files(source: IngestSource, task: IngestTask) -> str:
    stream = source.streams[task.split]
    files = dict.fromkeys(stream.file_of(shard) for shard in stream.shards_of(task))
    first = next(iter(files))
    if first is None:
        return f"split {task.split!r}"
    others = f" or one of the next {len(files) - 1} files" if len(files) > 1 else ""
    return f"{without_access(first.path)}{others}"


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
