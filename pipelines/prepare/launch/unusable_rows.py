"""Refusing a job before its shards are made, because of rows that cannot be used.

    the sample read all rows     the number of unusable rows and their reasons, except those that only tokenizing shows
    it did not                   a lower bound: those of the sample, or the nulls that Parquet files count

An unusable row that only a shard finds stops the job at that shard, if no row may be rejected
(`shard_writer.unusable_row`).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np

from pipelines.prepare.dataset.commit import check_error_rate
from pipelines.prepare.plan.blocks import nulls_by_reason
from pipelines.prepare.plan.sample_rows import ReadRows
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import cover
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.unused_rows import NAMED_ROWS, RejectedRow, split_reasons
from tfrecord_io.errors import RowsRejectedError
from tfrecord_io.format.ledger import HELD_OUT, NOT_HELD_OUT, is_left_out

__all__ = ["UnusableRows", "check", "find", "no_usable_row"]


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
    """Return what is known about unusable rows before shards are made."""
    counted = collections.Counter(read.reasons[read.reasons != ""].tolist())
    counted.update(row.reason for row in read.refused)
    _, unusable = split_reasons(read.reasons)
    first = [RejectedRow(row=int(read.numbers[at]), reason=str(read.reasons[at])) for at in unusable[:NAMED_ROWS]]
    if not read.whole:
        counted = collections.Counter({reason: rows for reason, rows in counted.items() if not is_left_out(reason)})
        reason, rows = _most_nulls(columns, split)
        if rows > counted.total():  # the sample's may be among these
            counted = collections.Counter({reason: rows})
    return UnusableRows(
        by_reason=dict(sorted(counted.items())),
        first=tuple(sorted({*first, *read.refused}, key=lambda row: row.row)[:NAMED_ROWS]),
        exact=read.whole and not read.refused,
    )


def _most_nulls(columns: ColumnPlan, split: SplitSource) -> tuple[str, int]:
    """Return the reason of the column with the most nulls in the split, and a lower bound of their number.

    The nulls of several columns may be in the same rows. In a group that is covered in part, only the nulls count that
    cannot all be in the rest.
    """
    found = cover(split.groups.ends, split.ranges)
    rest = split.groups.num_rows[found.groups] - found.counts
    nulls = [
        (int(np.maximum(counts[found.groups] - rest, 0).sum()), reason)
        for reason, counts in nulls_by_reason(split, columns)
    ]
    rows, reason = max(nulls, default=(0, ""))
    return reason, rows


def no_usable_row(split: str, reasons: Mapping[str, int], *, appends: bool) -> RowsRejectedError:
    """Return the error for a split of which no row of the sample can be used, for these reasons."""
    said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    remedy = "check --text-column, --label-column and what a --filter leaves, or choose another --split"
    if reasons and all(reason.startswith("label_") for reason in reasons):
        remedy = "choose the splits that have labels with --split, and build this one by itself without --label-column"
    if reasons and set(reasons) <= {HELD_OUT, NOT_HELD_OUT}:
        remedy = "hold out more rows, or fewer: none of the sampled ones is in this split"
        if appends:
            remedy = "append more rows at once: none of these is in this split"
    return RowsRejectedError(
        f"split {split!r}: none of the sampled rows can be used{f' ({said})' if said else ''}", remedy=remedy
    )
