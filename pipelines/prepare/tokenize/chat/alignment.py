"""Loss masks of rendered conversations: a token is learned if it contains a learned character and no skipped one.

Engines do not report the positions of tokens in a text. But in most tokenizers a token has fixed bytes, so a walk along
the text finds the positions: each token's bytes must be the next bytes of the text.

    text     <|im_start|> a s s i s t a n t ⏎ y e s <|im_end|>       learned bytes: "yes<|im_end|>"
    tokens   <|im_start|>|assistant|⏎|yes|<|im_end|>                 0 0 0 1 1

The walk allows for spaces that SentencePiece adds before a text or after an added token, and for an added token's white
space. If the walk fails, the Rust tokenizer encodes the text. It reports positions, but takes ten times as long.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import pre_tokenizers

from pipelines.prepare.tokenize.chat.template import Texts
from pipelines.prepare.tokenize.engines import HFTokenizer, copy_backend
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged, from_lists, offsets_of
from tfrecord_io.codec.kernels import jit, load

_ADDED, _TAKES_BEFORE, _TAKES_AFTER = 1, 2, 4


class Aligner:
    """Makes loss masks for the tokens of rendered conversations."""

    def __init__(self, tokenizer: HFTokenizer, *, dtype: np.dtype) -> None:
        self._backend = copy_backend(tokenizer)
        # Without special tokens, the post-processor changes no ids, but removes spaces from offsets.
        self._backend.post_processor = None
        self._dtype = dtype
        self._pieces, self._edges, self._kinds = _table(self._backend)

    def align(self, runs: RaggedTokens, texts: Texts) -> tuple[RaggedTokens, np.ndarray]:
        """Return the tokens of each text, and a loss mask for all T tokens, uint8 [T]: 1 for learned tokens.

        `runs`: the texts' tokens from an engine. They stay, except in texts that only the Rust tokenizer can align.
        """
        runs, mask = self._aligned(runs, texts)
        if len(texts.skipped):
            mask &= self._aligned(runs, dataclasses.replace(texts, spans=texts.skipped))[1] ^ 1
        return runs, mask

    def _aligned(self, runs: RaggedTokens, texts: Texts) -> tuple[RaggedTokens, np.ndarray]:
        mask = np.zeros(len(runs.ids), np.uint8)
        placed = np.zeros(len(runs), np.uint8)
        # Modes: a space is added nowhere, before each text between added tokens, or before the whole text.
        for mode in range(3):
            _walk(
                runs.ids, runs.offsets, texts.data, texts.edges, texts.spans,
                self._pieces, self._edges, self._kinds, mode, mask, placed,
            )  # fmt: skip
            if placed.all():
                return runs, mask
        return self._with_reported(runs, mask, texts, np.flatnonzero(placed == 0))

    def _with_reported(
        self, runs: RaggedTokens, mask: np.ndarray, texts: Texts, rows: np.ndarray
    ) -> tuple[RaggedTokens, np.ndarray]:
        encodings = self._backend.encode_batch(texts.strings.take(pa.array(rows)).to_pylist(), add_special_tokens=False)
        known = from_lists([encoding.ids for encoding in encodings], dtype=self._dtype)
        known_mask = [
            _reported(encoding, texts.learned_letters(row)) for encoding, row in zip(encodings, rows, strict=True)
        ]
        masks = RaggedTokens(np.concatenate(known_mask), known.offsets)
        return exchanged(runs, rows, known), exchanged(RaggedTokens(mask, runs.offsets), rows, masks).ids


def _reported(encoding: Any, learned: np.ndarray) -> np.ndarray:
    places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    before = np.concatenate([[0], np.cumsum(learned)])
    stops = np.minimum(np.maximum(places[:, 1], places[:, 0] + 1), len(learned))
    return np.asarray(before[stops] > before[np.minimum(places[:, 0], stops)], np.uint8)


def _table(backend: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # Returns the joined bytes of all tokens, plus 8 zero bytes; each token's offsets in them; and each token's kind.
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
    return (
        np.frombuffer(b"".join(pieces) + bytes(8), np.uint8),
        offsets_of(np.array([len(piece) for piece in pieces])),
        kinds,
    )


def _reading(backend: Any) -> Callable[[str], bytes]:
    # With a wrong choice, the walk would fail on every text.
    parts = json.loads(backend.to_str())
    if '"ByteLevel"' not in json.dumps([parts["pre_tokenizer"], parts["decoder"]]):
        return _of_sentence_piece
    printable = [byte for byte in range(256) if chr(byte) in pre_tokenizers.ByteLevel.alphabet()]
    unprintable = (byte for byte in range(256) if byte not in printable)
    bytes_of = {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(unprintable)}
    return lambda token: bytes(bytes_of.get(letter, 0) for letter in token)


def _of_sentence_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode()


@jit
def _walk(  # type: ignore[no-untyped-def]
    ids, offsets, data, edges, spans, pieces, piece_edges, kinds, mode, mask, placed
):
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
                at = _after_spaces(data, at, end)
            may_drop = begins and (mode == 1 or (mode == 2 and at == edges[row])) and last > first
            if may_drop and pieces[first] == 32 and _stands(data, at, end, pieces, first + 1, last):
                at += last - first - 1
            elif last > first and _stands(data, at, end, pieces, first, last):
                at += last - first
            else:
                fits = False
                break
            if kind & _TAKES_AFTER:
                at = _after_spaces(data, at, end)
            begins = kind & _ADDED != 0
            while span < len(spans) and spans[span, 1] <= start:
                span += 1
            stop = at if at > start else min(at + 1, end)
            mask[token] = span < len(spans) and spans[span, 0] < stop
        placed[row] = fits and at == end


@jit
def _stands(data, at, end, pieces, first, last):  # type: ignore[no-untyped-def]
    size = last - first
    if 0 < size <= min(8, end - at) and at + 8 <= len(data):  # most tokens
        return (load(data, at) ^ load(pieces, first)) << np.uint64(64 - 8 * size) == 0
    while first < last and at < end and data[at] == pieces[first]:
        at, first = at + 1, first + 1
    return first == last


@jit
def _after_spaces(data, at, end):  # type: ignore[no-untyped-def]
    while at < end and (data[at] == 32 or 9 <= data[at] <= 13):
        at += 1
    return at
