"""From conversations to tokens and loss masks: render, tokenize, align, cut.

conversations ──► texts ─────────────► tokens ──────► masks ──────► rows of at most L tokens
                  by the template      the engine's   by walking    those that are longer: again, with
                                                      the texts     fewer messages, until they fit

Conversations are cut by whole turns, from one end. Cut on the right (the oldest turns stay), one ends with an answer;
cut on the left (the latest stay), it begins with its system prompt, if any, and a question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.conversation import objects_of
from pipelines.prepare.tokenize.chat.template import Template
from pipelines.prepare.tokenize.engines import Engine
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged, offsets_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedChats:
    """N conversations as tokens. `learned` (uint8, one for each token of `ids`) is 1 where it is to be learned.

    `full_lengths` int64 [N] are the tokens before messages were left out; `reasons` (object [N]) says why one cannot be
    used, '' where it can, and `details` (by row) say more where there is more to say.
    """

    ids: RaggedTokens
    learned: RaggedTokens
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

    def encode(self, messages: pa.Array, tools: pa.Array | None = None) -> EncodedChats:
        """Encode conversations, lists of messages, with what each may call, if there is such a column."""
        whole = self._encode(messages, tools)
        reasons = whole.reasons.copy()
        long = np.flatnonzero((reasons == "") & (whole.ids.lengths > self._length))
        ids, learned, does_fit = self._cut(messages, tools, whole, long)
        has_answer = np.diff(np.concatenate([[0], np.cumsum(learned.ids)])[learned.offsets]) > 0
        reasons[long[~(has_answer[long] & does_fit)]] = "too_long"
        reasons[(reasons == "") & ~has_answer] = "no_assistant"
        return dataclasses.replace(whole, ids=ids, learned=learned, reasons=reasons)

    def _encode(self, messages: pa.Array, tools: pa.Array | None) -> EncodedChats:
        """Encode conversations whole."""
        rendered = self._template.render(messages, tools)
        ids, mask = self._aligner.align(self._engine.encode(rendered.texts.strings), rendered.texts)
        learned = RaggedTokens(mask, ids.offsets)
        return EncodedChats(
            ids=ids, learned=learned, full_lengths=ids.lengths, reasons=rendered.reasons, details=rendered.details
        )

    def _cut(
        self, messages: pa.Array, tools: pa.Array | None, whole: EncodedChats, rows: np.ndarray
    ) -> tuple[RaggedTokens, RaggedTokens, np.ndarray]:
        """Return the tokens and masks of `whole`, those of `rows` cut to the turns that fit, and of which any do, bool.

        The most turns that fit are searched for by halves.
        """
        long, long_tools = messages.take(pa.array(rows)), None if tools is None else tools.take(pa.array(rows))
        kept = [cuts([each["role"] for each in row], side=self._side) for row in objects_of(long)]
        starts = offsets_of(pc.list_value_length(long).to_numpy(zero_copy_only=False))
        ids, learned = whole.ids, whole.learned
        fits, fails = np.zeros(len(rows), np.int64), np.array([len(each) + 1 for each in kept], np.int64)
        while len(tried := np.flatnonzero(fails - fits > 1)):
            middle = (fits + fails)[tried] // 2
            parts = [starts[row] + kept[row][each - 1] for row, each in zip(tried, middle, strict=True)]
            flat = long.flatten().take(pa.array(np.concatenate(parts)))
            shorter = pa.LargeListArray.from_arrays(pa.array(offsets_of(np.array([len(part) for part in parts]))), flat)
            found = self._encode(shorter, None if long_tools is None else long_tools.take(pa.array(tried)))
            is_short = (found.reasons == "") & (found.ids.lengths <= self._length)
            fits[tried[is_short]], fails[tried[~is_short]] = middle[is_short], middle[~is_short]
            short = np.flatnonzero(is_short)
            ids = exchanged(ids, rows[tried[short]], found.ids.take(short))
            learned = exchanged(learned, rows[tried[short]], found.learned.take(short))
        return ids, learned, fits > 0


def cuts(roles: Sequence[str], *, side: Side) -> list[np.ndarray]:
    """Return what may stay of a conversation of these roles: indices of messages, the fewest first, never all."""
    places = np.arange(len(roles))
    if side == "right":
        kept = [places[: at + 1] for at, role in enumerate(roles) if role == "assistant"]
    else:
        opening = next((at for at, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        asked = [at for at, role in enumerate(roles) if role == "user"]
        kept = [np.concatenate([places[:opening], places[at:]]) for at in reversed(asked)]
    return [each for each in kept if len(each) < len(roles)]
