"""Rows of Arrow IPC files, read by row range without holding the files in memory.

`datasets` keeps a prepared split as Arrow stream files, in record batches of about 1,000 rows. Mapping such a file
is free and reading a row range touches only its pages; but touched pages stay resident as long as the mapping does,
so that a worker would slowly come to hold its whole input. `release` gives them back to the page cache.

    split rows   0 ........................ 4,200
    files        a.arrow: 0 .. 2,500   b.arrow: 2,500 .. 4,200
    batches      [0,1000) [1000,2000) [2000,2500) | [2500,3500) [3500,4200)

A file that changes while a job reads it would end up in shards that say they are of another content, and one that
shrinks ends the process (SIGBUS). Size and time of change are compared whenever a batch is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from tfrecord_io.errors import SourceError

__all__ = ["ArrowFiles", "MappedFile", "Stamp", "stamps_of"]

_COPY_BYTES = 4 << 20

# Size in bytes and time of the last change in nanoseconds.
Stamp = tuple[int, int]


def stamps_of(paths: Sequence[str]) -> dict[str, Stamp]:
    """What files are known by while a job lasts; only of those that are local, and there."""
    return {path: _stamp(path) for path in paths if os.path.exists(path)}


def _stamp(path: str) -> Stamp:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


class MappedFile:
    """One memory-mapped Arrow IPC file, stream or file format, as record batches that are views of the mapping.

    Raises: SourceError if it cannot be read, or is not the file of that `stamp`.
    """

    def __init__(self, path: str, *, stamp: Stamp | None = None) -> None:
        self._path = path
        self._stamp = stamp
        self.require_unchanged()
        try:
            with open(path, "rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self.batches = _batches(pa.py_buffer(self._map))
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise SourceError(
                f"{path}: cannot be read as Arrow ({error})", remedy="run the same command again; the cache is remade"
            ) from error
        self.num_rows = sum(batch.num_rows for batch in self.batches)

    def require_unchanged(self) -> None:
        """Raises: SourceError if the file is not what it was when the job began."""
        if self._stamp is None:
            return
        try:
            unchanged = self._stamp == _stamp(self._path)
        except OSError as error:
            raise SourceError(
                f"{self._path}: cannot be read any more ({error.strerror})",
                remedy="put the file back as it was, and run the same command again; finished shards are kept",
            ) from error
        if not unchanged:
            raise SourceError(
                f"{self._path}: was changed while the job was reading it",
                remedy="put the file back as it was to go on, or start over with --overwrite",
            )

    def copies(self, row: int, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """A view's rows, the first of which is `row`, as parts of their own."""
        part_rows = max(1, batch.num_rows * _COPY_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, part_rows):
            part = batch.slice(start, part_rows)
            self.require_unchanged()
            own = part.take(pa.array(range(part.num_rows), pa.int64()))
            self.require_unchanged()
            yield row + start, own

    def release(self) -> None:
        """Lets go of the pages read so far; reading them again brings them back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _batches(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    source = pa.BufferReader(buffer)
    with contextlib.suppress(pa.ArrowInvalid):
        opened = pa.ipc.open_file(source)
        return [opened.get_batch(index) for index in range(opened.num_record_batches)]
    source.seek(0)
    return list(pa.ipc.open_stream(source))


@dataclasses.dataclass(frozen=True)
class ArrowFiles:
    """The rows of several files, one after another. Travels to workers as paths, and what each file is known by."""

    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...] = ()

    @classmethod
    def of(cls, paths: Sequence[str], *, known: Mapping[str, Stamp]) -> ArrowFiles:
        """The files with what they are `known` by, or else as they are now. Raises: SourceError if one is not there."""
        try:
            return cls(tuple(paths), tuple(known.get(path) or _stamp(path) for path in paths))
        except OSError as error:
            raise SourceError(
                f"{error.filename}: cannot be read ({error.strerror})",
                remedy="check that the source is complete, and run the same command again",
            ) from error

    def read(
        self, segments: Sequence[tuple[int, int]], columns: Sequence[str], *, copied: bool = False
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch) for the given ascending [start, stop) row ranges.

        A yielded batch is a view of the file that is valid until the next one is asked for; or it is `copied`, in parts
        of about 4 MB, so that what becomes of the file while the rows are worked on does not matter.
        """
        first = 0
        pending = list(segments)
        for path, stamp in itertools.zip_longest(self.paths, self.stamps):
            if not pending:
                return
            file = MappedFile(path, stamp=stamp)
            last = first + file.num_rows
            inside = [(max(start, first), min(stop, last)) for start, stop in pending if start < last]
            pending = [(max(start, last), stop) for start, stop in pending if stop > last]
            for row, batch in _cut(file.batches, first, inside):
                # Before, so that no byte is read that is not there, and after, for what was read meanwhile.
                file.require_unchanged()
                selected = batch.select(list(columns))
                if copied:
                    yield from file.copies(row, selected)
                else:
                    yield row, selected
                file.require_unchanged()
                file.release()
            first = last
        if pending:
            raise SourceError(
                f"rows {pending[0][0]} to {pending[0][1]} were planned, but the files have only {first} rows",
                remedy="the source has changed; start over with --overwrite",
            )


def _cut(
    batches: Sequence[pa.RecordBatch], first: int, segments: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The parts of `batches` (the first of which starts at row `first`) that lie in `segments`, in order."""
    position = 0
    for batch in batches:
        last = first + batch.num_rows
        while position < len(segments) and segments[position][0] < last:
            start, stop = max(segments[position][0], first), min(segments[position][1], last)
            if start < stop:
                yield start, batch.slice(start - first, stop - start)
            if segments[position][1] > last:
                break
            position += 1
        first = last
