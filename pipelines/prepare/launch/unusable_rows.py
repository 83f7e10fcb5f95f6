"""Refusing a job before its shards are made, because of rows that cannot be used.

    the sample read all rows     the number of unusable rows and their reasons, except those that only tokenizing shows
    it did not                   a lower bound, from the nulls of each group and the sampled rows

With user functions or a hold-out between the source and the rows, nulls in the source say nothing. An unusable row that
only a shard finds stops the job at that shard, if no row may be rejected (`shard_writer.unusable_row`).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.prepare.dataset.commit import check_error_rate
from pipelines.prepare.plan import null_counts
from pipelines.prepare.plan.sample_rows import ReadRows
from pipelines.prepare.sources.columns.extraction import ColumnPlan, validate
from pipelines.prepare.sources.columns.rejected import NAMED_ROWS, RejectedRow, split_reasons
from pipelines.prepare.sources.parquet.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource
from tfrecord_io.format.ledger import is_left_out

__all__ = ["UnusableRows", "check", "find"]

_READ_PARTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnusableRows:
    """The rows of a split that cannot be used: counts by reason, the first known rows, and whether the counts are
    exact.

    If every row was read, rows that are left out on purpose are counted too.
    """

    by_reason: Mapping[str, int]
    first: tuple[RejectedRow, ...]
    exact: bool

    @property
    def num_rows(self) -> int:
        """Known number of unusable rows, without those left out on purpose."""
        return sum(rows for reason, rows in self.by_reason.items() if not is_left_out(reason))


def check(found: Mapping[str, UnusableRows], *, rows: Mapping[str, int], limit: float) -> None:
    """Check the known unusable rows of some splits against `limit`, the share of all their `rows` that may be rejected.

    Raises: RowsRejectedError if there are more.
    """
    check_error_rate(
        {split: (unusable.by_reason, unusable.first) for split, unusable in found.items()},
        rows=rows,
        limit=limit,
        exact=all(unusable.exact for unusable in found.values()),
    )


def find(columns: ColumnPlan, split: SplitSource, read: ReadRows) -> UnusableRows:
    """Return what is known about unusable rows before shards are made; reads up to three groups with nulls, to name
    rows.

    Raises: SourceError if they cannot be read.
    """
    counted = collections.Counter(read.reasons[read.reasons != ""].tolist())
    counted.update(row.reason for row in read.refused)
    known = _earliest(_first(read.numbers, read.reasons), read.refused)
    if not read.whole:
        counted = collections.Counter({reason: rows for reason, rows in counted.items() if not is_left_out(reason)})
        if null_counts.count_says(split):
            found = cover(split.groups.ends, split.ranges)
            unread = _unread(found, split, read)
            counted.update(_count_null_rows(columns, split, found, unread))
            if len(known) < NAMED_ROWS:
                known = _with_null_rows(columns, split, found, unread, known)
    exact = read.whole and not read.refused
    return UnusableRows(by_reason=dict(sorted(counted.items())), first=tuple(known), exact=exact)


def _unread(found: Cover, split: SplitSource, read: ReadRows) -> np.ndarray:
    """Return which parts of groups the sample did not read, bool [N]."""
    groups = np.unique(np.searchsorted(split.groups.ends, read.numbers, "right"))
    return ~np.isin(found.groups, groups)


def _count_null_rows(columns: ColumnPlan, split: SplitSource, found: Cover, unread: np.ndarray) -> dict[str, int]:
    """Return a lower bound of the rows with nulls in parts that were not read, by reason.

    Only the column with the most nulls counts, since the nulls of several may be in the same rows. In a group that is
    covered in part, only the nulls count that cannot all be in the rest.
    """
    which = found.groups[unread]
    rest = split.groups.num_rows[which] - found.counts[unread]
    most, reason_of = np.zeros(len(which), np.int64), np.full(len(which), -1)
    reasons = null_counts.reasons_of(columns)
    nulls = null_counts.by_column(split.groups, columns)
    for index, counts in enumerate(nulls.values()):
        rows = np.maximum(counts[which] - rest, 0)
        reason_of[rows > most] = index
        most = np.maximum(most, rows)
    totals: collections.Counter[str] = collections.Counter()
    for index, name in enumerate(nulls):
        totals[reasons[name]] += int(most[reason_of == index].sum())
    return {reason: rows for reason, rows in totals.items() if rows}


def _with_null_rows(
    columns: ColumnPlan, split: SplitSource, found: Cover, unread: np.ndarray, known: Sequence[RejectedRow]
) -> list[RejectedRow]:
    """Return the first unusable rows among the known ones and those of the first groups with nulls."""
    parts = np.flatnonzero(unread & (null_counts.rows_with(split.groups, columns)[found.groups] > 0))[:_READ_PARTS]
    every = list(known)
    for part in parts.tolist():
        start = int(found.starts[part])
        for row, batch in split.read([(start, start + int(found.counts[part]))], columns.names):
            numbers = np.arange(row, row + batch.num_rows)
            every += _first(numbers, validate(batch, columns))
    return _earliest(every)


def _earliest(*rows: Sequence[RejectedRow]) -> list[RejectedRow]:
    return sorted({row for each in rows for row in each}, key=lambda row: row.row)[:NAMED_ROWS]


def _first(numbers: np.ndarray, reasons: np.ndarray) -> list[RejectedRow]:
    """Return the first rows that cannot be used."""
    _, unusable = split_reasons(reasons)
    return [RejectedRow(row=int(numbers[index]), reason=str(reasons[index])) for index in unusable[:NAMED_ROWS]]
