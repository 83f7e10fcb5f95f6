"""Rejected rows, which could not be used, as opposed to rows that are left out on purpose."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.format.ledger import is_left_out

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
    found = {reason: reasons == reason for reason in np.unique(reasons[reasons != ""].astype(str)).tolist()}
    on_purpose = {reason: int(rows.sum()) for reason, rows in found.items() if is_left_out(reason)}
    unusable = [np.flatnonzero(rows) for reason, rows in found.items() if not is_left_out(reason)]
    return on_purpose, np.sort(np.concatenate(unusable)).tolist() if unusable else []
