"""Rejected rows, which could not be used, as opposed to rows that are left out on purpose."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.format.ledger import LEFT_OUT

__all__ = ["NAMED_ROWS", "RejectedRow", "split_reasons"]

# The number of rejected rows that a receipt names; all of them are listed in rejected/.
NAMED_ROWS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectedRow:
    """A row that could not be used: its number in the split, and the reason."""

    row: int
    reason: str


def split_reasons(reasons: np.ndarray) -> tuple[dict[str, int], list[int]]:
    """Count the rows that are left out on purpose, by reason; return the counts and the indices of unusable rows.

    `reasons`: as from `extraction.validate`.
    """
    with_reason = np.flatnonzero(reasons != "")
    unusable = np.ones(len(with_reason), bool)
    on_purpose = {}
    for reason in LEFT_OUT:
        has_reason = reasons[with_reason] == reason
        if rows := int(has_reason.sum()):
            on_purpose[reason] = rows
            unusable &= ~has_reason
    return on_purpose, with_reason[unusable].tolist()
