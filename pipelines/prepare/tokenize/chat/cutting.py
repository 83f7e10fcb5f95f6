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
_STEPS = 3


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
    """Search for the highest rank of each conversation that fits: a guess first, then its neighbours."""

    def __init__(self, rank: np.ndarray, conversations: Conversations, *, sizes: np.ndarray, room: np.ndarray) -> None:
        """Begin a search. `sizes` int64 [M] predicts each message's size, `room` [N] the room in each row."""
        owners = conversations.owners
        self._fits = np.zeros(len(conversations), np.int64)
        self._fails = np.zeros(len(conversations), np.int64)
        np.maximum.at(self._fails, owners, rank)
        self._tried = 0
        self._guess = _guess(rank, owners, sizes, room)

    @property
    def rows(self) -> np.ndarray:
        """The rows that are still searched for."""
        return np.flatnonzero(self._fails - self._fits > 1)

    @property
    def found(self) -> np.ndarray:
        """The highest rank known to fit, 0 if there is none, int64 [N]."""
        return self._fits

    def next(self) -> np.ndarray:
        """Return the rank to try next for each of `rows`."""
        rows = self.rows
        middle = (self._fits[rows] + self._fails[rows]) // 2
        wanted = self._guess[rows] if self._tried < _STEPS else middle
        return np.clip(wanted, self._fits[rows] + 1, self._fails[rows] - 1)

    def tell(self, ranks: np.ndarray, fits: np.ndarray) -> None:
        """Record whether the ranks that were tried fit."""
        rows = self.rows
        self._fits[rows[fits]] = ranks[fits]
        self._fails[rows[~fits]] = ranks[~fits]
        self._guess[rows] = np.where(fits, ranks + 1, ranks - 1)
        self._tried += 1


def _guess(rank: np.ndarray, owners: np.ndarray, sizes: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Return each row's highest rank whose messages, with those of lower ranks, are predicted to fit."""
    order = np.lexsort((rank, owners))
    taken = np.concatenate([[0], np.cumsum(sizes[order])])
    firsts = np.searchsorted(owners[order], np.arange(len(room)))
    inside = taken[1:] - taken[firsts][owners[order]] <= room[owners[order]]
    # A rank is in as a whole or not at all: its last message decides.
    last = np.append((np.diff(rank[order]) != 0) | (np.diff(owners[order]) != 0), True)
    guess = np.zeros(len(room), np.int64)
    np.maximum.at(guess, owners[order][inside & last], rank[order][inside & last])
    return guess
