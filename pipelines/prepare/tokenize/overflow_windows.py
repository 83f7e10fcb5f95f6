"""Cuts long texts into windows: rows of at most L tokens, neighbours sharing S, with each token's characters.

    tokens of a text   a b c d e f g        L = 6 with [CLS] and [SEP], S = 2
    windows            [CLS] a b c d [SEP]    [CLS] c d e f [SEP]    [CLS] e f g [SEP]

That is `tokenizer(text, truncation=True, max_length=L, stride=S, return_overflowing_tokens=True,
return_offsets_mapping=True)`; each window of a pair has the whole first text (`truncation="only_second"`). With
`truncation_side` left the windows start from the text's end. The `tokenizers` library itself cuts the windows, since
only it knows the characters of a token; they are compared with those of the tokenizer when it is opened.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from pipelines.prepare.tokenize.engines import BATTERY, HuggingFaceEngine, copy_backend, open_reference
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from pipelines.prepare.tokenize.text_rows import require_room
from tfrecord_io.errors import ConfigError, TokenizerError

_SOME_ROOM = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedWindows:
    """N rows in W windows with T tokens.

    `ids`: one sequence for each window. `types`: uint8 [T], None if the tokenizer has no type ids.
    `owners`: int64 [W], the windows' rows, ascending. `impossible`: bool [N], rows that cannot be cut and have no
    window. `first`, `count`: int64 [W], the tokens of the text that is cut (a pair's second) are [first, first +
    count). `starts`, `ends`: int32 [T], the characters of those tokens, 0 on all others. `full_lengths`: int64 [N], the
    tokens of a row without windows.
    """

    ids: RaggedTokens
    owners: np.ndarray
    types: np.ndarray | None
    starts: np.ndarray
    ends: np.ndarray
    first: np.ndarray
    count: np.ndarray
    full_lengths: np.ndarray
    impossible: np.ndarray


class WindowEncoder:
    """Cuts texts, or the second texts of pairs, into windows."""

    name = "hf"
    concurrent = True

    def __init__(self, tokenizer: Any, *, length: int, stride: int, pair: bool, dtype: np.dtype) -> None:
        """Open an encoder for windows of `length` tokens that share `stride` tokens.

        Raises: ConfigError if windows would not advance, or have no room for text; TokenizerError if the tokenizer does
            not report characters.
        """
        self.version = metadata.version("tokenizers")
        self._special = require_room(tokenizer, length=length, pair=pair)
        if stride >= length - self._special:
            raise ConfigError(
                f"--stride {stride} with --max-length {length}, of which {self._special} positions are special tokens: "
                "the next window would begin where the last one did",
                remedy=f"give at most {length - self._special - 1}",
            )
        if not isinstance(open_reference(tokenizer, dtype=dtype), HuggingFaceEngine):
            raise _no_characters(tokenizer)
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self._pair = pair
        self._dtype = dtype
        self._length, self._stride = length, stride
        self._whole, self._backend = copy_backend(tokenizer), copy_backend(tokenizer)
        strategy, side = "only_second" if pair else "longest_first", tokenizer.truncation_side
        self._backend.enable_truncation(max_length=length, stride=stride, strategy=strategy, direction=side)

    def encode(self, texts: Sequence[list[str]]) -> EncodedWindows:
        """Return the windows of rows of one text, or of two: one list of texts for each column."""
        led = self._lengths(texts[0]) if self._pair else np.zeros(len(texts[0]), np.int64)
        impossible = self._without_room(led, texts[-1])
        possible = np.flatnonzero(~impossible).tolist()
        chosen = [[column[index] for index in possible] for column in texts]
        encodings = self._backend.encode_batch(list(zip(*chosen, strict=True)) if self._pair else chosen[0])
        # Reading `overflowing` copies it, so it is read once.
        parts = [(encoding, *encoding.overflowing) for encoding in encodings]
        owners = np.repeat(np.array(possible, np.int64), [len(part) for part in parts])
        windows = list(itertools.chain.from_iterable(parts))
        ids = from_lists([window.ids for window in windows], dtype=self._dtype)
        first, count = _text_spans([window.sequence_ids for window in windows], sequence=int(self._pair))
        # The first and the end character of each token in its text, int32 [2, T]; 0 on all tokens but the text's.
        pairs = itertools.chain.from_iterable(window.offsets for window in windows)
        characters = np.fromiter(itertools.chain.from_iterable(pairs), np.int32, 2 * len(ids.ids))
        position = np.arange(len(ids.ids)) - np.repeat(ids.offsets[:-1], ids.lengths)
        inside = (position >= np.repeat(first, ids.lengths)) & (position < np.repeat(first + count, ids.lengths))
        starts, ends = np.ascontiguousarray(characters.reshape(-1, 2).T) * inside
        types = from_lists([window.type_ids for window in windows], dtype=np.dtype(np.uint8)).ids
        # Each further window repeats special tokens, the first text and S tokens.
        total = np.bincount(owners, weights=ids.lengths, minlength=len(led)).astype(np.int64)
        repeated = np.maximum(np.bincount(owners, minlength=len(led)) - 1, 0)
        return EncodedWindows(
            ids=ids,
            owners=owners,
            types=types if self._has_types else None,
            starts=starts,
            ends=ends,
            first=first,
            count=count,
            full_lengths=np.asarray(total - repeated * (self._special + led + self._stride)),
            impossible=impossible,
        )

    def _lengths(self, texts: list[str]) -> np.ndarray:
        encodings = self._whole.encode_batch_fast(texts, add_special_tokens=False)
        return np.fromiter(map(len, encodings), np.int64, len(texts))

    def _without_room(self, led: np.ndarray, texts: list[str]) -> np.ndarray:
        """Return the rows whose second text does not fit in so little room that windows would not advance, bool [N]."""
        room = self._length - self._special - led
        narrow = np.flatnonzero(room <= self._stride)
        impossible = np.zeros(len(led), bool)
        if len(narrow):
            impossible[narrow] = self._lengths([texts[index] for index in narrow.tolist()]) > room[narrow]
        return impossible


def open_windows(tokenizer: Any, *, length: int, stride: int, pair: bool, dtype: np.dtype) -> WindowEncoder:
    """Open an encoder whose windows were compared with those of the tokenizer itself.

    Raises: TokenizerError if they differ; otherwise as `WindowEncoder`.
    """
    encoder = WindowEncoder(tokenizer, length=length, stride=stride, pair=pair, dtype=dtype)
    tried = int(tokenizer.num_special_tokens_to_add(pair=pair)) + _SOME_ROOM + pair
    texts = [["x"] * len(BATTERY), list(BATTERY)] if pair else [list(BATTERY)]
    got = WindowEncoder(tokenizer, length=tried, stride=_SOME_ROOM // 3, pair=pair, dtype=dtype).encode(texts)
    expected = tokenizer(
        *texts,
        truncation="only_second" if pair else True,
        max_length=tried,
        stride=_SOME_ROOM // 3,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        verbose=False,
    )
    offsets = [
        tuple(offset) if sequence == pair else (0, 0)
        for window, row in enumerate(expected["offset_mapping"])
        for offset, sequence in zip(row, expected.sequence_ids(window), strict=True)
    ]
    if (
        got.ids.ids.tolist() != list(itertools.chain.from_iterable(expected["input_ids"]))
        or got.owners.tolist() != expected["overflow_to_sample_mapping"]
        or list(zip(got.starts.tolist(), got.ends.tolist(), strict=True)) != offsets
    ):
        raise _no_characters(tokenizer)
    return encoder


def _no_characters(tokenizer: Any) -> TokenizerError:
    return TokenizerError(
        f"windows need the characters of each token, which a {type(tokenizer).__name__} does not report as the "
        "tokenizers library does",
        remedy="use a fast tokenizer, one with a tokenizer.json, or leave --stride out",
    )


def _text_spans(sequence_ids: Sequence[list[int | None]], *, sequence: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the tokens of a text begin in each window and how many there are, int64 [W] each."""
    counts = [ids.count(sequence) for ids in sequence_ids]
    firsts = [ids.index(sequence) if count else 0 for ids, count in zip(sequence_ids, counts, strict=True)]
    return np.array(firsts, np.int64), np.array(counts, np.int64)
