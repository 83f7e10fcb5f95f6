"""Reading rows of a finished dataset's source, opening only the files that have them.

    files of the split     a.jsonl.gz          b.jsonl                       c.parquet
    rows of each           1,000               2,110                         12,000        from the plan
    row 2,000                                  row 1,000 of the file

Files that have to be ingested for that are ingested again into a temporary folder, each by itself.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import weakref
from collections.abc import Sequence

import numpy as np

from pipelines.prepare.process import workers
from pipelines.prepare.sources.ingest import ingest, parts
from pipelines.prepare.sources.ingest.tasks import IngestSource
from pipelines.prepare.sources.parquet import footers
from pipelines.prepare.sources.parquet.groups import Groups, Pieces, cover
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.rows.opening import OpenedSource
from tfrecord_io.errors import FingerprintMismatchError

__all__ = ["RowsOnDemand"]


class RowsOnDemand:
    """The rows of a split of the source; `source_rows` int64 [S] is the planned number of rows of each file, or of each
    shard of its stream where files are not known.

    `is_longer`: the source may have further files by now, which are left alone.

    Raises: FingerprintMismatchError if the source has another number of files.
    """

    def __init__(
        self, found: OpenedSource, source_split: str, source_rows: np.ndarray, *, is_longer: bool = False
    ) -> None:
        self._found, self._split = found, source_split
        self._folder = tempfile.mkdtemp(prefix="prep-tfrecords-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._ingest = IngestSource(streams=found.streams([source_split]), folder=self._folder)
        self._files: Sequence[DataFile | None] = found.listing.splits[source_split]
        if (stream := self._ingest.streams.get(source_split)) and not stream.shard_files:
            self._files = [None] * stream.num_shards
        if is_longer:
            self._files = self._files[: len(source_rows)]
        if len(self._files) != len(source_rows):
            raise FingerprintMismatchError(
                f"split {source_split!r}: {len(self._files)} files, expected {len(source_rows)}",
                remedy="install the version that made the dataset, or build it anew with --overwrite",
            )
        self._rows = source_rows
        self._ends = np.cumsum(source_rows)
        self._groups = [Groups.unread(source_rows[index : index + 1]) for index in range(len(source_rows))]
        self._opened: set[int] = set()
        self._joined = Groups.joined(self._groups)

    @property
    def num_rows(self) -> int:
        """The number of rows in the split."""
        return int(self._rows.sum())

    def pieces(self, row_ranges: Sequence[tuple[int, int]]) -> Pieces:
        """Return where the rows are stored now. Raises: SourceError if they cannot be read; OutputError."""
        if new := set(cover(self._ends, row_ranges).groups.tolist()) - self._opened:
            for index in sorted(new):
                self._groups[index] = self._open(index)
            self._opened |= new
            self._joined = Groups.joined(self._groups)
        return self._joined.pieces(row_ranges)

    def locate(self, row: int) -> tuple[DataFile | None, int]:
        """Return the file that has a row of the split, if that is known, and the row's number in it, from 0."""
        index = int(np.searchsorted(self._ends, row, "right"))
        file = self._files[index]
        return file, row if file is None else row - int(self._ends[index] - self._rows[index])

    def _open(self, index: int) -> Groups:
        stream = self._ingest.streams.get(self._split)
        if stream is None:
            file = self._found.listing.splits[self._split][index]
            return footers.groups_of(file, self._found.footers[file.path])
        shards = [index] if not stream.shard_files else [s for s, of in enumerate(stream.shard_files) if of == index]
        tasks = [stream.task_of(self._split, shard) for shard in shards]
        children = ingest.children(self._ingest, tasks, most=1)
        with ingest.naming_files(self._ingest):
            list(workers.run(functools.partial(ingest.call, self._ingest), tasks, processes=children, keep=True))
        located = parts.read_groups(parts.find_parts(self._ingest, tasks), None)
        return Groups.joined([located[task] for task in tasks])
