"""Special tokens and truncation: make rows from the tokens of texts.

A fast tokenizer adds the same special tokens to each text or pair. `longest_first` follows the tokenizers library
(utils/truncation.rs): the longer text is cut to the other's length, then both are cut. If the room is odd, the extra
token stays in the longer text, or in the second of equally long texts.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.prepare.options.config import Side, Truncation
from pipelines.prepare.options.layout_config import SpecialTokens
from pipelines.prepare.tokenize.engines import BATTERY, HFTokenizer
from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from tfrecord_io.codec.kernels import jit
from tfrecord_io.errors import ConfigError, TokenizerError
from tfrecord_io.shown import some


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowTemplate:
    """Special tokens that a tokenizer adds to every row of one or two texts.

    `added`: ids before, between and after the texts. `added_types`: their type ids. `text_types`: each text's type id.
    """

    added: tuple[tuple[int, ...], ...]
    added_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @property
    def num_special(self) -> int:
        return sum(map(len, self.added))

    @property
    def only_type(self) -> int | None:
        """The type id of all tokens; None if there are several."""
        types = {*self.text_types, *itertools.chain.from_iterable(self.added_types)}
        return types.pop() if len(types) == 1 else None


def probe(backend: Any, *, pair: bool) -> RowTemplate | None:
    """Return the special tokens that a `tokenizers.Tokenizer` adds to a text, or to a pair; None if they vary."""
    texts = ("a b", "c d")[: 1 + pair]
    whole = backend.encode(*texts)
    added, added_types, text_types = [()], [()], list[int]()
    for text, group in itertools.groupby(range(len(whole.ids)), key=whole.sequence_ids.__getitem__):
        places = list(group)
        ids, types = (tuple(values[place] for place in places) for values in (whole.ids, whole.type_ids))
        if text is None and all(whole.special_tokens_mask[place] for place in places):
            added[-1], added_types[-1] = ids, types
        elif (
            text is not None
            and text == len(text_types)
            and list(ids) == backend.encode(texts[text], add_special_tokens=False).ids
        ):
            text_types.append(types[0])
            added.append(())
            added_types.append(())
        else:
            return None
    if len(text_types) < len(texts):
        return None
    return RowTemplate(added=tuple(added), added_types=tuple(added_types), text_types=tuple(text_types))


def require_room(
    tokenizer: HFTokenizer, *, length: int, pair: bool, option: str = "--max-length", of: str = "row"
) -> int:
    """Return the number of special tokens in a row. Raises: ConfigError if they leave no room for text in `length`.

    `option`, `of`: the name of the option that sets `length`, and of a row, for the error message.
    """
    special = int(tokenizer.num_special_tokens_to_add(pair=pair))
    if length <= special:
        raise ConfigError(
            f"{option} {length} leaves no room for text: each {of} has {some(special, 'special token')}",
            remedy=f"give {option} {special + 1} or more",
        )
    return special


def kept_lengths(
    lengths: Sequence[np.ndarray], *, room: int, truncation: Truncation
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return how many tokens truncation keeps of each text, and a mask of rows that it cannot truncate, bool [N].

    `lengths`: the tokens of the first text, and optionally of the second text, int64 [N] each. `room`: maximum number
    of text tokens in a row.
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
    texts: Sequence[RaggedTokens], kept: Sequence[np.ndarray], template: RowTemplate, *, side: Side
) -> tuple[RaggedTokens, np.ndarray]:
    """Join texts and special tokens into rows. Return the rows and the type ids of all tokens, uint8 [T].

    `kept`: for each text of a row, the tokens to keep, int64 [N]; the text is cut on `side`.
    """
    offsets = offsets_of(np.sum(kept, axis=0) + template.num_special)
    ids = np.empty(int(offsets[-1]), texts[0].ids.dtype)
    types = np.empty(len(ids), np.uint8)
    at = offsets[:-1].copy()
    for index, (added, added_types) in enumerate(zip(template.added, template.added_types, strict=True)):
        places = at[:, None] + np.arange(len(added))
        ids[places], types[places] = added, added_types
        at += len(added)
        if index < len(texts):
            text, kind = texts[index], template.text_types[index]
            _write_text(ids, types, at, text.ids, text.offsets, kept[index], side == "left", kind)
    return RaggedTokens(ids, offsets), types


@jit
def _write_text(ids, types, at, source, offsets, kept, from_left, kind):  # type: ignore[no-untyped-def]
    for row in range(len(at)):
        start, to = np.uint64(offsets[row + 1] - kept[row] if from_left else offsets[row]), np.uint64(at[row])
        for position in range(np.uint64(kept[row])):
            ids[to + np.uint64(position)] = source[start + np.uint64(position)]
            types[to + np.uint64(position)] = kind
        at[row] += kept[row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentFrame:
    """Ids of the special tokens that `concat` and `pack` put around each document, unless it already has them."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def open_frame(tokenizer: HFTokenizer, special_tokens: SpecialTokens) -> DocumentFrame:
    """Return the special tokens that --special-tokens puts around each document.

    Raises: TokenizerError if the tokenizer lacks such a token, or does not put the same tokens around every text.
    """
    if special_tokens == "none":
        return DocumentFrame()
    if special_tokens == "tokenizer":
        return _tokenizers_own(tokenizer)
    eos, sep, bos = tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id
    if special_tokens == "bos-eos" and bos is None:
        raise TokenizerError(
            "--special-tokens bos-eos begins documents with a BOS token, but this tokenizer has none",
            remedy="give --special-tokens eos or tokenizer, or set bos_token in its tokenizer_config.json",
        )
    if eos is None and sep is None:
        raise TokenizerError(
            "documents end with an EOS token, but this tokenizer has neither an EOS nor a separator token",
            remedy="give --special-tokens none, set eos_token in its tokenizer_config.json, or choose --layout pad",
        )
    end = int(sep if eos is None else eos)
    return DocumentFrame(before=(int(bos),) if special_tokens == "bos-eos" else (), after=(end,))


