"""Rows of Arrow IPC files, read by row range without holding the files in memory.

`datasets` keeps a prepared split as Arrow stream files, in record batches of about 1,000 rows. Where the batches of a
file lie is found from their headers; of those that are asked for, the bytes of the wanted rows and columns are read.

    split rows   0 ........................ 4,200
    files        a.arrow: 0 .. 2,500   b.arrow: 2,500 .. 4,200
    batches      [0,1000) [1000,2000) [2000,2500) | [2500,3500) [3500,4200)

A file that changes while a job reads it would end up in shards that say they are of another content: size and time of
change are compared before and after each read. Nothing is mapped into memory, since a mapped file that shrinks ends
the process (SIGBUS); every batch owns its rows, and what becomes of the file later does not matter to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare.arrow_batches import Body
from pipelines.prepare.arrow_messages import Layout, Message, layout_of
from tfrecord_io.errors import SourceError

__all__ = ["ArrowFiles", "Stamp", "num_rows", "stamps_of"]

_PART_BYTES = 4 << 20

# What comes of bytes that are not what they were or should be: names that are no UTF-8, a column or a batch that is
# not there.
_UNREADABLE = (OSError, EOFError, pa.ArrowException, UnicodeDecodeError, KeyError, StopIteration)

# Size in bytes and time of the last change in nanoseconds.
Stamp = tuple[int, int]


def stamps_of(paths: Sequence[str]) -> dict[str, Stamp]:
    """What files are known by while a job lasts; only of those that are local, and there."""
    return {path: _stamp(path) for path in paths if os.path.exists(path)}


def num_rows(path: str) -> int:
    """Rows of one file. Raises: SourceError if it cannot be read."""
    with _ArrowFile(path) as file:
        return file.num_rows


def _stamp(path: str) -> Stamp:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


class _ArrowFile:
    """One open Arrow IPC file, stream or file format.

    Raises: SourceError here and later if it cannot be read, or is not, or not any more, the file of that `stamp`.
    """

    def __init__(self, path: str, *, stamp: Stamp | None = None) -> None:
        self._path = path
        self._stamp = stamp
        # What `_before` gave last, and of how many messages.
        self._dictionaries = (0, b"")
        with contextlib.ExitStack() as opened:
            with self._reading():
                self._stamp = stamp or _stamp(path)
                self._descriptor = opened.enter_context(open(path, "rb", buffering=0)).fileno()
            self._close = opened.pop_all().close

    def __enter__(self) -> _ArrowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @functools.cached_property
    def layout(self) -> Layout:
        """Where its batches are."""
        assert self._stamp is not None, "it was taken when the file was opened"
        with self._reading():
            return layout_of(self._read, self._stamp[0])

    @property
    def num_rows(self) -> int:
        """Of all its batches."""
        return sum(batch.num_rows for batch in self.layout.batches)

    def load(
        self,
        message: Message,
        start: int,
        stop: int,
        *,
        columns: Sequence[str],
        unread: Collection[str],
        in_parts: bool,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (row of this batch, record batch) for its rows [start, stop): one, or parts of about _PART_BYTES."""
        with self._reading():
            body, step = self._body(message), stop - start
            if in_parts and (message.is_whole or message.body_bytes > _PART_BYTES):
                num_bytes = body.load(columns, start, stop, unread=columns).nbytes
                step = max(1, step * _PART_BYTES // max(num_bytes, 1))
            batch = body.load(columns, start, min(start + step, stop), unread=unread)
        yield start, batch
        for first in range(start + step, stop, step):
            with self._reading():
                # Memory of its own, so that no part holds the others.
                body = body if message.is_whole else self._body(message)
                batch = body.load(columns, first, min(first + step, stop), unread=unread)
            yield first, batch

    def _body(self, message: Message) -> Body:
        before = self._before(self.layout.before(message))
        return Body(message, schema=self._schema, before=before, read_into=self._read_into)

    @functools.cached_property
    def _schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self._message(self.layout.schema)))

    def _before(self, messages: Sequence[Message]) -> bytes:
        """The schema and dictionaries; nothing without dictionaries, as mostly."""
        if len(messages) > 1 and len(messages) != self._dictionaries[0]:
            self._dictionaries = (len(messages), b"".join(map(self._message, messages)))
        return self._dictionaries[1] if len(messages) > 1 else b""

    def _message(self, message: Message) -> bytes:
        return self._read(message.offset, message.stop - message.offset)

    def _read(self, offset: int, length: int) -> bytes:
        content = os.pread(self._descriptor, length, offset)
        if len(content) < length:
            whole = bytearray(length)
            self._read_into(memoryview(whole), offset)
            content = bytes(whole)
        return content

    def _read_into(self, memory: memoryview, offset: int) -> None:
        while memory:
            count = os.preadv(self._descriptor, [memory], offset)
            if not count:
                raise EOFError(f"{len(memory)} bytes are missing from byte {offset} on")
            memory, offset = memory[count:], offset + count

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Of the file as it was when the job began: compared before, and after for what was read meanwhile."""
        self._require_unchanged()
        try:
            yield
        except _UNREADABLE as error:
            self._require_unchanged()
            raise SourceError(
                f"{self._path}: cannot be read as Arrow ({error})",
                remedy="run the same command again; the cache is remade",
            ) from error
        self._require_unchanged()

    def _require_unchanged(self) -> None:
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
        self,
        segments: Sequence[tuple[int, int]],
        columns: Sequence[str],
        *,
        unread: Collection[str] = (),
        in_parts: bool = False,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch) for the given ascending [start, stop) row ranges.

        Of the columns that are `unread` only nulls and lengths are right: their values stay where they are. A batch is
        what a segment has of a batch of the file, or `in_parts`, where that is large, about 4 MB of it.
        """
        first = 0
        pending = list(segments)
        for path, stamp in itertools.zip_longest(self.paths, self.stamps):
            if not pending:
                return
            with _ArrowFile(path, stamp=stamp) as file:
                last = first + file.num_rows
                inside = [(max(start, first), min(stop, last)) for start, stop in pending if start < last]
                pending = [(max(start, last), stop) for start, stop in pending if stop > last]
                for begin, batch, start, stop in _cut(file.layout.batches, first, inside):
                    parts = file.load(batch, start, stop, columns=columns, unread=unread, in_parts=in_parts)
                    yield from ((begin + row, part) for row, part in parts)
            first = last
        if pending:
            raise SourceError(
                f"rows {pending[0][0]} to {pending[0][1]} were planned, but the files have only {first} rows",
                remedy="the source has changed; start over with --overwrite",
            )


def _cut(
    batches: Sequence[Message], first: int, segments: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Message, int, int]]:
    """The parts of `batches` (the first of which starts at row `first`) that lie in `segments`, in order: a batch with
    the number of its first row, and rows [start, stop) of it.
    """
    position = 0
    for batch in batches:
        last = first + batch.num_rows
        while position < len(segments) and segments[position][0] < last:
            start, stop = max(segments[position][0], first), min(segments[position][1], last)
            if start < stop:
                yield first, batch, start - first, stop - first
            if segments[position][1] > last:
                break
            position += 1
        first = last
