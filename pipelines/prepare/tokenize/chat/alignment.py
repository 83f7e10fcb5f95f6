"""Loss masks of rendered conversations: a token is learned if one of its characters is.

Engines give ids, no places. But what a token stands for is known, and in most tokenizers it is so many bytes: walking
along the text, each token must be the bytes that come next, and the last one must end where the text ends. So a row is
proved to be aligned while it is masked, at the speed of a comparison.

    text     <|im_start|> a s s i s t a n t ⏎ y e s <|im_end|>       bytes of "yes<|im_end|>" are to be learned
    tokens   <|im_start|>|assistant|⏎|yes|<|im_end|>                 0 0 0 1 1

Two things don't stand in the text: a space that SentencePiece's tokenizers put before a text, or before whatever
follows an added token; and white space that an added token swallows. Rows in which tokens are something else (text
that the tokenizer normalises, unknown letters) come from the Rust tokenizer, which reports places, but takes ten times
as long.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import pre_tokenizers

from pipelines.prepare.tokenize.chat.template import Texts
from pipelines.prepare.tokenize.engines import copy_backend
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged, from_lists
from tfrecord_io.codec.kernels import jit, load

__all__ = ["SPACES", "Aligner", "after_spaces"]

_ADDED, _TAKES_BEFORE, _TAKES_AFTER = 1, 2, 4
_WORD = 8
# Where a space may have been put before a token: nowhere, where a piece of text begins, where the whole text does.
_MODES = (0, 1, 2)
# Whether each character up to the last white space of Unicode is one, as `str.strip` has it.
SPACES = np.array([chr(point).isspace() for point in range(0x3001)])


class Aligner:
    """Computes loss masks for the tokens of one fast tokenizer."""

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self._backend = copy_backend(tokenizer)
        # It leaves the ids as they are here, but cuts spaces off the places that are reported.
        self._backend.post_processor = None
        self._dtype = dtype
        self._pieces, self._edges, self._kinds = _table(self._backend)

    def align(self, runs: RaggedTokens, texts: Texts) -> tuple[RaggedTokens, np.ndarray]:
        """Return the tokens of each text, and which of them are to be learned, uint8 [T].

        The tokens are `runs`, but for texts that only the Rust tokenizer can place.
        """
        mask = np.zeros(len(runs.ids), np.uint8)
        placed = np.zeros(len(runs), np.uint8)
        for mode in _MODES:
            _walk(
                runs.ids, runs.offsets, texts.data, texts.edges, texts.spans,
                self._pieces, self._edges, self._kinds, SPACES, mode, mask, placed,
            )  # fmt: skip
            if placed.all():
                return runs, mask
        return self._with_reported(runs, mask, texts, np.flatnonzero(placed == 0))

    def _with_reported(
        self, runs: RaggedTokens, mask: np.ndarray, texts: Texts, rows: np.ndarray
    ) -> tuple[RaggedTokens, np.ndarray]:
        strings = texts.strings.take(pa.array(rows)).to_pylist()
        encodings = self._backend.encode_batch(strings, add_special_tokens=False)
        known = from_lists([encoding.ids for encoding in encodings], dtype=self._dtype)
        learned = map(texts.learned_letters, rows)
        known_mask = [_reported(encoding, letters) for encoding, letters in zip(encodings, learned, strict=True)]
        masks = RaggedTokens(np.concatenate(known_mask), known.offsets)
        return exchanged(runs, rows, known), exchanged(RaggedTokens(mask, runs.offsets), rows, masks).ids


def _reported(encoding: Any, learned: np.ndarray) -> np.ndarray:
    """Return one text's loss mask, uint8 [T], from the offsets that the Rust tokenizer reports."""
    places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    before = np.concatenate([[0], np.cumsum(learned)])
    stops = np.minimum(np.maximum(places[:, 1], places[:, 0] + 1), len(learned))
    return np.asarray(before[stops] > before[np.minimum(places[:, 0], stops)], np.uint8)