def left_out_bos(tokenizer: HFTokenizer, special_tokens: SpecialTokens) -> int | None:
    """Return the id of BOS if the tokenizer begins texts with it and --special-tokens leaves it out, else None.

    A model trained with BOS is much worse without it.
    """
    bos_id = tokenizer.bos_token_id
    if bos_id is None or special_tokens in ("bos-eos", "tokenizer"):
        return None
    return int(bos_id) if tokenizer("a")["input_ids"][:1] == [bos_id] else None


def begin_with(documents: RaggedTokens, tokens: Sequence[int]) -> np.ndarray:
    """Return whether each document begins with `tokens`, bool [N]; all False if `tokens` is empty."""
    return _have(documents, documents.offsets[:-1], tokens)


def end_with(documents: RaggedTokens, tokens: Sequence[int]) -> np.ndarray:
    """Return whether each document ends with `tokens`, bool [N]; all False if `tokens` is empty."""
    return _have(documents, documents.offsets[1:] - len(tokens), tokens)


def _have(documents: RaggedTokens, places: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    have = (documents.lengths >= len(tokens)) & (len(tokens) > 0)
    for index, token in enumerate(tokens):
        rows = np.flatnonzero(have)
        have[rows] = documents.ids[places[rows] + index] == token
    return have


def without_frame(documents: RaggedTokens, frame: DocumentFrame, *arrays: RaggedTokens) -> tuple[RaggedTokens, ...]:
    """Remove the frame's tokens from documents, and the values at the same positions from `arrays`. Return all."""
    begin = len(frame.before) * begin_with(documents, frame.before)
    # If BOS and EOS are the same token, a document of just that token loses it only once.
    end = len(frame.after) * (end_with(documents, frame.after) & (documents.lengths >= begin + len(frame.after)))
    if not (begin.any() or end.any()):
        return documents, *arrays
    return tuple(ragged.part(begin, documents.lengths - begin - end) for ragged in (documents, *arrays))


def framed(documents: RaggedTokens, frame: DocumentFrame) -> RaggedTokens:
    """Put the frame's tokens before and after every document."""
    added = frame.before, frame.after
    template = RowTemplate(added=added, added_types=tuple((0,) * len(ids) for ids in added), text_types=(0,))
    return assemble([documents], [documents.lengths], template, side="right")[0]


def _tokenizers_own(tokenizer: HFTokenizer) -> DocumentFrame:
    own = tokenizer("a b", add_special_tokens=False)["input_ids"]
    encoded = tokenizer("a b", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    start = special.index(0) if 0 in special else len(ids)
    frame = DocumentFrame(before=tuple(ids[:start]), after=tuple(ids[start + len(own) :]))
    for text in ("a b", "", *BATTERY):
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        if tokenizer(text)["input_ids"] != [*frame.before, *own, *frame.after]:
            raise TokenizerError(
                "--special-tokens tokenizer: this tokenizer does not put the same tokens around every text",
                remedy="give --special-tokens eos, bos-eos or none, or choose --layout pad",
            )
    return frame
