"""Run ingest tasks: read rows of any format with `datasets`, and write them as Parquet parts of about 16 MB.

A part depends only on the source, so tasks can run anywhere, and more than once.
"""

import bisect
import contextlib
import dataclasses
import functools
import io
import json
import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare import storage
from pipelines.prepare.options.addresses import ADDRESS, bucket_of
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import here
from pipelines.prepare.runners.child import WorkerDiedError
from pipelines.prepare.sources.parquet import access, row_groups
from pipelines.prepare.sources.parquet.class_ids import NewIds, with_new_ids
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve import cells, library
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import some, without_access

# Bytes ingested in one second of CPU time, about as long as a child process takes to start.
_LEAST_BYTES = 32_000_000
# Files that another version ingested are ingested again.
VERSION = 4

_PART_BYTES = 16_000_000
_MOST_PARTS = 2000

MOST_ROWS = 1000
MOST_BYTES = 1 << 20
# Row groups with equal numbers of rows differ in size, so some may exceed MOST_BYTES.
_TOLERATED_BYTES = MOST_BYTES + MOST_BYTES // 4

_log = logging.getLogger(__name__)


class IngestTask(NamedTuple):
    """Task to write the shards in `IterableDataset.shard(num_shards=parts, index=part)` to one Parquet part."""

    split: str
    part: int
    parts: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitStream:
    """Split to ingest. `dataset`: its IterableDataset. `reader`: the reader of `datasets` for it, such as `json`.

    `types`: schema of the parts. `batch_rows`: rows per read. `shard_files`: for each shard, the index of its file in
    `files`; empty if unknown. `in_groups`: each shard is a Parquet row group, which is read without `datasets`.
    `delimiter`: see `cells.delimiter_of`. `new_ids`: new class ids, by path.
    """

    dataset: Any
    reader: str
    types: pa.Schema
    batch_rows: int
    files: tuple[DataFile, ...]
    shard_files: tuple[int, ...] = ()
    in_groups: bool = False
    delimiter: str = ""
    new_ids: Mapping[str, NewIds] = dataclasses.field(default_factory=dict)

    @property
    def num_shards(self) -> int:
        return int(self.dataset.num_shards)

    def tasks(self, split: str) -> list[IngestTask]:
        parts = -(-sum(file.size for file in self.files) // _PART_BYTES)
        parts = max(1, min(parts, self.num_shards, _MOST_PARTS))
        return [IngestTask(split, part, parts) for part in range(parts)]

    def shards_of(self, task: IngestTask) -> range:
        size, left_over = divmod(self.num_shards, task.parts)
        first = size * task.part + min(task.part, left_over)
        return range(first, first + size + (task.part < left_over))

    def file_of(self, shard: int) -> DataFile | None:
        """Return a shard's file, or None if unknown."""
        return self.files[self.shard_files[shard]] if self.shard_files else None

    def row_group_of(self, shard: int) -> tuple[DataFile, int] | None:
        """Return a shard's Parquet file and row group, or None if shards are not row groups."""
        if not self.in_groups or not self.shard_files:
            return None
        file = self.shard_files[shard]
        return self.files[file], shard - bisect.bisect_left(self.shard_files, file)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestSource:
    """Splits of a source to ingest, and the folder for their parts. `inside`: see `storage.write_atomic`."""

    streams: Mapping[str, SplitStream]
    folder: str
    inside: str | None = None

    def path(self, task: IngestTask) -> str:
        return storage.join(self.folder, f"{task.split}-{task.part:05}-of-{task.parts:05}.parquet")

    def tasks(self) -> list[IngestTask]:
        return [task for split, stream in self.streams.items() for task in stream.tasks(split)]


RunTasks = Callable[[IngestSource, Sequence[IngestTask]], None]


def run(source: IngestSource, task: IngestTask, progress: Progress | None = None) -> dict[str, int]:
    """Run one task; return its number of rows as the counter `rows_ingested`. Beam passes `task` as a plain tuple.

    Raises: SourceError, OutputError.
    """
    del progress
    task = IngestTask(*task)
    stream = source.streams[task.split]
    rows: list[int] = []
    notes: dict[str, str] = {}
    with library.quiet():
        tables = even_tables(_rows(stream, task, rows, notes))
        chunks = part_chunks(stream.types, tables, rows=rows, notes=notes)
        storage.write_atomic(source.path(task), chunks, inside=source.inside)
    return {"rows_ingested": sum(rows)}


def children(source: IngestSource, tasks: Sequence[IngestTask], *, most: int) -> int:
    """Return how many child processes should run the tasks: 0, 1 if there is little to do, or `most`.

    0 means this process, because a child can't see the files, or takes longer to start than the tasks run.
    """
    streams = [source.streams[split] for split in dict.fromkeys(task.split for task in tasks)]
    files = [file for stream in streams for file in stream.files]
    paths = [file.path for file in files]
    is_local = library.is_seen_by_others([source.folder])
    if not library.is_seen_by_others(paths) or not (is_local or bucket_of(source.folder)):
        return 0
    if sum(file.size for file in files) >= _LEAST_BYTES:
        return most
    return 1 if is_local and not library.are_small_texts(streams[0].reader, paths) else 0


@contextlib.contextmanager
def naming_files(source: IngestSource) -> Iterator[None]:
    """Within the context, turn the death of a task's process into a SourceError with its files."""
    try:
        yield
    except WorkerDiedError as error:
        stream = source.streams[error.task.split]
        files = list(dict.fromkeys(stream.file_of(shard) for shard in stream.shards_of(error.task)))
        where = without_access(files[0].path) if files[0] else f"split {error.task.split!r}"
        others = f" or one of the next {some(len(files) - 1, 'file')}" if len(files) > 1 else ""
        with library.reading(lambda: f"{where}{others}", reader=stream.reader):
            raise


def _existing_parts(source: IngestSource, tasks: Sequence[IngestTask]) -> dict[IngestTask, DataFile]:
    sizes = storage.sizes(source.folder) if tasks else {}
    paths = {task: source.path(task) for task in tasks}
    return {
        task: DataFile(path=path, size=sizes[name], ingested=True)
        for task, path in paths.items()
        if (name := posixpath.basename(path)) in sizes
    }


def read_groups(
    source: IngestSource, tasks: Sequence[IngestTask], columns: Collection[str] | None, *, run_tasks: RunTasks
) -> dict[IngestTask, Groups]:
    """Return the row groups of each task's part; call `run_tasks` to make missing parts.

    `columns`: see `read_footers`. Raises: SourceError, OutputError.
    """
    parts = _existing_parts(source, tasks)
    if missing := [task for task in tasks if task not in parts]:
        run_tasks(source, missing)
        parts = _existing_parts(source, tasks)
    if gone := next((task for task in tasks if task not in parts), None):
        raise OutputError(
            f"{source.path(gone)}: a worker has written this file, but the file cannot be found from here",
            remedy=f"if workers are on other machines, choose an --output that all can reach, such as {ADDRESS}; "
            "otherwise run the same command again",
        )
    footers = row_groups.read_footers(list(parts.values()), columns)
    for note in {key: text for footer in reversed(footers) for key, text in footer.notes.items()}.values():
        _log.warning("%s", note)
    return {task: footer.groups for task, footer in zip(parts, footers, strict=True)}


def run_here(source: IngestSource, tasks: Sequence[IngestTask]) -> None:
    """Run tasks in a child process, or in this process if `children` returns 0."""
    processes = children(source, tasks, most=1)
    with naming_files(source):
        here.run(functools.partial(run, source), tasks, processes=processes)


def _rows(stream: SplitStream, task: IngestTask, rows: list[int], notes: dict[str, str]) -> Iterator[pa.Table]:
    numbers = stream.shards_of(task)
    shards = stream.dataset.with_format("arrow").shard(num_shards=task.parts, index=task.part)
    assert shards.num_shards == len(numbers), "this is how `datasets` groups shards"
    for shard, number in zip(library.shards_of(shards), numbers, strict=True):
        rows.append(0)
        file = stream.file_of(number)
        where = without_access(file.path) if file else f"split {task.split!r}, shard {number}"
        if file is not None:
            access.require_unchanged(file)
        remedy = cells.REMEDY if stream.delimiter else library.CORRECT
        place: Any = lambda where=where: f"{where}, after row {rows[-1]:,}"  # noqa: E731
        with library.reading(place, remedy=remedy, reader=stream.reader):
            group = stream.row_group_of(number)
            tables = shard.iter(stream.batch_rows) if group is None else row_groups.read_group(*group, stream.types)
            for table in tables:
                if stream.delimiter:
                    cells.note_joined(table, stream.delimiter, row=rows[-1], notes=notes, where=where)
                table = cells.parsed(table, stream.types, row=rows[-1], notes=notes, where=where)
                yield with_new_ids(table, stream.new_ids.get(file.path, {})) if file else table
                rows[-1] += table.num_rows
        if file is not None:
            access.require_unchanged(file)


def part_chunks(
    types: pa.Schema, tables: Iterable[pa.Table], *, rows: Sequence[int] = (), notes: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file with the schema `types`, and one row group per table.

    Its footer has the number of `rows` of each shard, and `notes`, warnings by kind, as they are after the last table.
    """
    pending = io.BytesIO()

    def take() -> bytes:
        content = pending.getvalue()
        pending.seek(0)
        pending.truncate()
        return content

    sink = pa.PythonFile(pending, mode="w")  # keeps count of the bytes, although `take` empties `pending`
    # lz4 takes no more CPU than no compression; a dictionary doesn't shrink texts.
    with pq.ParquetWriter(sink, types, compression="lz4", use_dictionary=False, write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            yield take()
        writer.add_key_value_metadata({row_groups.SHARD_ROWS: json.dumps(list(rows))})
        writer.add_key_value_metadata({row_groups.NOTES: json.dumps(notes or {})})
    yield take()


def even_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of at most 1,000 rows and about 1 MB; a larger row is a table by itself."""
    held: list[pa.Table] = []
    rows = num_bytes = 0
    for table in tables:
        held.append(table)
        rows, num_bytes = rows + table.num_rows, num_bytes + table.nbytes
        if rows >= 10 * MOST_ROWS or num_bytes >= 10 * MOST_BYTES:  # join small tables, then cut evenly
            yield from _cut(pa.concat_tables(held))
            held, rows, num_bytes = [], 0, 0
    if held:
        yield from _cut(pa.concat_tables(held))


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    rows, size = table.num_rows, table.nbytes
    if rows <= 1 or (rows <= MOST_ROWS and size <= _TOLERATED_BYTES):
        yield from [table] * bool(rows)
        return
    count = min(rows, max(2, -(-rows // MOST_ROWS), -(-size // MOST_BYTES)))
    for part in range(count):
        start, stop = rows * part // count, rows * (part + 1) // count
        yield from _cut(table.slice(start, stop - start))
