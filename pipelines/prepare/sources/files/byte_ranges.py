"""Streams of a data file's bytes, local or remote, with the storage code's time limits and retries.

open_file(file)                  the whole file, decompressed by its suffix, without a byte order mark
open_lines(file, start, stop)    the lines of an uncompressed file that begin in [start, stop)

             start           stop
...aaaa\nbbbb|bb\ncccc\ndddd|d\neeee
                  cccc  dddddd              the range before reads b, the range after reads e

Compressed files (.gz, .bz2, .xz, .zst) are decompressed while they are read; an error names the byte of the damage.
Libraries treat truncated files differently: most raise, the one for .zst silently ends. Here every file must end with
the end of a compressed stream.
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

__all__ = [
    "BLOCK_BYTES",
    "DecompressedStream",
    "compression_suffix",
    "next_line",
    "open_file",
    "open_lines",
    "open_raw",
    "read_head",
]

BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 16
_BYTE_ORDER_MARK = codecs.BOM_UTF8


@contextlib.contextmanager
def open_file(
    file: DataFile, *, addresses: Mapping[str, str], block_bytes: int = BLOCK_BYTES
) -> Iterator[io.BufferedReader]:
    """Open a file's decompressed content; a remote file is fetched in blocks.

    Raises: SourceError, also while it is read.
    """
    with _open_bytes(file, 0, file.size, addresses=addresses, block_bytes=block_bytes) as stream:
        if suffix := compression_suffix(file.path):
            decompressed = DecompressedStream(stream, suffix, shown=without_access(file.path))
            stream = io.BufferedReader(decompressed, buffer_size=_BUFFER_BYTES)
        _skip_byte_order_mark(stream)
        yield stream


@contextlib.contextmanager
def open_lines(file: DataFile, start: int, stop: int, *, addresses: Mapping[str, str]) -> Iterator[io.BufferedReader]:
    r"""Open the lines of an uncompressed file that begin in bytes [start, stop); a line ends with \n.

    Raises: SourceError, also while they are read.
    """
    # A line begins at `start` if the byte before is \n.
    begin = max(start - 1, 0)
    with _open_bytes(file, begin, file.size, addresses=addresses) as stream:
        skipped = _skip_line(stream) if start else _skip_byte_order_mark(stream)
        lines = _Lines(stream, num_bytes=stop - begin - skipped)
        yield io.BufferedReader(lines, buffer_size=_BUFFER_BYTES)


@contextlib.contextmanager
def open_raw(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[io.BufferedReader]:
    """Open a file's bytes as they are stored. Raises: SourceError, also while it is read."""
    with _open_bytes(file, 0, file.size, addresses=addresses) as stream:
        yield stream


def next_line(file: DataFile, start: int, *, addresses: Mapping[str, str]) -> int:
    """Return the offset of the first line of an uncompressed file that begins at byte `start` (at least 1) or later.

    Raises: SourceError.
    """
    with _open_bytes(file, start - 1, file.size, addresses=addresses, block_bytes=_BUFFER_BYTES) as stream:
        return start - 1 + _skip_line(stream)


def read_head(file: DataFile, num_bytes: int, *, addresses: Mapping[str, str]) -> bytes:
    """Return the first bytes of a file's decompressed content. Raises: SourceError."""
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

        # The next block is fetched while one is used.
        with contextlib.closing(Ranges(fetch, num_bytes=stop - start, block_bytes=block_bytes)) as ranges:
            yield io.BufferedReader(ranges, buffer_size=_BUFFER_BYTES)


def _skip_byte_order_mark(stream: io.BufferedReader) -> int:
    """Skip a byte order mark if there is one; return the bytes skipped."""
    return len(stream.read(len(_BYTE_ORDER_MARK))) if stream.peek().startswith(_BYTE_ORDER_MARK) else 0


def _skip_line(stream: io.BufferedReader) -> int:
    """Skip the rest of a line, however long; return the bytes skipped."""
    skipped = 0
    while piece := stream.readline(_BUFFER_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


class _Lines(io.RawIOBase):
    """The first `num_bytes` of a stream, and the rest of the line that they end in."""

    def __init__(self, stream: io.BufferedReader, *, num_bytes: int) -> None:
        self._stream = stream
        self._left = max(num_bytes, 0)
        self._ended = num_bytes <= 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as io.RawIOBase specifies; return the bytes read."""
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


# So few bytes decompress to at most 300 MB, even if the file was made to exhaust the memory.
_PIECE_BYTES = 1 << 13
_READ_BYTES = 1 << 20


def compression_suffix(path: str) -> str:
    """Return the suffix that says how a file is compressed, such as `.gz`, or an empty string."""
    suffix = posixpath.splitext(without_access(path).lower())[1]
    return suffix if suffix in _DECOMPRESSORS else ""


class DecompressedStream(io.RawIOBase):
    """The decompressed bytes of a file with one or more compressed streams, as command-line tools write them.

    Reading raises SourceError if the file is damaged or truncated.
    """

    def __init__(self, compressed: BinaryIO, suffix: str, *, shown: str) -> None:
        self._compressed = compressed
        self._new_decompressor = _DECOMPRESSORS[suffix]
        self._decompressor: Any = None
        self._shown = shown
        self._input = memoryview(b"")
        self._output = memoryview(b"")
        self._taken = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as io.RawIOBase specifies; return the bytes read."""
        while not self._output:
            if not self._input:
                self._input = memoryview(self._compressed.read(_READ_BYTES))
            if not self._input:
                if self._decompressor is not None:
                    raise self._damaged("it ends in the middle")
                return 0
            self._output = memoryview(self._decompress())
        target = memoryview(buffer).cast("B")
        taken = min(len(target), len(self._output))
        target[:taken] = self._output[:taken]
        self._output = self._output[taken:]
        return taken

    def _decompress(self) -> bytes:
        """Decompress input until there are some thousand bytes of output, or the input ends."""
        output: list[bytes] = []
        while self._input and sum(map(len, output)) < _PIECE_BYTES:
            piece, self._input = self._input[:_PIECE_BYTES], self._input[_PIECE_BYTES:]
            self._taken += len(piece)
            output += self._decompress_piece(piece)
        return b"".join(output)

    def _decompress_piece(self, piece: memoryview) -> Iterator[bytes]:
        while piece:
            if self._decompressor is None:
                # Zeros between streams fill up the blocks of a tape.
                piece = memoryview(bytes(piece).lstrip(b"\0"))
                self._decompressor = self._new_decompressor() if piece else None
                continue
            try:
                yield self._decompressor.decompress(piece)
            except Exception as error:  # each library has its own errors
                raise self._damaged(str(error) or type(error).__name__) from error
            piece = memoryview(self._decompressor.unused_data)
            if self._decompressor.eof:
                self._decompressor = None

    def _damaged(self, what: str) -> SourceError:
        return SourceError(
            f"{self._shown}: cannot be decompressed: {what}, at about byte {self._taken:,} of the file",
            remedy="the file is damaged or truncated: get it again, or leave it out",
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
