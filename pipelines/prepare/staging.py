"""Puts the source's rows where workers can read them that do not share the launcher's disk (see `staged_files`).

    hub, files ── `datasets` ──► Arrow cache on the launcher ──► OUT/.prep/FINGERPRINT/source/ ──► workers

The launcher asks the hub once, so that all workers have the rows of one revision, and no worker needs a token. Only
the columns that are read (all of them for the user's steps, which workers run) and the rows that were asked for are
written, in batches as large as a block of the plan. What each file holds is known before it is written: a run that was
stopped goes on with those that are missing. The committed dataset needs none of it, and the commit deletes it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from pipelines.prepare import progress, storage
from pipelines.prepare.job import Job
from pipelines.prepare.opened import SplitSource
from pipelines.prepare.staged_files import Index, StagedFiles, file_path, index_path
from pipelines.prepare.stepped_files import SteppedFiles
from tfrecord_io.errors import PrepError

__all__ = ["FOLDER", "remove", "stage"]

FOLDER = "source"

_FILE_BYTES = 100 * 1000 * 1000
# About a block: a shard reads whole batches, of which it uses the rows that are its own.
_BATCH_BYTES = 1 << 20
_WRITERS = 4
_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"

_log = logging.getLogger(__name__)


def stage(job: Job) -> Job:
    """Writes what is not there yet, and returns the job with its splits' rows in its own folder.

    Raises: OutputError if they cannot be written; SourceError if the source cannot be read.
    """
    folder = job.work_path(FOLDER)
    there = storage.sizes(folder)
    splits = {
        name: _stage_split(split, columns=job.columns.names, folder=folder, root=job.root, there=there)
        for name, split in job.splits.items()
    }
    return dataclasses.replace(job, splits=splits)


def remove(job: Job) -> None:
    """Deletes what `stage` left, once the dataset is complete. What cannot be deleted does no harm there."""
    try:
        storage.delete(job.work_path(FOLDER), inside=job.root)
    except PrepError as error:
        _log.warning("%s is of no more use, but could not be deleted: %s", job.work_path(FOLDER), error.cause)


def _stage_split(
    split: SplitSource, *, columns: Sequence[str], folder: str, root: str, there: dict[str, int]
) -> SplitSource:
    if isinstance(stepped := split.files, SteppedFiles):
        # Workers run the user's steps, which may look at any column.
        inner = dataclasses.replace(split, files=stepped.files)
        staged_inner = _stage_split(inner, columns=stepped.columns, folder=folder, root=root, there=there)
        return dataclasses.replace(split, files=stepped.over(staged_inner.files))
    index, num_bytes = _lay_out(split, columns)
    paths = [file_path(folder, split.name, number) for number in range(len(num_bytes))]
    missing = [number for number, path in enumerate(paths) if there.get(_name(path)) != num_bytes[number]]
    if missing:
        total = sum(num_bytes[number] for number in missing)
        progress.tell(f"putting the rows of {split.name} where workers read them: {total / 1e6:,.2f} MB to {folder}")
        _write_files(split, index, missing, columns=columns, paths=paths, root=root)
    text = index.dump()
    if missing or there.get(_name(index_path(folder, split.name))) != len(text):
        storage.write_bytes(index_path(folder, split.name), text, inside=root)
    staged = StagedFiles(folder, split.name, hashlib.sha256(text).hexdigest())
    return dataclasses.replace(split, files=staged)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _lay_out(split: SplitSource, columns: Sequence[str]) -> tuple[Index, list[int]]:
    """Where every batch will lie, and the bytes of each file. No row is touched: buffers have sizes."""
    schema: pa.Schema | None = None
    places: list[tuple[int, int, int, int, int]] = []
    number, offset = 0, 0
    for first, batch in split.files.read(_merged(split.ranges), columns, unread=columns):
        schema = schema or batch.schema
        for start, part in _parts(first, batch):
            length = pa.ipc.get_record_batch_size(part)
            offset = offset or schema.serialize().size
            places.append((start, part.num_rows, number, offset, length))
            offset += length
            if offset >= _FILE_BYTES:
                number, offset = number + 1, 0
    assert schema is not None, "a split has rows"
    columns_of = np.array(places, np.int64).T
    index = Index(schema, *columns_of)
    ends = np.flatnonzero(np.diff(index.files, append=index.files[-1] + 1))
    return index, (index.offsets[ends] + index.lengths[ends] + len(_END_MARK)).tolist()


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The rows of any of the ranges, ascending: joined slices may come in any order, and have rows in common."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _parts(first: int, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    count = max(1, min(batch.num_rows, -(-batch.nbytes // _BATCH_BYTES)))
    for start, stop in itertools.pairwise(np.linspace(0, batch.num_rows, count + 1).astype(int).tolist()):
        yield first + start, batch.slice(start, stop - start)


def _write_files(
    split: SplitSource,
    index: Index,
    missing: Sequence[int],
    *,
    columns: Sequence[str],
    paths: Sequence[str],
    root: str,
) -> None:
    """Each thread reads through a run of the missing files' rows: finding the first one opens all files before it."""
    stop = threading.Event()
    runs = [[int(number) for number in run] for run in np.array_split(missing, min(_WRITERS, len(missing)))]

    def write(run: Sequence[int]) -> None:
        inside = np.isin(index.files, run)
        starts, counts = index.first_rows[inside], index.num_rows[inside]
        batches = split.files.read(list(zip(starts.tolist(), (starts + counts).tolist(), strict=True)), columns)
        for number in run:
            own = itertools.islice(batches, int((index.files == number).sum()))
            storage.write_atomic(paths[number], _pieces(index.schema, own, stop), inside=root)

    with ThreadPoolExecutor(len(runs)) as writers:
        try:
            done, _ = futures.wait([writers.submit(write, run) for run in runs], return_when=futures.FIRST_EXCEPTION)
            for written in done:
                written.result()
        finally:
            stop.set()


def _pieces(
    schema: pa.Schema, batches: Iterator[tuple[int, pa.RecordBatch]], stop: threading.Event
) -> Iterator[pa.Buffer | bytes]:
    """A file, piece by piece. Raises: RuntimeError if it is not wanted any more."""
    yield schema.serialize()
    for _, batch in batches:
        if stop.is_set():
            raise RuntimeError("another file could not be written, or the launcher was interrupted")
        yield batch.serialize()
    yield _END_MARK
