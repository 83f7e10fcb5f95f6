"""Row encoders turn texts or lists of words into the same rows as `transformers`.

Rows of texts equal `tokenizer(text, text_pair, truncation=..., max_length=L)`. Rows of words equal
`tokenizer(words, is_split_into_words=True, ...)`, and have each token's word number as in `word_ids()`. TemplateRows,
for fast tokenizers, is used only if it gives the same rows as ReferenceRows for test texts or words.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.config import EngineName, Truncation
from pipelines.prepare.sources.columns.labels import list_lengths
from pipelines.prepare.tokenize import engines
from pipelines.prepare.tokenize.engines import BATTERY, Engine, HFTokenizer
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists, offsets_of
from pipelines.prepare.tokenize.special_tokens import RowTemplate, assemble, kept_lengths, probe, require_room
from tfrecord_io.errors import ConfigError, TokenizerError

# Most texts of the battery have more than 13 tokens; none has more than 2,048.
_SOME_ROOM, _ALL_ROOM = 13, 2048
_LETTERS_PER_ROOM = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedRows:
    """Batch of N encoded rows without padding, T tokens in total.

    `types` uint8 [T]: type ids; None if the tokenizer has none. `full_lengths` int64 [N]: lengths before truncation.
    `impossible` bool [N]: rows that cannot be truncated as requested. `words` int32 [T]: index of each token's word in
    its row, -1 for special tokens; None if rows are texts.
    """

    ids: RaggedTokens
    types: np.ndarray | None
    full_lengths: np.ndarray
    impossible: np.ndarray
    words: np.ndarray | None = None

    @property
    def tokens_cut(self) -> int:
        """Number of tokens that truncation removed from rows that it can truncate."""
        return int((self.full_lengths - self.ids.lengths)[~self.impossible].sum())

    def equals(self, expected: EncodedRows) -> bool:
        """Return whether both batches have the same impossible rows, and all other rows are equal."""
        ours, theirs = self._possible(), expected._possible()
        return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))

    def _possible(self) -> list[np.ndarray]:
        kept = np.flatnonzero(~self.impossible)
        optional = [values for values in (self.types, self.words) if values is not None]
        more = [RaggedTokens(values, self.ids.offsets).take(kept).ids for values in optional]
        ids = self.ids.take(kept)
        return [self.impossible, self.full_lengths, ids.ids, ids.offsets, *more]


class TemplateRows:
    """Row encoder that adds special tokens to an engine's tokens. `only_type`: the only type id; None for several."""

    def __init__(
        self, engine: Engine, template: RowTemplate, *, tokenizer: HFTokenizer, length: int, truncation: Truncation
    ) -> None:
        self.use(engine)
        self._template = template
        self._side = tokenizer.truncation_side
        self._room = length - template.num_special
        self._truncation: Truncation = truncation
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self.only_type = template.only_type

    def use(self, engine: Engine) -> None:
        """Switch to another engine, which must give the same tokens."""
        self.concurrent = engine.concurrent
        self.name, self.version = engine.name, engine.version
        self.engine = engine

    def encode(self, columns: Sequence[pa.Array]) -> EncodedRows:
        """Encode one or two text columns, or one column of word lists, all without nulls."""
        words = None
        if pa.types.is_nested(columns[0].type):
            first, words = self._of_words(columns[0])
            tokens = [first]
        else:
            tokens = [self.engine.encode(column) for column in columns]
        lengths = [ragged.lengths for ragged in tokens]
        kept, impossible = kept_lengths(lengths, room=self._room, truncation=self._truncation)
        ids, types = assemble(tokens, kept, self._template, side=self._side)
        if words is not None:
            no_words = tuple((-1,) * len(piece) for piece in self._template.added)
            template = dataclasses.replace(self._template, added=no_words)
            words, _ = assemble([words], kept, template, side=self._side)
        return EncodedRows(
            ids=ids,
            types=types if self._has_types else None,
            full_lengths=np.sum(lengths, axis=0) + self._template.num_special,
            impossible=impossible,
            words=None if words is None else words.ids,
        )

    def _of_words(self, lists: pa.Array) -> tuple[RaggedTokens, RaggedTokens]:
        distinct, edges = pc.dictionary_encode(lists.flatten()), offsets_of(list_lengths(lists))
        tokens = self.engine.encode(distinct.dictionary).take(distinct.indices.to_numpy(zero_copy_only=False))
        offsets = tokens.offsets[edges]
        index = np.arange(len(tokens), dtype=np.int32) - np.repeat(edges[:-1], np.diff(edges)).astype(np.int32)
        return RaggedTokens(tokens.ids, offsets), RaggedTokens(np.repeat(index, tokens.lengths), offsets)


