"""From texts to the rows that `transformers` would make: special tokens, truncation, token type ids.

    TemplateRows     the engine's tokens and a template, assembled by array kernels; for fast tokenizers
    ReferenceRows    `tokenizer(...)` itself, for every other tokenizer

Both give the rows of `tokenizer(text, text_pair, truncation=..., max_length=L)`. `open_rows` chooses the first only if
it gives bit for bit the same on a battery of texts, so an unusual tokenizer is never guessed at.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import Truncation
from pipelines.prepare.tokenize import arrays
from pipelines.prepare.tokenize.engines import BATTERY, Engine, HuggingFaceEngine, open_reference
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from pipelines.prepare.tokenize.special_tokens import Template, assemble, kept_lengths, probe
from tfrecord_io.errors import ConfigError

__all__ = [
    "EncodedRows",
    "ReferenceRows",
    "RowEncoder",
    "TemplateRows",
    "Templated",
    "Transformers",
    "lengths_to_compare",
    "open_rows",
    "pad_like",
    "require_room",
]

Encoder = TypeVar("Encoder", bound="Templated")

# Room for text of the rows that are compared, besides the requested length: the first cuts most of the battery, the
# second fits all of it, and longer rows differ only by padding.
_SOME_ROOM, _ALL_ROOM = 13, 2048
_LETTERS_PER_ROOM = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedRows:
    """N whole rows without padding, with T tokens.

    `types`: uint8 [T], None if the tokenizer has no type ids. `full_lengths`: int64 [N], tokens before truncation.
    `impossible`: bool [N], rows that cannot be truncated as requested and must be left out.
    """

    ids: RaggedTokens
    types: np.ndarray | None
    full_lengths: np.ndarray
    impossible: np.ndarray

    @property
    def tokens_cut(self) -> int:
        """Number of tokens of usable rows that truncation removed."""
        return int((self.full_lengths - self.ids.lengths)[~self.impossible].sum())


class RowEncoder(Protocol):
    """Protocol of encoders that turn texts into rows of at most `length` tokens.

    `concurrent`: as for engines. `only_type`: the type id of every token, if it is always the same.
    """

    concurrent: bool
    name: str
    version: str
    only_type: int | None

    def encode(self, texts: Sequence[pa.Array]) -> EncodedRows:
        """Encode the rows of one text column, or of two: strings without nulls."""


class Templated:
    """Base class of encoders that put an engine's tokens into a template."""

    def __init__(
        self, engine: Engine, template: Template, *, tokenizer: Any, length: int, truncation: Truncation
    ) -> None:
        self._take(engine)
        self._template = template
        self._side = tokenizer.truncation_side
        self._room = length - template.num_special
        self._truncation: Truncation = truncation
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self.only_type = min(template.type_ids) if len(template.type_ids) == 1 else None

    def with_engine(self: Encoder, engine: Engine) -> Encoder:
        """Return an encoder that makes the same rows with another engine."""
        other = copy.copy(self)
        other._take(engine)
        return other

    def _take(self, engine: Engine) -> None:
        self.concurrent = engine.concurrent
        self.name, self.version = engine.name, engine.version
        self.engine = engine


class TemplateRows(Templated):
    """Encoder that puts an engine's tokens into a template of special tokens."""

    def encode(self, texts: Sequence[pa.Array]) -> EncodedRows:
        """Encode the rows of one text column, or of two: strings without nulls."""
        tokens = [self.engine.encode(column) for column in texts]
        lengths = [column.lengths for column in tokens]
        kept, impossible = kept_lengths(lengths, room=self._room, truncation=self._truncation)
        ids, types = assemble(tokens, kept, self._template, side=self._side)
        full = np.sum(lengths, axis=0) + self._template.num_special
        return EncodedRows(ids=ids, types=types if self._has_types else None, full_lengths=full, impossible=impossible)


class Transformers:
    """Base class of encoders that call `tokenizer(...)` itself, which is slow but right by definition."""

    concurrent = False
    name = "reference"
    only_type: int | None = None

    def __init__(self, tokenizer: Any, *, length: int, truncation: Truncation, dtype: np.dtype) -> None:
        self._tokenizer = tokenizer
        self._length = length
        self._truncation = truncation
        self._dtype = dtype
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self.version = metadata.version("transformers")


