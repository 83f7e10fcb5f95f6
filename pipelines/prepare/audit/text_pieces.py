"""The text of a record in pieces, each of tokens that are marked alike: to be learned, an answer, one document.

tokens    <|user|> Hi <|assistant|> Hello ! <|end|>
learned       0     0       0         1   1    1
pieces    '<|user|>Hi<|assistant|>', 'Hello!<|end|>'
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from pipelines.prepare.audit.token_marks import TokenMarks

__all__ = ["TextPiece", "decoded", "pieces_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPiece:
    """Part of a record's text. `document` is its number in the row, from 1; 0 in rows that hold only one."""

    text: str
    learned: bool = False
    answer: bool = False
    document: int = 0


def pieces_of(marks: TokenMarks, tokenizer: Any) -> tuple[TextPiece, ...]:
    """Return the text of the tokens in pieces, which together are the text of all of them, padding left out."""
    marks = marks.without_padding()
    count = len(marks.ids)
    nothing = np.zeros(count, np.int64)
    learned, answer, segments = (
        nothing if values is None else values.astype(np.int64)
        for values in (marks.learned, marks.answer, marks.segments)
    )
    kinds = np.stack([learned, answer, segments])
    edges = [0, *(np.flatnonzero((np.diff(kinds) != 0).any(axis=0)) + 1).tolist(), count] if count else [0]
    texts = _texts(marks.ids, edges, tokenizer)
    return tuple(
        TextPiece(text=text, learned=bool(learned[at]), answer=bool(answer[at]), document=int(segments[at]))
        for at, text in zip(edges[:-1], texts, strict=True)
    )


def _texts(ids: np.ndarray, edges: list[int], tokenizer: Any) -> list[str]:
    """Return the texts of the tokens between edges.

    Decoded by itself, a piece would lose the space before its first word: so each is what its tokens add to the text
    of all tokens before it. Only where later tokens change earlier text (half a character, say) is it decoded alone.
    """
    whole = decoded(ids, tokenizer)
    ends = [decoded(ids[:edge], tokenizer) for edge in edges]
    if all(whole.startswith(text) for text in ends):
        return [whole[len(before) : len(text)] for before, text in itertools.pairwise(ends)]
    return [decoded(ids[start:stop], tokenizer) for start, stop in itertools.pairwise(edges)]


def decoded(ids: np.ndarray, tokenizer: Any) -> str:
    """Return the text of tokens, special ones included."""
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))
