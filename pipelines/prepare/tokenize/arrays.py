"""From ragged tokens to arrays [N, L] of a fixed shape.

    pad      one row, one example                  [CLS] a b [SEP] . . .      mask 1 1 1 1 0 0 0
    concat   documents joined, then cut at L       a b c </s> d | e </s> f g </s> | h i </s> . .

`.` is padding. In `concat` only the last block of a shard is padded; `num_tokens` counts the other tokens of a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.document_frames import DocumentFrame
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.codec.kernels import jit
from tfrecord_io.errors import SchemaError

__all__ = ["cut", "filled", "join", "marked", "pad"]


def pad(
    rows: RaggedTokens,
    types: np.ndarray | None,
    *,
    length: int,
    pad_id: int,
    pad_type: int,
    side: Side,
    order: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Lay out the sequences with the indices `order` (default: all) as one row each, padded on `side`.

    Returns: input_ids int32 [N, length]; attention_mask int8 [N, length], 1 on tokens; token_type_ids uint8 [N, length]
    if `types` (uint8, one for each token of `rows`) is given.
    Raises: SchemaError if a sequence is longer than `length`; truncate before.
    """
    ids = filled(rows, length=length, value=pad_id, side=side, dtype=np.int32, order=order)
    laid_out = {"input_ids": ids, "attention_mask": marked(rows, length=length, side=side, order=order)}
    if types is not None:
        ragged = RaggedTokens(types, rows.offsets)
        laid_out["token_type_ids"] = filled(
            ragged, length=length, value=pad_type, side=side, dtype=np.uint8, order=order
        )
    return laid_out


def filled(
    ragged: RaggedTokens, *, length: int, value: int, side: Side, dtype: DTypeLike, order: np.ndarray | None = None
) -> np.ndarray:
    """Return the sequences with the indices `order` (default: all) as rows filled up with `value` on `side`.

    Returns: `dtype` [N, length]. Raises: SchemaError if a sequence is longer than `length`.
    """
    chosen = _chosen(ragged, order, length=length)
    out = np.empty((len(chosen), length), dtype)
    _place(out, ragged.ids, ragged.offsets, chosen, side == "left", value)
    return out


def marked(ragged: RaggedTokens, *, length: int, side: Side, order: np.ndarray | None = None) -> np.ndarray:
    """Return int8 [N, length]: 1 where `filled` puts a sequence, else 0. Raises: as `filled`."""
    lengths = ragged.lengths[_chosen(ragged, order, length=length)].astype(np.int32)[:, None]
    positions = np.arange(length, dtype=np.int32)
    return (positions >= length - lengths if side == "left" else positions < lengths).view(np.int8)


def join(documents: RaggedTokens, *, frame: DocumentFrame, order: np.ndarray | None = None) -> np.ndarray:
    """Join the documents with the indices `order` (default: all), each in its `frame`, to one int32 vector."""
    chosen = np.arange(len(documents)) if order is None else order
    num_tokens = int((documents.offsets[chosen + 1] - documents.offsets[chosen]).sum())
    out = np.empty(num_tokens + frame.num_tokens * len(chosen), np.int32)
    before, after = np.array(frame.before, np.int32), np.array(frame.after, np.int32)
    _join(documents.ids, documents.offsets, chosen, before, after, out)
    return out


def cut(tokens: np.ndarray, *, length: int, pad_id: int) -> dict[str, np.ndarray]:
    """Cut tokens into blocks of `length`, the last one padded on the right.

    Returns: input_ids int32 [N, length]; num_tokens int32 [N], `length` in all blocks except possibly the last.
    """
    count = -(-len(tokens) // length)
    ids = np.full(count * length, pad_id, np.int32)
    ids[: len(tokens)] = tokens
    num_tokens = np.full(count, length, np.int32)
    if count:
        num_tokens[-1] = len(tokens) - (count - 1) * length
    return {"input_ids": ids.reshape(count, length), "num_tokens": num_tokens}


def _chosen(ragged: RaggedTokens, order: np.ndarray | None, *, length: int) -> np.ndarray:
    chosen = np.arange(len(ragged)) if order is None else order
    longest = int((ragged.offsets[chosen + 1] - ragged.offsets[chosen]).max(initial=0))
    if longest > length:
        raise SchemaError(f"a row of {longest} tokens, expected at most {length}")
    return chosen


# Indices are unsigned: for a signed one, each access tests whether it counts from the end, which takes several times as
# long as copying the element (measured).
@jit
def _place(out, values, offsets, order, left, fill):  # type: ignore[no-untyped-def]
    """Copy each sequence of `order` into a row, and `fill` into the rest of it."""
    length = np.uint64(out.shape[1])
    for row in range(len(order)):
        start, size = np.uint64(offsets[order[row]]), np.uint64(offsets[order[row] + 1] - offsets[order[row]])
        at = length - size if left else np.uint64(0)
        line = out[row]
        for position in range(at):
            line[np.uint64(position)] = fill
        for position in range(size):
            line[at + np.uint64(position)] = values[start + np.uint64(position)]
        for position in range(at + size, length):
            line[np.uint64(position)] = fill


@jit
def _join(ids, offsets, order, before, after, out):  # type: ignore[no-untyped-def]
    at = np.uint64(0)
    for index in range(len(order)):
        for token in before:
            out[at] = token
            at += np.uint64(1)
        start, size = np.uint64(offsets[order[index]]), np.uint64(offsets[order[index] + 1] - offsets[order[index]])
        for position in range(size):
            out[at + np.uint64(position)] = ids[start + np.uint64(position)]
        at += size
        for token in after:
            out[at] = token
            at += np.uint64(1)
