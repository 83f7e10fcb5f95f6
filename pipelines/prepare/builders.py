"""What a shard's rows become, gathered while its batches are read and laid out when all are in.

    encode    texts to tokens; several threads may do it at once; changes nothing
    add       takes what `encode` gave, in reading order
    chunks    arrays ready for the encoder, a few thousand rows at a time, permuted if asked

Tokens are held ragged, in the narrowest dtype: about what the finished shard weighs, without its padding and masks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from pipelines.prepare import layouts
from pipelines.prepare.columns import Rows
from pipelines.prepare.config import EngineName, LayoutConfig, Side, Truncation
from pipelines.prepare.engines import Engine, SlowEngine, choose, open_reference
from pipelines.prepare.rows import EncodedRows, RowEncoder, TemplateRows, open_rows
from pipelines.prepare.runs import GrowingRuns, GrowingVector, TokenRuns, id_dtype
from pipelines.prepare.tokenization import separator_id
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import Feature

__all__ = ["Builder", "Encoded", "Tools", "open_tools", "permuted", "token_features"]

_ROWS_PER_CHUNK = 1024
_TOKENS_PER_CHUNK = 1 << 19


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """One batch after tokenizing. `reasons` (object [N]) says why a row cannot be used, '' where it can; `full_lengths`
    int64 [N] counts a row's tokens, special ones and those that do not fit included."""

    rows: EncodedRows | None = None
    documents: TokenRuns | None = None
    arrays: dict[str, np.ndarray]
    reasons: np.ndarray
    full_lengths: np.ndarray

    @property
    def runs(self) -> TokenRuns:
        """The tokens of each row of the batch."""
        runs = self.documents if self.rows is None else self.rows.ids
        assert runs is not None, "a batch has rows or documents"
        return runs

    @property
    def types(self) -> np.ndarray | None:
        """The type id of each token, where the tokenizer has any."""
        return None if self.rows is None else self.rows.types

    @property
    def num_tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.runs.ids)