class ReferenceRows:
    """Row encoder that calls the tokenizer itself. `words`: whether rows are lists of words."""

    concurrent = False
    name = "reference"
    only_type: int | None = None

    def __init__(
        self, tokenizer: HFTokenizer, *, length: int, truncation: Truncation, dtype: np.dtype, words: bool = False
    ) -> None:
        import transformers

        self._tokenizer = tokenizer
        self._length = length
        self._truncation: Truncation = truncation
        self._dtype = dtype
        self._words = words
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self.version = transformers.__version__

    def encode(self, columns: Sequence[pa.Array]) -> EncodedRows:
        rows = [column.to_pylist() for column in columns]
        encoded = self._call(rows, truncation=self._truncation)
        lengths = np.fromiter(map(len, encoded["input_ids"]), np.int64, len(rows[0]))
        impossible = lengths > self._length
        for name in encoded:
            encoded[name] = [[] if bad else row for row, bad in zip(encoded[name], impossible, strict=True)]
        return EncodedRows(
            ids=from_lists(encoded["input_ids"], dtype=self._dtype),
            types=from_lists(encoded["token_type_ids"], dtype=np.dtype(np.uint8)).ids if self._has_types else None,
            full_lengths=self._full_lengths(rows, lengths),
            impossible=impossible,
            words=np.array([word for row in encoded["words"] for word in row], np.int32) if self._words else None,
        )

    def _call(self, columns: Sequence[list[Any]], *, truncation: Truncation) -> dict[str, Any]:
        options = {"truncation": truncation, "max_length": self._length, "padding": False, "verbose": False}
        if truncation in ("longest_first", "do_not_truncate") or not columns[0]:
            return self._tokenized(columns, options)
        # Row by row, because a row that cannot be truncated would make the whole batch fail.
        rows = []
        for row in zip(*columns, strict=True):
            alone = [[text] for text in row]
            try:
                encoded = self._tokenized(alone, options)
            except Exception:  # the row stays whole; `encode` recognizes it by its length
                encoded = self._tokenized(alone, {**options, "truncation": "do_not_truncate"})
            rows.append({name: values[0] for name, values in encoded.items()})
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _tokenized(self, columns: Sequence[list[Any]], options: dict[str, Any]) -> dict[str, Any]:
        if not columns[0]:
            return {"input_ids": [], "token_type_ids": [], "words": []}
        if not self._words:
            return dict(self._tokenizer(*columns, **options))
        encoded = self._tokenizer(*columns, is_split_into_words=True, **options)
        words = (encoded.word_ids(index) for index in range(len(columns[0])))
        return {**encoded, "words": [[-1 if word is None else word for word in row] for row in words]}

    def _full_lengths(self, columns: Sequence[list[Any]], lengths: np.ndarray) -> np.ndarray:
        full_lengths = lengths.copy()
        # Shorter rows may be truncated too: some tokenizers add no special token to a text that ends with one.
        special = self._tokenizer.num_special_tokens_to_add(pair=len(columns) == 2)
        full = np.flatnonzero((lengths >= self._length - special) & (lengths <= self._length))
        if len(full) and self._truncation != "do_not_truncate":
            chosen = [[column[index] for index in full] for column in columns]
            whole = self._call(chosen, truncation="do_not_truncate")["input_ids"]
            full_lengths[full] = np.fromiter(map(len, whole), np.int64, len(full))
        return full_lengths


RowEncoder: TypeAlias = TemplateRows | ReferenceRows


