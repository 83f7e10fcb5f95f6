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
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.config import EngineName, Truncation
from pipelines.prepare.sources.columns.labels import list_lengths
from pipelines.prepare.tokenize.engines import BATTERY, Engine, HuggingFaceEngine, SlowEngine, choose, open_reference
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists, offsets_of
from pipelines.prepare.tokenize.special_tokens import Template, assemble, kept_lengths, probe
from pipelines.prepare.tokenize.text_rows import EncodedRows, Templated, Transformers, lengths_to_compare, require_room
from tfrecord_io.errors import ConfigError, TokenizerError

__all__ = ["EncodedWords", "ReferenceWords", "TemplateWords", "WordEncoder", "joins_words", "open_words"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedWords:
    """N whole rows without padding; `words` int32 [T] is the index of each token's word in its row, or -1."""

    rows: EncodedRows
    words: np.ndarray


class WordEncoder(Protocol):
    """Protocol of encoders that turn lists of words into rows; attributes as for `text_rows.RowEncoder`."""

    concurrent: bool
    name: str
    version: str
    only_type: int | None

    def encode(self, lists: pa.Array) -> EncodedWords:
        """Encode rows of lists of words, without nulls."""


class TemplateWords(Templated):
    """Encoder that puts an engine's tokens of words into a template of special tokens."""

    def __init__(
        self, engine: Engine, template: Template, *, tokenizer: Any, length: int, truncation: Truncation
    ) -> None:
        super().__init__(engine, template, tokenizer=tokenizer, length=length, truncation=truncation)
        self._no_words = dataclasses.replace(
            template, prefix=(-1,) * len(template.prefix), suffix=(-1,) * len(template.suffix)
        )

    def encode(self, lists: pa.Array) -> EncodedWords:
        """Encode rows of lists of words, without nulls."""
        tokens, edges = self._tokens(lists.flatten()), offsets_of(list_lengths(lists))
        rows = RaggedTokens(tokens.ids, tokens.offsets[edges])
        index = np.arange(len(tokens), dtype=np.int32) - np.repeat(edges[:-1], np.diff(edges)).astype(np.int32)
        words = RaggedTokens(np.repeat(index, tokens.lengths), rows.offsets)
        kept, impossible = kept_lengths([rows.lengths], room=self._room, truncation=self._truncation)
        ids, types = assemble([rows], kept, self._template, side=self._side)
        word_indices, _ = assemble([words], kept, self._no_words, side=self._side)
        full = rows.lengths + self._template.num_special
        encoded = EncodedRows(
            ids=ids, types=types if self._has_types else None, full_lengths=full, impossible=impossible
        )
        return EncodedWords(rows=encoded, words=word_indices.ids)

    def _tokens(self, words: pa.Array) -> RaggedTokens:
        """Return the tokens of each word. Words repeat often, so each distinct word of a batch is tokenized once."""
        distinct = pc.dictionary_encode(words)
        return self.engine.encode(distinct.dictionary).take(distinct.indices.to_numpy(zero_copy_only=False))


class ReferenceWords(Transformers):
    """Encoder that calls `tokenizer(words, is_split_into_words=True)` itself."""

    def encode(self, lists: pa.Array) -> EncodedWords:
        """Encode rows of lists of words, without nulls."""
        rows = lists.to_pylist()
        encoded = self._call(rows, truncation=self._truncation)
        lengths = np.fromiter(map(len, encoded["input_ids"]), np.int64, len(rows))
        impossible = lengths > self._length
        encoded = {
            name: [[] if bad else values for values, bad in zip(column, impossible, strict=True)]
            for name, column in encoded.items()
        }
        full = self._call(rows, truncation="do_not_truncate")["input_ids"]
        narrow = np.dtype(np.uint8)
        return EncodedWords(
            rows=EncodedRows(
                ids=from_lists(encoded["input_ids"], dtype=self._dtype),
                types=from_lists(encoded["token_type_ids"], dtype=narrow).ids if self._has_types else None,
                full_lengths=np.fromiter(map(len, full), np.int64, len(rows)),
                impossible=impossible,
            ),
            words=np.array([word for row in encoded["words"] for word in row], np.int32),
        )

    def _call(self, rows: list[list[str]], *, truncation: Truncation) -> dict[str, list[list[int]]]:
        if not rows:
            return {name: [] for name in ("input_ids", "token_type_ids", "words")}
        encoded = self._tokenizer(
            rows, is_split_into_words=True, truncation=truncation, max_length=self._length, verbose=False
        )
        words = (encoded.word_ids(index) for index in range(len(rows)))
        return {**encoded, "words": [[-1 if word is None else word for word in row] for row in words]}


def open_words(
    tokenizer: Any, *, length: int, truncation: Truncation, dtype: np.dtype, wanted: EngineName = "auto"
) -> tuple[WordEncoder, WordEncoder]:
    """Open what makes rows of words: with the engine to use, and with the reference engine.

    Raises: ConfigError if a row of `length` has no room for words, or the engine cannot serve the tokenizer;
        TokenizerError if the tokenizer does not report the words of tokens, or refuses lists of words.
    """
    special = require_room(tokenizer, length=length, pair=False)
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
    _require_words(tokenizer)
    engine = open_reference(tokenizer, dtype=dtype)
    slow = _templated(engine, tokenizer, length=length, special=special, truncation=truncation, dtype=dtype)
    if slow is None:
        choose(tokenizer, SlowEngine(tokenizer, dtype=dtype), dtype=dtype, wanted=wanted)
        reference = ReferenceWords(tokenizer, length=length, truncation=truncation, dtype=dtype)
        return reference, reference
    chosen = choose(tokenizer, engine, dtype=dtype, wanted=wanted)
    return (slow if chosen is engine else slow.with_engine(chosen)), slow


def joins_words(tokenizer: Any) -> bool:
    """Return whether the tokenizer joins words without a space between them."""
    encoded = tokenizer([["a", "b"]], is_split_into_words=True, add_special_tokens=False)
    return " " not in tokenizer.decode(encoded["input_ids"][0], clean_up_tokenization_spaces=False).strip()


def _require_words(tokenizer: Any) -> None:
    try:
        tokenizer([["a", "b"]], is_split_into_words=True)
    except (AssertionError, ValueError) as error:  # some releases refuse words that get no space before them
        raise TokenizerError(
            f"this {type(tokenizer).__name__} takes no lists of words: {str(error).strip()}",
            remedy="load it with AutoTokenizer.from_pretrained(NAME, add_prefix_space=True), save it to a folder with "
            "save_pretrained, and give that folder as --tokenizer",
        ) from error


def _templated(
    engine: Engine, tokenizer: Any, *, length: int, special: int, truncation: Truncation, dtype: np.dtype
) -> TemplateWords | None:
    """Return an encoder with a template if it makes the same rows as the tokenizer itself, else None."""
    template = probe(engine.backend, pair=False) if isinstance(engine, HuggingFaceEngine) else None
    if template is None:
        return None
    battery = _battery()
    for tried in lengths_to_compare(length, special=special):
        words = TemplateWords(engine, template, tokenizer=tokenizer, length=tried, truncation=truncation)
        reference = ReferenceWords(tokenizer, length=tried, truncation=truncation, dtype=dtype)
        if not _same(words.encode(battery), reference.encode(battery)):
            return None
    return TemplateWords(engine, template, tokenizer=tokenizer, length=length, truncation=truncation)


def _battery() -> pa.Array:
    rows = [*(text.split(" ") for text in BATTERY), list(BATTERY), [], ["Rome"], *([text] for text in BATTERY)]
    return pa.array(rows, pa.list_(pa.string()))


def _same(one: EncodedWords, other: EncodedWords) -> bool:
    ours, theirs = one.rows, other.rows
    pairs: list[Any] = [
        (ours.ids.ids, theirs.ids.ids),
        (ours.ids.offsets, theirs.ids.offsets),
        (ours.types, theirs.types),  # None in both, if the tokenizer has no type ids
        (ours.full_lengths, theirs.full_lengths),
        (ours.impossible, theirs.impossible),
        (one.words, other.words),
    ]
    return all(mine is yours or np.array_equal(mine, yours) for mine, yours in pairs)
