"""The bytes of a data file, wherever it lies, through the storage code with its time limits and retries.

open_file(file)                  all of it, unpacked if its name says that it is compressed; no byte order mark
open_lines(file, start, stop)    the lines of a plain file that begin in [start, stop)

             start           stop
...aaaa\nbbbb|bb\ncccc\ndddd|d\neeee
                  cccc  dddddd              whoever has the bytes before reads b, whoever has those behind reads e

Compressed files (.gz, .bz2, .xz, .zst) are unpacked as they are read, with damage told by its place. Libraries differ
in what they make of a file that was cut off: most raise, the one for .zst ends without a word. Here every file must end
with the end of a compressed stream, wherever it lies.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import io
import lzma
import posixpath
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from pipelines.prepare.sources.files import access
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.storage.object_storage import Ranges
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["BLOCK_BYTES", "Unpacked", "next_line", "open_file", "open_lines", "open_packed", "read_head", "suffix_of"]

BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 16
_BYTE_ORDER_MARK = codecs.BOM_UTF8


@contextlib.contextmanager
def open_file(
    file: DataFile, *, addresses: Mapping[str, str], block_bytes: int = BLOCK_BYTES
) -> Iterator[io.BufferedReader]:
    """The file's content from its start, unpacked; a remote one is fetched in blocks.

    Raises: SourceError, while it is read too.
    """
    with _open_bytes(file, 0, file.size, addresses=addresses, block_bytes=block_bytes) as stream:
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
def open_packed(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[io.BufferedReader]:
    """The file's bytes as they are. Raises: SourceError, while it is read too."""
    with _open_bytes(file, 0, file.size, addresses=addresses) as stream:
        yield stream


def next_line(file: DataFile, start: int, *, addresses: Mapping[str, str]) -> int:
    """Where the first line of a plain file begins that begins at byte `start` or later. Raises: SourceError."""
    with _open_bytes(file, start - 1, file.size, addresses=addresses, block_bytes=_BUFFER_BYTES) as stream:
        return start - 1 + _skip_line(stream)


def read_head(file: DataFile, num_bytes: int, *, addresses: Mapping[str, str]) -> bytes:
    """The first bytes of the file's unpacked content. Raises: SourceError."""
    with open_file(file, addresses=addresses, block_bytes=num_bytes) as stream:
        return stream.read(num_bytes)


@contextlib.contextmanager
def _open_bytes(
    file: DataFile, start: int, stop: int, *, addresses: Mapping[str, str], block_bytes: int = BLOCK_BYTES
) -> Iterator[io.BufferedReader]:
    with access.opened(file, addresses) as handle:
        if not access.is_remote(addresses.get(file.path, file.path)):
            handle.seek(start)
            yield io.BufferedReader(handle, buffer_size=_BUFFER_BYTES)
            return

        def fetch(begin: int, end: int) -> bytes:
            content: bytes = handle.read_at(end - begin, start + begin)
            return content

        # The next block is on its way while one is used.
        with contextlib.closing(Ranges(fetch, num_bytes=stop - start, block_bytes=block_bytes)) as ranges:
            yield io.BufferedReader(ranges, buffer_size=_BUFFER_BYTES)


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


# What a few thousand bytes unpack to stays below 300 MB, even if somebody made them to be large.
_PIECE_BYTES = 1 << 13
_READ_BYTES = 1 << 20


def suffix_of(path: str) -> str:
    """The suffix of a compressed file as its name has it, or an empty string."""
    suffix = posixpath.splitext(without_access(path).lower())[1]
    return suffix if suffix in _DECOMPRESSORS else ""


class Unpacked(io.RawIOBase):
    """The bytes that a compressed stream holds, one or several streams after another as command-line tools write them.
    A read gives some thousand bytes at least, as long as there are so many.

    Raises, when read: SourceError at a damaged place, or at the end if the last stream has none.
    """

    def __init__(self, packed: BinaryIO, suffix: str, *, shown: str) -> None:
        self._packed = packed
        self._new = _DECOMPRESSORS[suffix]
        self._decompressor: Any = None
        self._shown = shown
        self._input = memoryview(b"")
        self._output = memoryview(b"")
        self._taken = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As io.RawIOBase has it."""
        while not self._output:
            if not self._input:
                self._input = memoryview(self._packed.read(_READ_BYTES))
            if not self._input:
                if self._decompressor is not None:
                    raise self._damaged("it ends in the middle")
                return 0
            self._output = memoryview(self._unpack())
        target = memoryview(buffer).cast("B")
        taken = min(len(target), len(self._output))
        target[:taken] = self._output[:taken]
        self._output = self._output[taken:]
        return taken

    def _unpack(self) -> bytes:
        """Some of the input, unpacked; all of it if that is little."""
        unpacked: list[bytes] = []
        while self._input and sum(map(len, unpacked)) < _PIECE_BYTES:
            piece, self._input = self._input[:_PIECE_BYTES], self._input[_PIECE_BYTES:]
            self._taken += len(piece)
            unpacked += self._unpack_piece(piece)
        return b"".join(unpacked)

    def _unpack_piece(self, piece: memoryview) -> Iterator[bytes]:
        while piece:
            if self._decompressor is None:
                # Between streams there may be zeros, which fill up the blocks of a tape.
                piece = memoryview(bytes(piece).lstrip(b"\0"))
                self._decompressor = self._new() if piece else None
                continue
            try:
                yield self._decompressor.decompress(piece)
            except Exception as error:  # of each library another
                raise self._damaged(str(error) or type(error).__name__) from error
            piece = memoryview(self._decompressor.unused_data)
            if self._decompressor.eof:
                self._decompressor = None

    def _damaged(self, what: str) -> SourceError:
        return SourceError(
            f"{self._shown}: cannot be unpacked: {what}, at about byte {self._taken:,} of the file",
            remedy="the file is damaged, or was cut off on its way: get it again, or leave it out",
        )


def _zst() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": _zst,
}
