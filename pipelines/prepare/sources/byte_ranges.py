"""The bytes of a data file, wherever it lies, through the storage code with its time limits and retries.

    open_file(file)                  all of it, unpacked if its name says that it is compressed; no byte order mark
    open_lines(file, start, stop)    the lines of a plain file that begin in [start, stop)

                 start           stop
    ...aaaa\nbbbb|bb\ncccc\ndddd|d\neeee
                      cccc  dddddd              whoever has the bytes before reads b, whoever has those behind reads e
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.object_storage import Ranges
from pipelines.prepare.persistence import persist
from pipelines.prepare.sources.files import DataFile
from pipelines.prepare.sources.unpacking import Unpacked, suffix_of
from pipelines.prepare.storage_errors import bucket_of
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["address_of", "check_unchanged", "open_file", "open_lines", "open_seekable", "read_head"]

_BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 16
_BYTE_ORDER_MARK = codecs.BOM_UTF8
# What storage services call the version of a file's content.
_MARKS = ("generation", "etag", "ETag", "md5Hash", "crc32c")


def address_of(file: DataFile, addresses: Mapping[str, str]) -> str:
    """The path or address by which this process can read the file, credentials included."""
    return addresses.get(without_access(file.path), file.path)


@contextlib.contextmanager
def open_file(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[io.BufferedReader]:
    """The file's content from its start, unpacked. Raises: SourceError, while it is read too."""
    with _open_bytes(file, 0, file.size, addresses=addresses) as stream:
        if suffix := suffix_of(file.path):
            unpacked = Unpacked(stream, suffix, shown=without_access(file.path))
            stream = io.BufferedReader(unpacked, buffer_size=_BUFFER_BYTES)
        _skip_mark(stream)
        yield stream


@contextlib.contextmanager
def open_lines(file: DataFile, start: int, stop: int, *, addresses: Mapping[str, str]) -> Iterator[io.BufferedReader]:
    r"""The lines of a plain file that begin in [start, stop); a line ends with \n. Raises: SourceError."""
    # The byte before tells whether a line begins at `start`.
    begin = max(start - 1, 0)
    with _open_bytes(file, begin, file.size, addresses=addresses) as stream:
        skipped = _skip_line(stream) if start else _skip_mark(stream)
        lines = _Lines(stream, num_bytes=stop - begin - skipped)
        yield io.BufferedReader(lines, buffer_size=_BUFFER_BYTES)


@contextlib.contextmanager
def open_seekable(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[Any]:
    """The file for a reader that jumps about in it. Raises: SourceError, while it is read too."""
    address = address_of(file, addresses)
    if (local := storage.local_path(address)) is not None:
        with _explained(file):
            opened = open(local, "rb")
        with opened as stream:
            yield stream
        return
    raise NotImplementedError


def read_head(file: DataFile, num_bytes: int, *, addresses: Mapping[str, str]) -> bytes:
    """The first bytes of the file's unpacked content. Raises: SourceError."""
    if suffix_of(file.path):
        with open_file(file, addresses=addresses) as stream:
            return stream.read(num_bytes)
    with _open_bytes(file, 0, min(num_bytes, file.size), addresses=addresses) as stream:
        _skip_mark(stream)
        return stream.read(num_bytes)


def check_unchanged(file: DataFile, *, addresses: Mapping[str, str]) -> None:
    """Compares the file with what it was when the dataset was resolved.

    Raises: SourceError if it has another size, version or time of its last change.
    """
    address = address_of(file, addresses)
    with _explained(file):
        if (local := storage.local_path(address)) is not None:
            found = os.stat(local)
            same = found.st_size == file.size and file.stamp in (None, found.st_mtime_ns)
        else:
            same = _is_pinned(address) or _is_same_object(address, file)
    if not same:
        raise _changed(file)


def _is_pinned(address: str) -> bool:
    """Whether the address names a version: a commit of the hub; on gs:// each request names the generation."""
    return address.startswith("hf://") or bucket_of(address) is not None


def _is_same_object(address: str, file: DataFile) -> bool:
    fs, inner = storage.file_system(address)
    found = persist(lambda: fs.info(inner), path=without_access(address))
    marks = {str(found[mark]) for mark in _MARKS if found.get(mark)}
    return found.get("size") in (None, file.size) and (not marks or not file.version or file.version in marks)


@contextlib.contextmanager
def _open_bytes(file: DataFile, start: int, stop: int, *, addresses: Mapping[str, str]) -> Iterator[io.BufferedReader]:
    address = address_of(file, addresses)
    if (local := storage.local_path(address)) is not None:
        with _explained(file):
            opened = open(local, "rb", buffering=_BUFFER_BYTES)
        with opened as stream:
            stream.seek(start)
            yield stream
        return
    with contextlib.closing(_ranges(address, file, start, stop)) as ranges:
        yield io.BufferedReader(ranges, buffer_size=_BUFFER_BYTES)


def _ranges(address: str, file: DataFile, start: int, stop: int) -> Ranges:
    fs, inner = storage.file_system(address)
    version = {"generation": file.version} if bucket_of(address) and file.version.isdecimal() else {}

    def fetch(begin: int, end: int) -> bytes:
        with _explained(file):
            return persist(
                lambda: _exactly(fs, inner, start + begin, start + end, version), path=without_access(address)
            )

    return Ranges(fetch, num_bytes=stop - start, block_bytes=_BLOCK_BYTES)


def _exactly(fs: Any, inner: str, start: int, stop: int, version: Mapping[str, str]) -> bytes:
    content: bytes = fs.cat_file(inner, start=start, end=stop, **version)
    if len(content) != stop - start:
        raise ConnectionError(f"{len(content)} bytes from {start} on, expected {stop - start}")
    return content


@contextlib.contextmanager
def _explained(file: DataFile) -> Iterator[None]:
    """Around one request for the file. Raises: SourceError."""
    try:
        with storage.source_explained(without_access(file.path)):
            yield
    except FileNotFoundError as error:
        raise _changed(file) from error


def _changed(file: DataFile) -> SourceError:
    return SourceError(
        f"{without_access(file.path)}: was changed, moved or deleted since the dataset was opened",
        remedy="run the same command again, and leave the files alone while it runs",
    )


def _skip_mark(stream: io.BufferedReader) -> int:
    """Reads a byte order mark, which is no part of the text, and returns how many bytes that were."""
    return len(stream.read(len(_BYTE_ORDER_MARK))) if stream.peek().startswith(_BYTE_ORDER_MARK) else 0


def _skip_line(stream: io.BufferedReader) -> int:
    """Reads to the end of a line, however long, and returns how many bytes that were."""
    skipped = 0
    while piece := stream.readline(_BUFFER_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


class _Lines(io.RawIOBase):
    """`num_bytes` of a stream, and what its last line has behind them."""

    def __init__(self, stream: io.BufferedReader, *, num_bytes: int) -> None:
        self._stream = stream
        self._left = max(num_bytes, 0)
        self._ended = num_bytes <= 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As io.RawIOBase has it."""
        if self._ended:
            return 0
        if self._left:
            piece = self._stream.read(min(len(buffer), self._left))
            self._left -= len(piece)
            self._ended = not piece or (not self._left and piece.endswith(b"\n"))
        else:
            piece = self._stream.readline(len(buffer))
            self._ended = not piece or piece.endswith(b"\n")
        memoryview(buffer).cast("B")[: len(piece)] = piece
        return len(piece)
