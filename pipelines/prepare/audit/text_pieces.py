"""Marks of a record's tokens (padding, special, learned, answer, document, tag), and its text in pieces marked alike.

tokens    <|user|> Hi <|assistant|> Hello ! <|end|>
learned       0     0       0         1   1    1
pieces    '<|user|>Hi<|assistant|>', 'Hello!<|end|>'
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Schema

__all__ = ["TextPiece", "TokenMarks", "decoded", "input_marks", "pieces_of", "target_marks"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMarks:
    """L positions of the inputs or the target of one record, every array [L].

    `ids` int64; `padding` and `special` bool; `learned` and `answer` bool, and `segments` int64, from 1, 0 on padding:
    each None where the dataset has no such thing. `tags` int64, -1 where a token has none.
    """

    ids: np.ndarray
    padding: np.ndarray
    special: np.ndarray
    learned: np.ndarray | None = None
    answer: np.ndarray | None = None
    segments: np.ndarray | None = None
    tags: np.ndarray | None = None

    def without_padding(self) -> TokenMarks:
        """Return the positions that are not padding."""
        kept = ~self.padding
        return dataclasses.replace(
            self,
            **{name: values[kept] for name, values in vars(self).items() if values is not None},
        )


def input_marks(row: Mapping[str, np.ndarray], manifest: Manifest) -> TokenMarks:
    """Return the marks of the inputs of a record; `row` has one array for each feature."""
    schema = manifest.schema
    ids = schema.values(row, "token_ids")
    assert ids is not None, "a manifest has them"
    segments, mask = schema.values(row, "segment_ids"), schema.values(row, "attention_mask")
    num_tokens = schema.values(row, "num_tokens")
    if segments is not None:
        padding = segments == 0
    elif mask is not None:
        padding = mask == 0
    else:
        padding = np.arange(len(ids)) >= (len(ids) if num_tokens is None else int(num_tokens))
    learned, tags = schema.values(row, "loss_mask"), schema.values(row, "token_labels")
    tagged = schema.values(row, "token_label_mask")
    return TokenMarks(
        ids=ids,
        padding=padding,
        special=_special(ids, manifest) & ~padding,
        learned=None if learned is None else learned > 0,
        answer=_answer(row, schema, length=len(ids)),
        segments=segments,
        tags=None if tags is None or tagged is None else np.where(tagged > 0, tags, -1),
    )


def target_marks(row: Mapping[str, np.ndarray], manifest: Manifest) -> TokenMarks | None:
    """Return the marks of the target of a record, None without targets."""
    ids, mask = manifest.schema.values(row, "target_ids"), manifest.schema.values(row, "target_mask")
    if ids is None or mask is None:
        return None
    padding = mask == 0
    return TokenMarks(ids=ids, padding=padding, special=_special(ids, manifest) & ~padding, learned=~padding)


def _special(ids: np.ndarray, manifest: Manifest) -> np.ndarray:
    return np.isin(ids, manifest.tokenizer.special_ids)


def _answer(row: Mapping[str, np.ndarray], schema: Schema, *, length: int) -> np.ndarray | None:
    first, last = schema.values(row, "start_position"), schema.values(row, "end_position")
    if first is None or last is None:
        return None
    at = np.arange(length)
    # Both are 0 where there is no answer in the row.
    return np.asarray((at >= int(first)) & (at <= int(last)) & (int(last) > 0))


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
