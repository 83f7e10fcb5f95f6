"""From lists of words to the rows that `transformers` makes of them, with the word that each token belongs to.

    words      EU     rejects   German
    ids        [CLS]  EU  re  ##jects  German  [SEP]
    words      -1     0   1   1        2       -1

That is `tokenizer(words, is_split_into_words=True, truncation=..., max_length=L)` with its `word_ids()`. Each word is
tokenized by itself there, whatever precedes it, so `TemplateWords` tokenizes each distinct word of a batch once and
assembles the rows with a template. `open_words` uses it only if it gives the same as the tokenizer itself
(`ReferenceWords`) on a battery of words.

A word without tokens (an empty one, or only control characters) loses its label, as in `transformers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.config import EngineName, Truncation
from pipelines.prepare.sources.columns.labels import list_lengths
from pipelines.prepare.tokenize.engines import BATTERY
from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from pipelines.prepare.tokenize.special_tokens import assemble
from pipelines.prepare.tokenize.text_rows import (
    EncodedRows,
    ReferenceRows,
    RowEncoder,
    TemplateRows,
    opened,
    require_room,
    with_engine,
)
from tfrecord_io.errors import ConfigError, TokenizerError


class TemplateWords(TemplateRows):
    """Encoder that puts an engine's tokens of words into a template of special tokens."""

    def encode(self, columns: Sequence[pa.Array]) -> EncodedRows:
        """Encode a column with lists of words, without nulls. Each distinct word of a batch is tokenized once."""
        (lists,) = columns
        distinct, edges = pc.dictionary_encode(lists.flatten()), offsets_of(list_lengths(lists))
        tokens = self.engine.encode(distinct.dictionary).take(distinct.indices.to_numpy(zero_copy_only=False))
        rows = RaggedTokens(tokens.ids, tokens.offsets[edges])
        encoded, kept = self._assembled([rows])
        index = np.arange(len(tokens), dtype=np.int32) - np.repeat(edges[:-1], np.diff(edges)).astype(np.int32)
        words = RaggedTokens(np.repeat(index, tokens.lengths), rows.offsets)
        prefix, suffix = (-1,) * len(self._template.prefix), (-1,) * len(self._template.suffix)
        no_words = dataclasses.replace(self._template, prefix=prefix, suffix=suffix)
        return dataclasses.replace(encoded, words=assemble([words], kept, no_words, side=self._side)[0].ids)


class ReferenceWords(ReferenceRows):
    """Encoder that calls `tokenizer(words, is_split_into_words=True)` itself."""

    def _tokenized(self, columns: Sequence[list[Any]], options: dict[str, Any]) -> dict[str, Any]:
        if not columns[0]:
            return {"input_ids": [], "token_type_ids": [], "words": []}
        encoded = self._tokenizer(*columns, is_split_into_words=True, **options)
        words = (encoded.word_ids(index) for index in range(len(columns[0])))
        return {**encoded, "words": [[-1 if word is None else word for word in row] for row in words]}


def open_words(
    tokenizer: Any, *, length: int, truncation: Truncation, dtype: np.dtype, wanted: EngineName = "auto"
) -> tuple[RowEncoder, RowEncoder]:
    """Open what makes rows of words: with the engine to use, and with the reference engine.

    Raises: ConfigError if a row of `length` has no room for words, or the engine cannot serve the tokenizer;
        TokenizerError if the tokenizer does not report the words of tokens, or refuses lists of words.
    """
    require_room(tokenizer, length=length, pair=False)
    if truncation == "only_second":
        raise ConfigError(
            "--truncation only_second with --layout tokens, which has one text in a row",
            remedy="leave --truncation out",
        )
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"--layout tokens needs the word of each token, which a {type(tokenizer).__name__} does not report",
            remedy="use a fast tokenizer, one with a tokenizer.json",
        )
    try:
        tokenizer([["a", "b"]], is_split_into_words=True)
    except (AssertionError, ValueError) as error:  # some releases refuse words that get no space before them
        raise TokenizerError(
            f"this {type(tokenizer).__name__} takes no lists of words: {str(error).strip()}",
            remedy="load it with AutoTokenizer.from_pretrained(NAME, add_prefix_space=True), save it to a folder with "
            "save_pretrained, and give that folder as --tokenizer",
        ) from error
    rows = [*(text.split(" ") for text in BATTERY), list(BATTERY), [], ["Rome"], *([text] for text in BATTERY)]
    slow = opened(
        TemplateWords,
        ReferenceWords,
        tokenizer,
        length=length,
        truncation=truncation,
        pair=False,
        dtype=dtype,
        battery=lambda room: [pa.array(rows, pa.list_(pa.string()))],
    )
    return with_engine(slow, tokenizer, dtype=dtype, wanted=wanted), slow


def joins_words(tokenizer: Any) -> bool:
    """Return whether the tokenizer joins words without a space between them."""
    encoded = tokenizer([["a", "b"]], is_split_into_words=True, add_special_tokens=False)
    return " " not in tokenizer.decode(encoded["input_ids"][0], clean_up_tokenization_spaces=False).strip()
