"""Marks of a record's tokens: padding, special, learned, part of an answer; document and tag.

`inspect` colours tokens by it, and so does the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Schema

__all__ = ["TokenMarks", "input_marks", "target_marks"]


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