class Builder(Protocol):
    """Gathers one shard. `rows_used` counts the rows that are in some record, once all chunks are taken."""

    rows_used: int
    tokens_cut: int

    def add(self, encoded: Encoded) -> None:
        """Takes the usable rows of a batch."""

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Columns by feature name, each [n, ...]; rows (documents) permuted if `rng` is given. Empties the builder."""


class Tools(Protocol):
    """A loaded tokenizer, made ready for one layout: made once by each worker. `constant_type` is the token type id
    of every position, padding included, where one is certain.

    `concurrent` as for engines; `may_reject` says whether a row that was fine so far can still turn out unusable.
    `engine` and `engine_version` say whose tokens they are; `reference` makes the same of them with the engine that
    others are measured by, and is None where that is the one in use.
    """

    concurrent: bool
    may_reject: bool
    constant_type: int | None
    engine: str
    engine_version: str
    reference: Tools | None

    def encode(self, rows: Rows) -> Encoded:
        """Tokenizes one batch."""

    def builder(self) -> Builder:
        """A builder for one shard."""


def open_tools(
    tokenizer: Any,
    facts: TokenizerFacts,
    *,
    layout: LayoutConfig,
    length: int,
    pair: bool,
    engine: EngineName = "auto",
) -> Tools:
    """The tools for a layout. Raises: ConfigError or TokenizerError if the tokenizer or the engine cannot serve it."""
    dtype = id_dtype(facts.vocab_size)
    if layout.name == "concat":
        concat = functools.partial(
            _ConcatTools,
            length=length,
            separator=separator_id(tokenizer),
            bos=facts.bos_id if layout.add_bos else None,
            pad_id=facts.pad_id,
            drop=layout.remainder == "drop",
            dtype=dtype,
        )
        reference = open_reference(tokenizer, dtype=dtype)
        chosen = choose(tokenizer, reference, dtype=dtype, wanted=engine)
        return concat(chosen, reference=None if chosen is reference else concat(reference, reference=None))
    pad = functools.partial(
        _PadTools,
        length=length,
        pad_id=facts.pad_id,
        pad_type=tokenizer.pad_token_type_id,
        side=facts.padding_side,
        dtype=dtype,
        truncation=layout.truncation,
    )
    slow = open_rows(tokenizer, length=length, truncation=layout.truncation, pair=pair, dtype=dtype)
    fast = _faster(slow, tokenizer, dtype=dtype, wanted=engine)
    return pad(fast, reference=None if fast is slow else pad(slow, reference=None))


def _faster(rows: RowEncoder, tokenizer: Any, *, dtype: np.dtype, wanted: EngineName) -> RowEncoder:
    """The same rows with the engine to use, if an engine can make them at all."""
    if not isinstance(rows, TemplateRows):
        # Says that an engine asked for by name does not serve this tokenizer.
        choose(tokenizer, SlowEngine(tokenizer, dtype=dtype), dtype=dtype, wanted=wanted)
        return rows
    chosen = choose(tokenizer, rows.engine, dtype=dtype, wanted=wanted)
    return rows if chosen is rows.engine else rows.with_engine(chosen)


def token_features(tokenizer: Any, tools: Tools, *, layout: LayoutConfig, length: int) -> tuple[Feature, ...]:
    """The features that a layout makes of text."""
    ids = Feature(name="input_ids", dtype="int64", shape=(length,), role="token_ids", meaning="token ids")
    if layout.name == "concat":
        meaning = "tokens of this row that are not padding"
        return (ids, Feature(name="num_tokens", dtype="int64", shape=(), role="num_tokens", meaning=meaning))
    mask = Feature(
        name="attention_mask",
        dtype="int64",
        shape=(length,),
        role="attention_mask",
        meaning="1 on tokens, 0 on padding",
    )
    if "token_type_ids" not in tokenizer.model_input_names:
        return (ids, mask)
    types = Feature(
        name="token_type_ids",
        dtype="int64",
        shape=(length,),
        role="token_type_ids",
        meaning="which text of a pair a token belongs to",
        constant=tools.constant_type,
    )
    return (ids, mask, types)


def permuted(count: int, rng: np.random.Generator | None) -> np.ndarray:
    """The order int64 [count] in which a shard takes its rows (documents): as they came, without `rng`."""
    order = np.arange(count)
    if rng is not None:
        rng.shuffle(order)
    return order


class _PadTools:
    def __init__(
        self,
        encoder: RowEncoder,
        *,
        reference: Tools | None,
        length: int,
        pad_id: int,
        pad_type: int,
        side: Side,
        dtype: np.dtype,
        truncation: Truncation,
    ) -> None:
        self.may_reject = truncation != "longest_first"
        self.concurrent = encoder.concurrent
        self.constant_type = encoder.only_type if encoder.only_type == pad_type else None
        self.engine, self.engine_version = encoder.name, encoder.version
        self.reference = reference
        self._encoder = encoder
        self._impossible = "too_long" if truncation == "do_not_truncate" else "cannot_truncate"
        self._build = functools.partial(
            _PadBuilder,
            length=length,
            pad_id=pad_id,
            pad_type=pad_type,
            only_type=self.constant_type,
            side=side,
            dtype=dtype,
        )

    def encode(self, rows: Rows) -> Encoded:
        encoded = self._encoder.encode(rows.texts)
        reasons = np.where(encoded.impossible, self._impossible, "").astype(object)
        return Encoded(rows=encoded, arrays=rows.arrays, reasons=reasons, full_lengths=encoded.full_lengths)

    def builder(self) -> Builder:
        return self._build()


class _PadBuilder:
    def __init__(
        self, *, length: int, pad_id: int, pad_type: int, only_type: int | None, side: Side, dtype: np.dtype
    ) -> None:
        self.rows_used = 0
        self.tokens_cut = 0
        self._length = length
        self._pad_id = pad_id
        self._pad_type = pad_type
        self._only_type = only_type
        self._side: Side = side
        self._runs = GrowingRuns(dtype)
        self._types = GrowingVector(np.dtype(np.uint8))
        self._has_types = False
        self._arrays: list[dict[str, np.ndarray]] = []
        self._usable: list[np.ndarray] = []

    def add(self, encoded: Encoded) -> None:
        assert encoded.rows is not None
        self.tokens_cut += encoded.rows.tokens_cut
        self._runs.append(encoded.rows.ids)
        if encoded.rows.types is not None:
            self._has_types = True
            if self._only_type is None:
                self._types.append(encoded.rows.types)
        self._arrays.append(encoded.arrays)
        self._usable.append(~encoded.rows.impossible)

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        types = self._types.take_all() if self._has_types and self._only_type is None else None
        runs = self._runs.take_all()
        arrays = _joined(self._arrays)
        order = np.flatnonzero(np.concatenate([np.zeros(0, bool), *self._usable]))
        self._arrays.clear()
        self._usable.clear()
        order = order[permuted(len(order), rng)]
        for start in range(0, len(order), _ROWS_PER_CHUNK):
            chosen = order[start : start + _ROWS_PER_CHUNK]
            laid_out = layouts.pad(
                runs,
                types,
                length=self._length,
                pad_id=self._pad_id,
                pad_type=self._pad_type,
                side=self._side,
                order=chosen,
            )
            if self._has_types and self._only_type is not None:
                laid_out["token_type_ids"] = np.full((len(chosen), self._length), self._only_type, np.uint8)
            self.rows_used += len(chosen)
            yield {**laid_out, **{name: values[chosen] for name, values in arrays.items()}}


class _ConcatTools:
    may_reject = False
    constant_type: int | None = None

    def __init__(
        self,
        engine: Engine,
        *,
        reference: Tools | None,
        length: int,
        separator: int,
        bos: int | None,
        pad_id: int,
        drop: bool,
        dtype: np.dtype,
    ) -> None:
        self.concurrent = engine.concurrent
        self.engine, self.engine_version = engine.name, engine.version
        self.reference = reference
        self._engine = engine
        self._added = 1 if bos is None else 2
        self._build = lambda: _ConcatBuilder(
            length=length, separator=separator, bos=bos, pad_id=pad_id, drop=drop, dtype=dtype
        )

    def encode(self, rows: Rows) -> Encoded:
        documents = self._engine.encode(rows.texts[0])
        return Encoded(
            documents=documents,
            arrays={},
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=documents.lengths + self._added,
        )

    def builder(self) -> Builder:
        return self._build()


class _ConcatBuilder:
    def __init__(
        self, *, length: int, separator: int, bos: int | None, pad_id: int, drop: bool, dtype: np.dtype
    ) -> None:
        self.rows_used = 0
        self.tokens_cut = 0
        self._length = length
        self._separator = separator
        self._bos = bos
        self._pad_id = pad_id
        self._drop = drop
        self._runs = GrowingRuns(dtype)

    def add(self, encoded: Encoded) -> None:
        assert encoded.documents is not None
        self._runs.append(encoded.documents)

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        documents = self._runs.take_all()
        order = permuted(len(documents), rng)
        left = np.empty(0, np.int32)
        for chosen in _by_tokens(order, documents.lengths):
            joined = layouts.join(documents.take(chosen), separator=self._separator, bos=self._bos)
            self.rows_used += len(chosen)
            tokens = np.concatenate([left, joined])
            whole = len(tokens) // self._length * self._length
            left = tokens[whole:]
            if whole:
                yield layouts.cut(tokens[:whole], length=self._length, pad_id=self._pad_id)
        if self._drop:
            self.tokens_cut += len(left)
        elif len(left):
            yield layouts.cut(left, length=self._length, pad_id=self._pad_id)


def _by_tokens(order: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of `order` of about `_TOKENS_PER_CHUNK` tokens each."""
    total = np.cumsum(lengths[order])
    edges = np.searchsorted(total, np.arange(_TOKENS_PER_CHUNK, (total[-1] if len(total) else 0), _TOKENS_PER_CHUNK))
    yield from (part for part in np.split(order, edges + 1) if len(part))


def _joined(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in (batches[0] if batches else {})}
