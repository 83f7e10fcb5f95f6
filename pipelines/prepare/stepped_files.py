"""The rows of a split as the user's functions make them: read like `ArrowFiles`, so that nothing else needs to know."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.left_out import CODES, marked
from pipelines.prepare.sources.row_changes import RowChanges, place_of
from tfrecord_io.ledger import FILTERED

if TYPE_CHECKING:
    from pipelines.prepare.arrow_files import ArrowFiles
    from pipelines.prepare.staged_files import StagedFiles

__all__ = ["SteppedFiles"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SteppedFiles:
    """All `columns` of `files`, taken through the user's functions."""

    files: ArrowFiles | StagedFiles
    split: str
    columns: tuple[str, ...]
    changes: RowChanges

    @property
    def share(self) -> float:
        """About how many of the rows the filters leave."""
        return self.changes.share

    def over(self, files: ArrowFiles | StagedFiles | SteppedFiles) -> SteppedFiles:
        """The same of a copy of the files. Raises: ValueError if the functions were called for the copy already."""
        if isinstance(files, SteppedFiles):
            raise ValueError("functions are called once")
        return dataclasses.replace(self, files=files)

    def read(
        self,
        segments: Sequence[tuple[int, int]],
        columns: Sequence[str],
        *,
        unread: Collection[str] = (),
        in_parts: bool = False,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch) for the given ascending [start, stop) row ranges. `unread` and
        `in_parts` change nothing: functions need the values, and batches are small.

        Raises: SourceError if a function fails, or gives a column with another type than before.
        """
        for first, batch in self.files.read(segments, self.columns, in_parts=True):
            place = place_of(first, batch.num_rows, split=self.split)
            changed, filtered = self.changes.apply(batch, columns, place=place)
            yield first, marked(changed, filtered * np.int8(CODES[FILTERED]))