def open_rows(
    tokenizer: HFTokenizer,
    *,
    length: int,
    truncation: Truncation,
    dtype: np.dtype,
    pair: bool = False,
    words: bool = False,
) -> RowEncoder:
    """Open a row encoder with the reference engine, for texts, pairs of texts (`pair`) or lists of words (`words`).

    `length`: maximum number of tokens in a row. `dtype`: of the ids.
    Raises: ConfigError if `length` leaves no room for text, or `truncation` needs a pair; TokenizerError if the
        tokenizer does not support `words`.
    """
    require_room(tokenizer, length=length, pair=pair)
    if truncation == "only_second" and not pair:
        source = "rows of --layout tokens have one text" if words else "there is only one text column"
        raise ConfigError(
            f"--truncation only_second cuts the second of two texts, but {source}",
            remedy="leave --truncation out" if words else "give --text-column twice",
        )
    if words:
        _require_words(tokenizer)
    reference = functools.partial(ReferenceRows, tokenizer, truncation=truncation, dtype=dtype, words=words)
    engine = engines.open_reference(tokenizer, dtype=dtype)
    template = probe(engine.backend, pair=pair) if isinstance(engine, engines.HuggingFaceEngine) else None
    if template is None:
        return reference(length=length)
    rows = functools.partial(TemplateRows, engine, template, tokenizer=tokenizer, truncation=truncation)
    special = template.num_special
    for test_length in {special + _SOME_ROOM, special + _ALL_ROOM, min(length, special + _ALL_ROOM)}:
        columns = _battery(test_length - special, pair=pair, words=words)
        if not rows(length=test_length).encode(columns).equals(reference(length=test_length).encode(columns)):
            return reference(length=length)
    return rows(length=length)


def _battery(room: int, *, pair: bool, words: bool) -> list[pa.Array]:
    if words:
        rows = [*(text.split(" ") for text in BATTERY), list(BATTERY), [], ["Rome"], *([text] for text in BATTERY)]
        return [pa.array(rows, pa.list_(pa.string()))]
    # `transformers` makes windows from the removed text, which takes seconds for long pairs in short rows.
    texts = [text for text in BATTERY if len(text) <= _LETTERS_PER_ROOM * room]
    return [pa.array(column, pa.string()) for column in ([texts, [*texts[1:], texts[0]]] if pair else [texts])]


def _require_words(tokenizer: HFTokenizer) -> None:
    if not tokenizer.is_fast:
        raise TokenizerError(
            "--layout tokens needs the word of each token, which this tokenizer does not report",
            remedy="choose a tokenizer with a tokenizer.json",
        )
    try:
        tokenizer([["a", "b"]], is_split_into_words=True)
    except (AssertionError, ValueError) as error:  # some tokenizers need add_prefix_space for words
        raise TokenizerError(
            f"this tokenizer does not accept lists of words: {str(error).strip()}",
            remedy="load it with AutoTokenizer.from_pretrained(NAME, add_prefix_space=True), save it to a folder with "
            "save_pretrained, and give that folder as --tokenizer",
        ) from error


def joins_words(tokenizer: HFTokenizer) -> bool:
    """Return whether words, encoded together and decoded again, have no space between them."""
    encoded = tokenizer([["a", "b"]], is_split_into_words=True, add_special_tokens=False)
    return " " not in tokenizer.decode(encoded["input_ids"][0], clean_up_tokenization_spaces=False).strip()


def with_engine(rows: RowEncoder, tokenizer: HFTokenizer, *, dtype: np.dtype, wanted: EngineName) -> RowEncoder:
    """Return `rows` with the engine that `decide` chooses for `wanted`. ReferenceRows use none. Raises: as `decide`."""
    reference = rows.engine if isinstance(rows, TemplateRows) else engines.SlowEngine(tokenizer, dtype=dtype)
    chosen, _ = engines.decide(tokenizer, reference, dtype=dtype, wanted=wanted)
    if isinstance(rows, ReferenceRows) or chosen is rows.engine:
        return rows
    changed = copy.copy(rows)
    changed.use(chosen)
    return changed
