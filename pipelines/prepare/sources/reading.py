"""How the rows of a split become what a job sees: read where they lie, then taken through the user's own steps.

    pieces ──► rows as stored, with the types of the split ──► the user's functions ──► rows held out ──► batches

A `RowReader` is small, and travels to workers in the job; the launcher's `SplitSource` adds where all rows lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare.sources import rows
from pipelines.prepare.sources.features import Columns
from pipelines.prepare.sources.groups import Groups, Pieces

__all__ = ["RowReader", "Source", "SplitSource"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reads rows of one split. `split` is its name in messages, `types` the columns of the source as they are read.

    `addresses` gives the address with credentials of a file by the one without; it is filled in the launcher's own
    process only, and never leaves it.
    """

    split: str
    types: pa.Schema
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The columns that `read` can give."""
        return self.types

    def read(self, pieces: Pieces, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, record batch with `columns`), in the order of the pieces.

        Raises: SourceError if a file is gone, has changed since the plan, or cannot be decoded.
        """
        return rows.read(pieces, columns, types=self.types, addresses=self.addresses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSource:
    """The rows of one split: [start, stop) ranges of the rows of the source's split `origin`, in the order asked for."""

    name: str
    origin: str
    groups: Groups
    ranges: tuple[tuple[int, int], ...]
    reader: RowReader

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def read(
        self, segments: Sequence[tuple[int, int]], columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, record batch) for the [start, stop) row ranges, in their order."""
        return self.reader.read(self.groups.pieces(segments), columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset with its rows. `splits` are those of the output; `all_splits` are the source's own, whole, and `columns`
    what is in each of these. `identity` is what the fingerprint and the manifest say of it.
    """

    splits: Mapping[str, SplitSource]
    all_splits: Mapping[str, SplitSource]
    columns: Mapping[str, Columns]
    identity: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What its files are, or `hub`."""
        return str(self.identity["kind"])

    def columns_of(self, split: SplitSource) -> Columns:
        """The columns of one of its splits."""
        return self.columns[split.origin]
