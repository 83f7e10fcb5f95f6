"""Reading rows of a finished dataset's source, opening only the files that have them.

    files of the split     a.jsonl.gz          b.jsonl                       c.parquet
    stored as              ingested, 1 part    ingested, 3 parts             the file itself
    rows of each           1,000               700   720   690               12,000        from the plan
    row 2,000                                               the second part of b, row 1,000 of the file

Parts that have to be ingested for that are ingested again into a temporary folder.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence

import numpy as np

from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats import footers
from pipelines.prepare.sources.formats.groups import Groups, Pieces, cover
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest_receipts import groups_of
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.opening import OpenedSource
from tfrecord_io.errors import FingerprintMismatchError

__all__ = ["RowsOnDemand"]


class RowsOnDemand:
    """The rows of a split of the source; `stored_rows` int64 [F] is the planned number of rows of each stored file.

    `is_longer`: the source may have further files by now, which are left alone.

    Raises: FingerprintMismatchError if the source is now stored in another number of files.
    """

    def __init__(
        self, found: OpenedSource, source_split: str, stored_rows: np.ndarray, *, is_longer: bool = False
    ) -> None:
        self._found = found
        self._folder = tempfile.mkdtemp(prefix="prep-tfrecords-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        slots = _slots(found, source_split, folder=self._folder)
        self._slots = slots[: len(stored_rows)] if is_longer else slots
        if len(self._slots) != len(stored_rows):
            raise FingerprintMismatchError(
                f"split {source_split!r}: {len(self._slots)} files or parts of files, expected {len(stored_rows)}",
                remedy="install the version that made the dataset, or build it anew with --overwrite",
            )
        self._rows = stored_rows
        self._ends = np.cumsum(stored_rows)
        self._groups = [Groups.unread(rows) for rows in stored_rows.tolist()]
        self._opened: set[int] = set()
        self._joined = Groups.joined(self._groups)

    @property
    def num_rows(self) -> int:
        """The number of rows in the split."""
        return int(self._rows.sum())

    def pieces(self, row_ranges: Sequence[tuple[int, int]]) -> Pieces:
        """Return where the rows are stored now. Raises: SourceError if they cannot be read; OutputError."""
        if new := set(cover(self._ends, row_ranges).groups.tolist()) - self._opened:
            for slot in sorted(new):
                self._groups[slot] = self._open(slot)
            self._opened |= new
            self._joined = Groups.joined(self._groups)
        return self._joined.pieces(row_ranges)

    def locate(self, row: int) -> tuple[DataFile, int]:
        """Return the source's file that has a row of the split, and the row's number in it, from 0."""
        slot = int(np.searchsorted(self._ends, row, "right"))
        file = self._slots[slot][0]
        first = next(at for at, (other, _) in enumerate(self._slots) if other is file)
        return file, row - int(self._ends[first] - self._rows[first])

    def _open(self, slot: int) -> Groups:
        file, task = self._slots[slot]
        if task is None:
            return footers.in_place_groups(file, self._found.footers[file.path])
        receipt = ingest.run(task, addresses=self._found.addresses)
        return groups_of([receipt], task.types.names)


def _slots(found: OpenedSource, source_split: str, *, folder: str) -> list[tuple[DataFile, IngestTask | None]]:
    """Return the stored files of a split, in order: the source's own, or the ingest tasks of their parts."""
    by_number: dict[int, list[IngestTask]] = {}
    for task in opening.ingest_tasks_of(found, [source_split], folder=folder):
        by_number.setdefault(task.number, []).append(task)
    return [
        (file, task)
        for number, file in enumerate(found.listing.splits[source_split])
        for task in by_number.get(number, [None])
    ]
