"""How the rows of a split become what a job sees: read where they lie, then taken through the user's own steps.

    pieces ──► rows as stored, with the types of the split ──► the user's functions ──► hold-out ──► batches

A `RowReader` is small, and travels to workers in the job; the launcher's `SplitSource` adds where all rows lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources import rows
from pipelines.prepare.sources.features import Columns
from pipelines.prepare.sources.groups import Groups, Pieces
from pipelines.prepare.sources.left_out import CODES, marked
from pipelines.prepare.sources.row_changes import RowChanges, place_of
from pipelines.prepare.sources.sides import Side
from tfrecord_io.ledger import FILTERED

__all__ = ["RowReader", "Source", "SplitSource"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reads rows of one split. `split` is its name in messages, `types` the columns of the source as they are stored.

    Rows go through the user's `changes`, and those that are not on this `side` of a hold-out are marked (see
    `left_out`). `addresses` gives the address with credentials of a file by the one without; it is filled in the
    launcher's own process only, and never leaves it.
    """

    split: str
    types: pa.Schema
    changes: RowChanges | None = None
    side: Side | None = None
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The columns that `read` can give."""
        return self.types if self.changes is None else self.changes.schema

    @property
    def share(self) -> float:
        """About how many of the rows are not left out on purpose, over 0 and up to 1."""
        return (self.changes.share if self.changes else 1.0) * (self.side.share if self.side else 1.0)

    def read(self, pieces: Pieces, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, record batch with `columns`), in the order of the pieces. Rows that are left
        out on purpose keep their numbers, and are marked.

        Raises: SourceError if a file is gone, has changed since the plan, or cannot be decoded, and if one of the
            user's functions fails.
        """
        hashed = self.side.columns if self.side else ()
        wanted = list(dict.fromkeys([*columns, *hashed]))
        stored = wanted if self.changes is None else self.types.names
        for first, batch in rows.read(pieces, stored, types=self.types, addresses=self.addresses):
            yield first, self._marked(first, batch, columns, wanted)

    def _marked(
        self, first: int, batch: pa.RecordBatch, columns: Sequence[str], wanted: Sequence[str]
    ) -> pa.RecordBatch:
        if self.changes is None and self.side is None:
            return batch
        codes = np.zeros(batch.num_rows, np.int8)
        if self.changes is not None:
            place = place_of(first, batch.num_rows, split=self.split)
            batch, filtered = self.changes.apply(batch, wanted, place=place)
            codes[filtered] = CODES[FILTERED]
        if self.side is not None:
            codes = np.where(codes == 0, self.side.codes(batch), codes)
        return marked(batch.select(list(columns)), codes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSource:
    """The rows of one split: [start, stop) ranges of the rows of the source's split `origin`, in the order asked for.
    Rows have the numbers that they have there.
    """

    name: str
    origin: str
    groups: Groups
    ranges: tuple[tuple[int, int], ...]
    reader: RowReader

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def read(self, segments: Sequence[tuple[int, int]], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (number of the first row, record batch) for the [start, stop) row ranges, in their order."""
        return self.reader.read(self.groups.pieces(segments), columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset with its rows. `splits` are those of the output; `all_splits` are the source's own, whole, and
    `columns` what is in each of these. `identity` is what the fingerprint and the manifest say of it.
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
