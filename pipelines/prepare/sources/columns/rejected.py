"""Rows that could not be used, and how to tell them from rows that are left out on purpose."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.format.ledger import LEFT_OUT

__all__ = ["NAMED_ROWS", "RejectedRow", "told_apart"]

# How many rejected rows a receipt names; all of them are in rejected/.
NAMED_ROWS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectedRow:
    """A row that could not be used: its number in the split, and why."""

    row: int
    reason: str


def told_apart(reasons: np.ndarray) -> tuple[dict[str, int], list[int]]:
    """How many rows are left out on purpose, by reason, and the indices of those that cannot be used."""
    rejected = np.flatnonzero(reasons != "")
    found = reasons[rejected]
    unusable = np.ones(len(rejected), bool)
    on_purpose = {}
    for reason in LEFT_OUT:
        has_it = found == reason
        if rows := int(has_it.sum()):
            on_purpose[reason] = rows
            unusable &= ~has_it
    return on_purpose, rejected[unusable].tolist()
