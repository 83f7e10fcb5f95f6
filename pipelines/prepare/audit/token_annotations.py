"""Annotations of tokens, single ones or spans: tags, character offsets, answers.

    input_ids        [CLS] Who ? [SEP] Anna lives in Rome [SEP] .
    char_starts      0     0   0 0     0    5     11 14   0     0
    char_ends        0     0   0 0     4    10    13 18   0     0     characters 0 to 18
    start_positions  4     end_positions  4                           answer 'Anna'

`invariants` are what must be true of them; `describe` turns them into text for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role, Schema

__all__ = ["describe", "invariants"]


def invariants(
    columns: dict[str, np.ndarray], manifest: Manifest, padded: np.ndarray
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield where each invariant holds, bool [N, ...], and what a record has that breaks it.

    `padded` is bool [N, L].
    """
    schema = manifest.schema
    labels, mask = schema.values(columns, "token_labels"), schema.values(columns, "token_label_mask")
    if labels is not None and mask is not None:
        yield (mask == 0) | ((mask == 1) & ~padded), "a tag_mask of other values than 0 and 1, or 1 on padding"
        yield (labels == 0) | (mask == 1), "a tag on a token that tag_mask says has none"
        if manifest.label_names is not None:
            names = len(manifest.label_names)
            yield (labels >= 0) & (labels < names), f"a tag outside 0 to {names - 1}"
    starts, ends = schema.values(columns, "char_starts"), schema.values(columns, "char_ends")
    if starts is not None and ends is not None:
        yield (starts >= 0) & (starts <= ends), "a char_starts that is negative or behind char_ends"
        yield (ends == 0) | ~padded, "characters in the padding"
    first, last = schema.values(columns, "start_position"), schema.values(columns, "end_position")
    if first is not None and last is not None:
        length = manifest.row_length
        inside = (first >= 0) & (first <= last) & (last < length)
        yield inside, f"start_positions behind end_positions, or one outside 0 to {length - 1}"
        rows, answered = np.arange(len(first)), inside & (last > 0)
        at = np.where(answered, first, 0), np.where(answered, last, 0)
        yield ~answered | ~(padded[rows, at[0]] | padded[rows, at[1]]), "an answer that reaches into the padding"
    if (row := schema.values(columns, "source_row")) is not None:
        yield row >= 0, "a source_row below 0"


def describe(row: dict[str, np.ndarray], ids: np.ndarray, manifest: Manifest, tokenizer: Any) -> dict[str, Any]:
    """Describe a record's annotations, and remove them from `row`.

    Returns: tokens of `ids` [L] with their tags' names; the span of characters; the answer as text.
    """
    schema, found = manifest.schema, dict[str, Any]()
    labels, mask = _taken(row, schema, "token_labels"), _taken(row, schema, "token_label_mask")
    if labels is not None and mask is not None:
        chosen = np.flatnonzero(mask)
        tokens = tokenizer.convert_ids_to_tokens(ids[chosen].tolist())
        tags = labels[chosen].tolist()
        named = tags if manifest.label_names is None else [manifest.label_names[tag] for tag in tags]
        found["tags"] = [f"{token} {tag}" for token, tag in zip(tokens, named, strict=True)]
    starts, ends = _taken(row, schema, "char_starts"), _taken(row, schema, "char_ends")
    if starts is not None and ends is not None:
        covered = ends > 0
        found["characters"] = [int(starts[covered].min(initial=2**31 - 1)), int(ends.max())] if covered.any() else []
    first, last = _taken(row, schema, "start_position"), _taken(row, schema, "end_position")
    if first is not None and last is not None:
        span = ids[int(first) : int(last) + 1].tolist() if last > 0 else []
        found["answer"] = tokenizer.decode(span, clean_up_tokenization_spaces=False).strip()
    return found


def _taken(row: dict[str, np.ndarray], schema: Schema, role: Role) -> np.ndarray | None:
    feature = schema.with_role(role)
    return None if feature is None else row.pop(feature.name)
