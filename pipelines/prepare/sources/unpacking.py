"""Compressed data files (.gz, .bz2, .xz, .zst) unpacked as they are read, with damage told by its place.

Libraries differ in what they make of a file that was cut off: most raise, the one for .zst ends without a word. Here
every file must end with the end of a compressed stream, wherever it lies.
"""

from __future__ import annotations

import bz2
import io
import lzma
import posixpath
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["Unpacked", "suffix_of"]

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