def _table(backend: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each id stands for, as bytes one after the other (and 8 bytes more) and their edges; and what kind of token
    it is, uint8.
    """
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    size = max([*vocabulary.values(), *added], default=0) + 1
    read = _reading(backend)
    pieces = [b""] * size
    for token, number in vocabulary.items():
        pieces[number] = read(token)
    kinds = np.zeros(size, np.uint8)
    for number, token in added.items():
        pieces[number] = token.content.encode()
        kinds[number] = _ADDED | (_TAKES_BEFORE if token.lstrip else 0) | (_TAKES_AFTER if token.rstrip else 0)
    edges = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    return np.frombuffer(bytearray(b"".join(pieces)) + bytes(_WORD), np.uint8), edges, kinds


def _reading(backend: Any) -> Any:
    """Return a function from a token of the vocabulary to its bytes. If it is wrong, no row is aligned."""
    parts = json.loads(backend.to_str())
    around = json.dumps([parts["pre_tokenizer"], parts["decoder"]])
    if '"ByteLevel"' not in around:
        return _of_sentence_piece
    letters = {letter: byte for byte, letter in _alphabet().items()}

    def of_bytes(token: str) -> bytes:
        return bytes(letters.get(letter, 0) for letter in token)

    return of_bytes


def _of_sentence_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode()


def _alphabet() -> dict[int, str]:
    """Return the letter of each byte in byte-level BPE: printable bytes stand for themselves, others from U+0100 on."""
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    alphabet = {byte: chr(byte) for byte in range(256) if chr(byte) in letters}
    others = (byte for byte in range(256) if byte not in alphabet)
    return {**alphabet, **{byte: chr(0x100 + place) for place, byte in enumerate(others)}}


@jit
def _walk(  # type: ignore[no-untyped-def]
    ids, offsets, data, edges, spans, pieces, piece_edges, kinds, spaces, mode, mask, placed
):
    """Align the rows that are not aligned yet and can be in this mode: write their masks, and mark them as aligned."""
    span = 0
    for row in range(len(edges) - 1):
        if placed[row]:
            continue
        at, end = edges[row], edges[row + 1]
        begins, fits = True, True
        for token in range(offsets[row], offsets[row + 1]):
            number = ids[token]
            if number + 1 >= len(piece_edges):
                fits = False
                break
            first, last, kind = piece_edges[number], piece_edges[number + 1], kinds[number]
            start = at
            if kind & _TAKES_BEFORE:
                at = after_spaces(data, at, end, spaces)
            may_drop = begins and (mode == 1 or (mode == 2 and at == edges[row])) and last > first
            if may_drop and pieces[first] == 32 and _stands(data, at, end, pieces, first + 1, last):
                at += last - first - 1
            elif last > first and _stands(data, at, end, pieces, first, last):
                at += last - first
            else:
                fits = False
                break
            if kind & _TAKES_AFTER:
                at = after_spaces(data, at, end, spaces)
            begins = kind & _ADDED != 0
            while span < len(spans) and spans[span, 1] <= start:
                span += 1
            stop = at if at > start else min(at + 1, end)
            mask[token] = span < len(spans) and spans[span, 0] < stop
        placed[row] = fits and at == end


@jit
def _stands(data, at, end, pieces, first, last):  # type: ignore[no-untyped-def]
    """Return whether data[at:end] begins with pieces[first:last], which 8 readable bytes follow."""
    size = last - first
    if end - at < size:
        return False
    # Eight bytes at a time: most tokens have fewer, and loops of a few turns each cost a wrong guess of the processor.
    while at + 8 <= len(data):
        differ = load(data, at) ^ load(pieces, first)
        if size <= 8:
            return differ << np.uint64(64 - 8 * size) == 0
        if differ != 0:
            return False
        at, first, size = at + 8, first + 8, size - 8
    while size > 0 and data[at] == pieces[first]:
        at, first, size = at + 1, first + 1, size - 1
    return size == 0


@jit
def after_spaces(data, at, end, spaces):  # type: ignore[no-untyped-def]
    """Return the position of the first non-white character in data[at:end], or `end`. `spaces` is `SPACES`."""
    while at < end:
        lead = data[at]
        if lead < 0xC0:
            size, point = 1, np.int64(lead)
        elif lead < 0xE0:
            size, point = 2, np.int64(lead & 31) << 6 | np.int64(data[at + 1] & 63)
        elif lead < 0xF0:
            size = 3
            point = np.int64(lead & 15) << 12 | np.int64(data[at + 1] & 63) << 6 | np.int64(data[at + 2] & 63)
        else:
            return at
        if point >= len(spaces) or not spaces[point]:
            return at
        at += size
    return at
