"""Truncation of conversations by whole turns, from one end.

Each message has a rank; a conversation cut to rank k has the messages of rank up to k. Cut on the right (the oldest
turns stay), it ends with an answer; cut on the left (the latest stay), it begins with the system prompt and a question:

    roles    system  user  assistant  user  assistant  tool  assistant  user
    right       1      1       1        2       2        3       3        4
    left        0      3       3        2       2        2       2        1

The highest rank is the whole conversation.
"""

from __future__ import annotations

import numpy as np

from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.chat.messages import Conversations

__all__ = ["Search", "ranks"]

_SYSTEM = ("system", "developer")


def ranks(conversations: Conversations, *, side: Side) -> np.ndarray:
    """Return the rank of each message, int64 [M]."""
    codes, names = conversations.roles
    owners, firsts = conversations.owners, conversations.offsets[:-1]

    def count_until(marked: np.ndarray) -> np.ndarray:
        """Return how many marked messages the row has up to and including each message."""
        total = np.concatenate([[0], np.cumsum(marked)])
        return np.asarray(total[1:] - total[firsts][owners])

    def has_role(*roles: str) -> np.ndarray:
        return np.isin(codes, [names.index(role) for role in roles if role in names])

    if side == "right":
        answers = has_role("assistant")
        return np.asarray(count_until(answers) - answers + 1)
    questions = has_role("user")
    asked = count_until(questions)
    total = np.bincount(owners[questions], minlength=len(conversations))
    opens = count_until(~has_role(*_SYSTEM)) == 0
    return np.where(opens, 0, total[owners] - asked + 1)


class Search:
    """Search for the highest rank of each conversation that fits, by halves."""

    def __init__(self, rank: np.ndarray, conversations: Conversations) -> None:
        self._fits = np.zeros(len(conversations), np.int64)
        self._fails = np.zeros(len(conversations), np.int64)
        np.maximum.at(self._fails, conversations.owners, rank)

    @property
    def rows(self) -> np.ndarray:
        """The rows that are still searched for."""
        return np.flatnonzero(self._fails - self._fits > 1)

    def next(self) -> np.ndarray:
        """Return the rank to try next for each of `rows`."""
        rows = self.rows
        return np.asarray((self._fits[rows] + self._fails[rows]) // 2)

    def tell(self, ranks: np.ndarray, fits: np.ndarray) -> None:
        """Record whether the ranks that were tried fit."""
        rows = self.rows
        self._fits[rows[fits]] = ranks[fits]
        self._fails[rows[~fits]] = ranks[~fits]
