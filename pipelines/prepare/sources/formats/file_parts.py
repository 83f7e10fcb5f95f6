"""A part of a data file that is read by itself."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from contextlib import AbstractContextManager

from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile

__all__ = ["FilePart"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilePart:
    """Bytes [start, stop) of a file of lines, row groups [start, stop) of a Parquet file, or a whole file.

    `addresses`: see `RowReader`.
    """

    file: DataFile
    start: int
    stop: int
    is_whole: bool
    addresses: Mapping[str, str]

    def open(self) -> AbstractContextManager[io.BufferedReader]:
        """Open the decompressed bytes: the whole file, or the lines that begin in [start, stop)."""
        if self.is_whole:
            return byte_ranges.open_file(self.file, addresses=self.addresses)
        return byte_ranges.open_lines(self.file, self.start, self.stop, addresses=self.addresses)
