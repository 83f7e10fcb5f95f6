"""From conversations to tokens and loss masks: render, tokenize, align, cut.

conversations ──► texts ─────────────► tokens ──────► masks ──────► rows of at most L tokens
                  by the template      the engine's   by walking    those that are longer: again, with
                                                      the texts     fewer messages, until they fit

Conversations are cut by whole turns, from one end. Each message has a rank; a conversation cut to rank k has the
messages of rank up to k. Cut on the right (the oldest turns stay), it ends with an answer; cut on the left (the latest
stay), it begins with the system prompt and a question:

    roles    system  user  assistant  user  assistant  tool  assistant  user
    right       1      1       1        2       2        3       3        4
    left        0      3       3        2       2        2       2        1

The highest rank is the whole conversation.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.messages import Conversations
from pipelines.prepare.tokenize.chat.template import Template
from pipelines.prepare.tokenize.engines import Engine
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged

__all__ = ["ChatEncoder", "EncodedChats", "Search", "ranks"]

_SYSTEM = ("system", "developer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedChats:
    """N conversations as tokens. `learned` (uint8, one for each token of `ids`) is 1 where it is to be learned.

    `full_lengths` int64 [N] are the tokens before messages were left out; `reasons` (object [N]) says why one cannot be
    used, '' where it can, and `details` (by row) say more where there is more to say.
    """

    ids: RaggedTokens
    learned: np.ndarray
    full_lengths: np.ndarray
    reasons: np.ndarray
    details: dict[int, str]

    @property
    def tokens_cut(self) -> int:
        """Number of tokens of usable conversations that truncation removed."""
        return int((self.full_lengths - self.ids.lengths)[self.reasons == ""].sum())


class ChatEncoder:
    """Encodes conversations to at most `length` tokens; longer ones lose whole turns at `side`."""

    def __init__(self, template: Template, engine: Engine, aligner: Aligner, *, length: int, side: Side) -> None:
        self._template = template
        self._engine = engine
        self._aligner = aligner
        self._length = length
        self._side: Side = side

    def encode(self, conversations: Conversations) -> EncodedChats:
        """Encode conversations."""
        whole = self._encode(conversations)
        long = np.flatnonzero((whole.reasons == "") & (whole.ids.lengths > self._length))
        cut = self._cut(conversations, whole, long) if len(long) else whole
        reasons = cut.reasons.copy()
        learned = np.concatenate([[0], np.cumsum(cut.learned)])[cut.ids.offsets]
        reasons[(reasons == "") & (np.diff(learned) == 0)] = "no_assistant"
        return dataclasses.replace(cut, reasons=reasons)

    def _encode(self, conversations: Conversations) -> EncodedChats:
        """Encode conversations whole."""
        rendered = self._template.render(conversations)
        ids, mask = self._aligner.align(self._engine.encode(rendered.texts.strings), rendered.texts)
        return EncodedChats(
            ids=ids, learned=mask, full_lengths=ids.lengths, reasons=rendered.reasons, details=rendered.details
        )

    def _cut(self, conversations: Conversations, whole: EncodedChats, rows: np.ndarray) -> EncodedChats:
        """Return `whole` with the conversations `rows` cut to the turns that fit, or rejected as too long."""
        every = np.ones(len(conversations.flat), bool)
        long = conversations.keep(every, rows=rows)
        rank = ranks(long, side=self._side)
        search = Search(rank, long)
        ids = RaggedTokens(np.empty(0, whole.ids.ids.dtype), np.zeros(len(rows) + 1, np.int64))
        learned = RaggedTokens(np.empty(0, np.uint8), ids.offsets)
        while len(tried := search.rows):
            wanted = search.next()
            limits = np.zeros(len(rows), np.int64)
            limits[tried] = wanted
            part = self._encode(long.keep(rank <= limits[long.owners], rows=tried))
            fits = (part.reasons == "") & (part.ids.lengths <= self._length)
            search.tell(wanted, fits)
            chosen = np.flatnonzero(fits)
            ids = exchanged(ids, tried[chosen], part.ids.take(chosen))
            learned = exchanged(learned, tried[chosen], RaggedTokens(part.learned, part.ids.offsets).take(chosen))
        reasons = whole.reasons.copy()
        has_answer = np.diff(np.concatenate([[0], np.cumsum(learned.ids)])[learned.offsets]) > 0
        reasons[rows[~has_answer]] = "too_long"
        masks = exchanged(RaggedTokens(whole.learned, whole.ids.offsets), rows, learned)
        return dataclasses.replace(whole, ids=exchanged(whole.ids, rows, ids), learned=masks.ids, reasons=reasons)


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
