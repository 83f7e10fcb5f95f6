"""What an opened dataset is: its splits, where their rows are, and what their columns hold. `loading` opens one.

Only paths and types are in it, so that it travels: to workers, and from the process that opened it (`early_source`).
Nothing here needs `datasets`, which takes most of a second to import.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.sources.features import Column, Columns
from pipelines.prepare.staged_files import StagedFiles
from pipelines.prepare.stepped_files import SteppedFiles

__all__ = ["Column", "Columns", "Source", "SplitSource"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSource:
    """The rows of one split: [start, stop) ranges of its files' rows, in the order asked for."""

    name: str
    files: ArrowFiles | StagedFiles | SteppedFiles
    ranges: tuple[tuple[int, int], ...]

    @property
    def origin(self) -> str:
        """The source's split that the rows are of."""
        return self.name

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def read(
        self,
        segments: Sequence[tuple[int, int]],
        columns: Sequence[str],
        *,
        unread: Collection[str] = (),
        in_parts: bool = False,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch), as `ArrowFiles.read` does, for segments in any order."""
        for run in _ascending_runs(segments):
            yield from self.files.read(run, columns, unread=unread, in_parts=in_parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """An opened dataset. `identity` is what the fingerprint and the manifest say of it; it holds no secrets and no
    paths. `files` are the data files of each split in the order of its rows; none for a hub dataset.
    """

    splits: Mapping[str, SplitSource]
    all_splits: Mapping[str, SplitSource]
    columns: Mapping[str, Columns]
    identity: Mapping[str, Any]
    files: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


def _ascending_runs(segments: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    run: list[tuple[int, int]] = []
    for start, stop in segments:
        if run and start < run[-1][1]:
            yield run
            run = []
        run.append((start, stop))
    if run:
        yield run
