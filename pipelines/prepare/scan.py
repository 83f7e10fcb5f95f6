"""One pass over a split without tokenizing: the predicted bytes of each block, and every row that cannot be used.

It reads offsets, null marks, labels and kept columns, but no text, so that a job that would reject too much stops
here, in seconds, with the same count that it would end with.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.columns import sizes_of, validate
from pipelines.prepare.job import Job
from pipelines.prepare.opened import SplitSource
from pipelines.prepare.planning import BlockCutter, Blocks
from pipelines.prepare.prediction import Curve
from pipelines.prepare.receipts import NAMED_ROWS, RejectedRow
from pipelines.prepare.rejects import told_apart

__all__ = ["Scan", "scan"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """The split's blocks, its text bytes, and the rejected rows by reason with the first of them."""

    blocks: Blocks
    text_bytes: int
    rejected: dict[str, int]
    first_rejected: tuple[RejectedRow, ...]


def scan(job: Job, split: SplitSource, *, curve: Curve, block_rows: int) -> Scan:
    """Scans the split in blocks of at most `block_rows` rows."""
    blocks = BlockCutter(rows=block_rows, row_bytes=curve.row_bytes)
    rejected: dict[str, int] = {}
    first: list[RejectedRow] = []
    place, text_bytes = 0, 0
    for row, batch in split.read(split.ranges, job.columns.names, unread=job.columns.texts):
        text = sizes_of(batch, job.columns.content)
        reasons = validate(batch, job.columns)
        predicted = curve(text, np.arange(place, place + len(text)))
        blocks.add(row, np.where(reasons == "", predicted, 0.0))
        place += len(text)
        text_bytes += int(text.sum())
        _count(reasons, row, rejected, first)
    return Scan(blocks=blocks.blocks(), text_bytes=text_bytes, rejected=rejected, first_rejected=tuple(first))


def _count(reasons: np.ndarray, row: int, rejected: dict[str, int], first: list[RejectedRow]) -> None:
    on_purpose, unusable = told_apart(reasons)
    for reason, rows in on_purpose.items():
        rejected[reason] = rejected.get(reason, 0) + rows
    for index in unusable:
        reason = str(reasons[index])
        rejected[reason] = rejected.get(reason, 0) + 1
        if len(first) < NAMED_ROWS:
            first.append(RejectedRow(row=row + index, reason=reason))
