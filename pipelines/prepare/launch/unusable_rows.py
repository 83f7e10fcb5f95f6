"""Refusing a job before its shards are made, because of rows that cannot be used.

    all rows were read for the sample     how many, and for which reasons, is known, but for what only tokenizing tells
    else                                  nulls by group, and the rows of the sample: at least so many

Where the user's functions, or a hold-out, come between the source and the rows, nulls in the source say nothing. What
only a shard can find stops the job at that shard (`unusable_row`), if no row may be rejected.
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
from pipelines.prepare.sources.columns.rejected import NAMED_ROWS, RejectedRow, told_apart
from pipelines.prepare.sources.formats.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource
from tfrecord_io.format.ledger import LEFT_OUT

__all__ = ["Unusable", "check", "find"]

_READ_PARTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unusable:
    """Rows of a split that cannot be used: how many by reason, the first ones that are known, and whether these are
    all. Where every row was read, rows that are left out on purpose are counted too.
    """

    by_reason: Mapping[str, int]
    first: tuple[RejectedRow, ...]
    exact: bool

    @property
    def num_rows(self) -> int:
        """How many rows cannot be used, as far as is known; rows that are left out on purpose are none of them."""
        return sum(rows for reason, rows in self.by_reason.items() if reason not in LEFT_OUT)


def check(found: Mapping[str, Unusable], *, rows: Mapping[str, int], limit: float) -> None:
    """Compares what is known of some splits with the share of all their `rows` that may be rejected.

    Raises: RowsRejectedError if it is more than `limit`.
    """
    check_error_rate(
        {split: (dict(unusable.by_reason), unusable.first) for split, unusable in found.items()},
        rows=rows,
        limit=limit,
        exact=all(unusable.exact for unusable in found.values()),
    )


def find(columns: ColumnPlan, split: SplitSource, read: ReadRows) -> Unusable:
    """What is known before there are shards. Reads up to three groups, to name rows, if there are nulls in some.

    Raises: SourceError if they cannot be read.
    """
    counted = collections.Counter(read.reasons[read.reasons != ""].tolist())
    counted.update(row.reason for row in read.refused)
    known = _earliest(_first(read.numbers, read.reasons), read.refused)
    if read.whole:
        return Unusable(by_reason=dict(sorted(counted.items())), first=tuple(known), exact=not read.refused)
    for reason in LEFT_OUT:
        del counted[reason]
    if not null_counts.count_says(split):
        return Unusable(by_reason=dict(sorted(counted.items())), first=tuple(known), exact=False)
    found = cover(split.groups.ends, split.ranges)
    unread = _unread(found, split, read)
    for reason, rows in _at_least(columns, split, found, unread).items():
        counted[reason] += rows
    if len(known) < NAMED_ROWS:
        known = _with_others(columns, split, found, unread, known)
    return Unusable(by_reason=dict(sorted(counted.items())), first=tuple(known), exact=False)


def _unread(found: Cover, split: SplitSource, read: ReadRows) -> np.ndarray:
    """Which parts of groups the sample did not read, bool [N]."""
    groups = np.unique(np.searchsorted(split.groups.ends, read.numbers, "right"))
    return ~np.isin(found.groups, groups)


def _at_least(columns: ColumnPlan, split: SplitSource, found: Cover, unread: np.ndarray) -> dict[str, int]:
    """Rows with nulls in parts that were not read, by reason. Of several columns the one with the most nulls counts,
    since they may be in the same rows; of a group that is covered in part, those that cannot be in the rest.
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


def _with_others(
    columns: ColumnPlan, split: SplitSource, found: Cover, unread: np.ndarray, known: Sequence[RejectedRow]
) -> list[RejectedRow]:
    """The first rows that are known, and those of the first groups with nulls."""
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
    """The first rows that cannot be used."""
    _, unusable = told_apart(reasons)
    return [RejectedRow(row=int(numbers[index]), reason=str(reasons[index])) for index in unusable[:NAMED_ROWS]]
