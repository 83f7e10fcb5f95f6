"""Packed data files (.gz, .bz2, .xz, .zst) on this machine: whether one is whole.

A .gz, .bz2 or .xz that was cut off ends with an error. One of .zst does not: what is left of it is read, and the rest
of its rows would be missing without a word.
"""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import fsspec
import zstandard

from tfrecord_io.errors import SourceError

__all__ = ["SUFFIXES", "UNREADABLE", "damage", "damaged", "require_whole_zst"]

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# What a file raises that cannot be unpacked.
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)

_CHUNK_BYTES = 1 << 20


def damage(path: str) -> str | None:
    """What keeps a packed file from being read to its end; None if nothing does, or it is no such file of this
    machine.
    """
    if not path.endswith(SUFFIXES) or not os.path.isfile(path):
        return None
    try:
        if path.endswith(".zst"):
            with open(path, "rb") as packed:
                return None if _ends_with_a_frame(packed) else "it ends in the middle"
        with fsspec.open(path, "rb", compression="infer") as stream:
            while stream.read(_CHUNK_BYTES):
                pass
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno:
            return None  # the system's own: it may not be read at all
        return str(error) or type(error).__name__
    return None


def damaged(path: str, what: str) -> SourceError:
    """The error for a file with this `damage`."""
    return SourceError(
        f"{path}: cannot be unpacked: {what}",
        remedy="the file is damaged, or was cut off on its way: get it again, or leave it out",
    )


def require_whole_zst(paths: Iterable[str]) -> None:
    """Raises: SourceError for the first .zst file that is not whole. It takes a second for a gigabyte of text."""
    for path in paths:
        if path.endswith(".zst") and (what := damage(path)):
            raise damaged(path, what)


def _ends_with_a_frame(packed: BinaryIO) -> bool:
    """Unpacks all frames of a zst file. Raises: ZstdError."""
    unpacked, began = zstandard.ZstdDecompressor().decompressobj(), False
    while chunk := packed.read(_CHUNK_BYTES):
        while chunk:
            unpacked.decompress(chunk)
            began, chunk = not unpacked.eof, unpacked.unused_data
            if unpacked.eof:
                unpacked = zstandard.ZstdDecompressor().decompressobj()
    return not began
