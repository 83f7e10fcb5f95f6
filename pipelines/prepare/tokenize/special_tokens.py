"""Special tokens and truncation, as arrays: from the tokens of texts to whole rows.

A fast tokenizer adds fixed tokens to one text or to a pair:

    one text    prefix A suffix                  [CLS] A [SEP]
    a pair      prefix A middle B suffix         [CLS] A [SEP] B [SEP]

`probe` finds the three pieces, and the token type ids of every part, by calling the tokenizer. For a tokenizer that
does not work like this it returns None, and `transformers` makes its rows (`text_rows.ReferenceRows`).

The rule for `longest_first` is that of the tokenizers library (utils/truncation.rs), odd lengths included: the longer
text gives way until both are equal, then both shrink, the first being the shorter one by the odd token unless it was
longer to begin with.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.prepare.options.config import Side, Truncation
from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from tfrecord_io.codec.kernels import jit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """The fixed parts of a row and their type ids. For one text, `second_type` is None and `middle` is empty."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    prefix_types: tuple[int, ...]
    middle_types: tuple[int, ...]
    suffix_types: tuple[int, ...]
    first_type: int
    second_type: int | None

    @property
    def num_special(self) -> int:
        """Number of tokens that every row has besides those of its texts."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    @property
    def type_ids(self) -> frozenset[int]:
        """The token type ids that occur in a row."""
        second = () if self.second_type is None else (self.second_type,)
        return frozenset((*self.prefix_types, self.first_type, *self.middle_types, *second, *self.suffix_types))


def probe(backend: Any, *, pair: bool) -> Template | None:
    """Return the template of a `tokenizers.Tokenizer`, or None if the tokens that it adds are not of that form."""
    first, second = "a b", "c d"
    parts = [backend.encode(text, add_special_tokens=False).ids for text in ([first, second] if pair else [first])]
    whole = backend.encode(first, second) if pair else backend.encode(first)
    ids, types = list(whole.ids), list(whole.type_ids)
    starts = _positions(ids, list(whole.special_tokens_mask), parts)
    if starts is None:
        return None
    spans = [(start, start + len(part)) for start, part in zip(starts, parts, strict=True)]
    part_types = [set(types[start:stop]) for start, stop in spans]
    if any(len(kinds) != 1 for kinds in part_types):
        return None
    edges = [0, *(edge for span in spans for edge in span), len(ids)]
    gaps = [slice(edges[index], edges[index + 1]) for index in range(0, len(edges), 2)]
    middle = gaps[1] if pair else slice(0, 0)
    return Template(
        prefix=tuple(ids[gaps[0]]),
        middle=tuple(ids[middle]),
        suffix=tuple(ids[gaps[-1]]),
        prefix_types=tuple(types[gaps[0]]),
        middle_types=tuple(types[middle]),
        suffix_types=tuple(types[gaps[-1]]),
        first_type=part_types[0].pop(),
        second_type=part_types[1].pop() if pair else None,
    )


def _positions(ids: list[int], special: list[int], parts: list[list[int]]) -> list[int] | None:
    """Return the position of each part in `ids`; None unless everything around the parts is marked as added."""
    starts: list[int] = []
    at = 0
    for part in parts:
        while at < len(ids) and special[at]:
            at += 1
        if not part or ids[at : at + len(part)] != part or any(special[at : at + len(part)]):
            return None
        starts.append(at)
        at += len(part)
    return starts if all(special[at:]) else None


def kept_lengths(
    lengths: Sequence[np.ndarray], *, room: int, truncation: Truncation
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return how many tokens of each text stay in a row with `room` for text, and which rows are impossible (bool [N]).

    `lengths` is int64 [N] for each of one or two texts.
    """
    total = np.sum(lengths, axis=0)
    over = total > room
    kept = [np.array(length) for length in lengths]
    impossible = np.zeros(len(total), bool)
    if truncation == "do_not_truncate":
        impossible = over
    elif truncation == "longest_first":
        halves = _halve(kept[0], kept[1], room) if len(kept) == 2 else [np.full_like(total, room)]
        kept = [np.where(over, half, length) for half, length in zip(halves, kept, strict=True)]
    else:
        target = 0 if truncation == "only_first" else 1
        left = kept[target] - (total - room)
        impossible = over & (left <= 0)
        kept[target] = np.where(over, left, kept[target])
    return [np.where(impossible, 0, length) for length in kept], impossible


def _halve(first: np.ndarray, second: np.ndarray, room: int) -> list[np.ndarray]:
    swapped = first > second
    short, long = np.minimum(first, second), np.maximum(first, second)
    long = np.where(short > room, short, np.maximum(short, room - short))
    both = short + long > room
    short, long = np.where(both, room // 2, short), np.where(both, room // 2 + room % 2, long)
    return [np.where(swapped, long, short), np.where(swapped, short, long)]


def assemble(
    texts: Sequence[RaggedTokens], kept: Sequence[np.ndarray], template: Template, *, side: Side
) -> tuple[RaggedTokens, np.ndarray]:
    """Return whole rows without padding, and their type ids uint8 [T]. Texts lose tokens on `side`."""
    offsets = offsets_of(np.sum(kept, axis=0) + template.num_special)
    ids = np.empty(int(offsets[-1]), texts[0].ids.dtype)
    types = np.empty(len(ids), np.uint8)
    at = offsets[:-1].copy()
    _write_constant(ids, types, at, *_piece(template.prefix, template.prefix_types, ids.dtype))
    _write_text(ids, types, at, texts[0].ids, texts[0].offsets, kept[0], side == "left", template.first_type)
    if template.second_type is not None:
        _write_constant(ids, types, at, *_piece(template.middle, template.middle_types, ids.dtype))
        _write_text(ids, types, at, texts[1].ids, texts[1].offsets, kept[1], side == "left", template.second_type)
    _write_constant(ids, types, at, *_piece(template.suffix, template.suffix_types, ids.dtype))
    return RaggedTokens(ids, offsets), types


def _piece(ids: tuple[int, ...], types: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, dtype), np.array(types, np.uint8)


@jit
def _write_constant(ids, types, at, piece, piece_types):  # type: ignore[no-untyped-def]
    for row in range(len(at)):
        for position in range(len(piece)):
            ids[at[row] + position] = piece[position]
            types[at[row] + position] = piece_types[position]
        at[row] += len(piece)


@jit
def _write_text(ids, types, at, source, offsets, kept, from_left, kind):  # type: ignore[no-untyped-def]
    for row in range(len(at)):
        # Unsigned, or whether they count from the end would be tested for each token.
        start, to = np.uint64(offsets[row + 1] - kept[row] if from_left else offsets[row]), np.uint64(at[row])
        for position in range(np.uint64(kept[row])):
            ids[to + np.uint64(position)] = source[start + np.uint64(position)]
            types[to + np.uint64(position)] = kind
        at[row] += kept[row]