class ReferenceRows(Transformers):
    """Encoder that calls `tokenizer(...)` itself."""

    def encode(self, texts: Sequence[pa.Array]) -> EncodedRows:
        """Encode the rows of one text column, or of two: strings without nulls."""
        if not len(texts[0]):
            return EncodedRows(
                ids=from_lists([], dtype=self._dtype),
                types=np.empty(0, np.uint8) if self._has_types else None,
                full_lengths=np.zeros(0, np.int64),
                impossible=np.zeros(0, bool),
            )
        columns = [column.to_pylist() for column in texts]
        encoded = self._call(columns, truncation=self._truncation)
        lengths = np.fromiter(map(len, encoded["input_ids"]), np.int64, len(columns[0]))
        impossible = lengths > self._length
        for name in encoded:
            encoded[name] = [[] if bad else row for row, bad in zip(encoded[name], impossible, strict=True)]
        return EncodedRows(
            ids=from_lists(encoded["input_ids"], dtype=self._dtype),
            types=self._types(encoded) if self._has_types else None,
            full_lengths=self._full_lengths(columns, lengths),
            impossible=impossible,
        )

    def _types(self, encoded: dict[str, Any]) -> np.ndarray:
        return from_lists(encoded["token_type_ids"], dtype=np.dtype(np.uint8)).ids

    def _call(self, texts: Sequence[list[str]], *, truncation: Truncation) -> dict[str, Any]:
        options = {"truncation": truncation, "max_length": self._length, "padding": False, "verbose": False}
        if truncation in ("longest_first", "do_not_truncate"):
            return dict(self._tokenizer(*texts, **options))
        # One row that cannot be truncated as requested fails the whole batch, so each row is encoded by itself.
        rows = [self._call_one(row, options) for row in zip(*texts, strict=True)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _call_one(self, row: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
        columns = [[text] for text in row]
        try:
            encoded = self._tokenizer(*columns, **options)
        except Exception:  # the Rust library raises a plain Exception; the untruncated row shows it by its length
            encoded = self._tokenizer(*columns, **{**options, "truncation": "do_not_truncate"})
        return {name: values[0] for name, values in encoded.items()}

    def _full_lengths(self, texts: Sequence[list[str]], lengths: np.ndarray) -> np.ndarray:
        full_lengths = lengths.copy()
        # Some tokenizers leave out a special token if the truncated text happens to end in it.
        special = self._tokenizer.num_special_tokens_to_add(pair=len(texts) == 2)
        full = np.flatnonzero((lengths >= self._length - special) & (lengths <= self._length))
        if len(full) and self._truncation != "do_not_truncate":
            columns = [[column[index] for index in full] for column in texts]
            whole = self._call(columns, truncation="do_not_truncate")["input_ids"]
            full_lengths[full] = np.fromiter(map(len, whole), np.int64, len(full))
        return full_lengths


def open_rows(
    tokenizer: Any, *, length: int, truncation: Truncation, pair: bool, dtype: np.dtype
) -> TemplateRows | ReferenceRows:
    """Open an encoder that gives what `transformers` gives, with the reference engine.

    Raises: ConfigError if a row of `length` has no room for text besides the special tokens.
    """
    special = require_room(tokenizer, length=length, pair=pair)
    if truncation == "only_second" and not pair:
        raise ConfigError(
            "--truncation only_second with one text column, expected a pair", remedy="give --text-column twice"
        )
    reference = ReferenceRows(tokenizer, length=length, truncation=truncation, dtype=dtype)
    engine = open_reference(tokenizer, dtype=dtype)
    if isinstance(engine, HuggingFaceEngine) and (template := probe(engine.backend, pair=pair)):
        for tried in lengths_to_compare(length, special=special):
            rows = TemplateRows(engine, template, tokenizer=tokenizer, length=tried, truncation=truncation)
            battery = _battery(room=tried - special, pair=pair)
            if not _agrees(rows, battery, tokenizer=tokenizer, length=tried, truncation=truncation):
                return reference
        return TemplateRows(engine, template, tokenizer=tokenizer, length=length, truncation=truncation)
    return reference


def require_room(tokenizer: Any, *, length: int, pair: bool) -> int:
    """Return the number of special tokens in a row. Raises: ConfigError if they leave no room for text in `length`."""
    special = int(tokenizer.num_special_tokens_to_add(pair=pair))
    if length <= special:
        raise ConfigError(
            f"--max-length {length}, but {special} positions of each row are special tokens",
            remedy=f"give at least {special + 1}",
        )
    return special


def lengths_to_compare(length: int, *, special: int) -> set[int]:
    """Return lengths of rows, besides the requested one, on which two encoders are compared."""
    return {special + _SOME_ROOM, special + _ALL_ROOM, min(length, special + _ALL_ROOM)}


def pad_like(tokenizer: Any, rows: EncodedRows, *, length: int) -> dict[str, np.ndarray]:
    """Pad rows with `arrays.pad` and the tokenizer's own padding."""
    return arrays.pad(
        rows.ids,
        rows.types,
        length=length,
        pad_id=tokenizer.pad_token_id,
        pad_type=tokenizer.pad_token_type_id,
        side=tokenizer.padding_side,
    )


def _battery(*, room: int, pair: bool) -> list[list[str]]:
    # `transformers` also makes windows of the text that it cuts away, for a pair as many as the product of both texts':
    # with little room, long texts would take seconds.
    texts = [text for text in BATTERY if len(text) <= _LETTERS_PER_ROOM * room]
    return [texts, [*texts[1:], texts[0]]] if pair else [texts]


def _agrees(rows: RowEncoder, columns: list[list[str]], *, tokenizer: Any, length: int, truncation: Truncation) -> bool:
    got = rows.encode([pa.array(column, pa.string()) for column in columns])
    padded = pad_like(tokenizer, got, length=length)
    possible = np.flatnonzero(~got.impossible)
    if not len(possible):
        return True
    # As a batch: called with plain strings, `transformers` ignores an empty second text.
    expected = tokenizer(
        *([column[index] for index in possible] for column in columns),
        truncation=truncation,
        max_length=length,
        padding="max_length",
        return_attention_mask=True,
        verbose=False,
    )
    return expected.keys() == padded.keys() and all(
        np.array_equal(padded[name][possible], values) for name, values in expected.items()
    )
