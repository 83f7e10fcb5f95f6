"""What every layout is made of: an encoder that tokenizes batches, and a builder that gathers a shard and lays it out.

    encode    texts to tokens; several threads may do it at once; changes nothing
    add       takes what `encode` gave, in reading order
    chunks    arrays ready for the encoder, a few thousand rows at a time, permuted if asked

Tokens are held ragged, in the narrowest dtype: about what the finished shard weighs, without its padding and masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pipelines.prepare.options.config import EngineName, LayoutConfig, SourceConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs, Rows
from pipelines.prepare.tokenize.ragged import RaggedTokens, concatenated
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import Feature

__all__ = [
    "BatchEncoder",
    "Builder",
    "Encoded",
    "Layout",
    "LayoutContext",
    "Lineage",
    "Piece",
    "by_tokens",
    "input_ids",
    "joined",
    "permuted",
    "text_inputs",
]

_TOKENS_PER_CHUNK = 1 << 19
# The values that are tokens, among those that there are for each token.
_TOKENS = ("input_ids", "target_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """A batch of N rows after tokenizing.

    `ragged` are ragged values by feature name, one run for each row, or for each of `owners` (int64, the index of the
    run's row, ascending) where a row gives several or none. `reasons` (object [N]) says why a row cannot be used, ''
    where it can; the runs of other rows are to be left out. `full_lengths` int64 [N] counts a row's tokens, special
    ones and those that do not fit included; `tokens_cut` are those of usable rows that do not. `details` say more than
    the reason does, by row.
    """

    ragged: Mapping[str, RaggedTokens]
    arrays: Mapping[str, np.ndarray]
    reasons: np.ndarray
    full_lengths: np.ndarray
    tokens_cut: int = 0
    owners: np.ndarray | None = None
    details: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens in the batch."""
        return sum(len(ragged.ids) for name, ragged in self.ragged.items() if name in _TOKENS)

    @property
    def row_of_sequence(self) -> np.ndarray:
        """The index of each run's row, int64, ascending."""
        return np.arange(len(self.reasons)) if self.owners is None else self.owners

    @property
    def num_sequences(self) -> np.ndarray:
        """How many runs each row has, int64 [N]."""
        return np.bincount(self.row_of_sequence, minlength=len(self.reasons))

    @property
    def usable(self) -> np.ndarray:
        """Bool, for each run: whether its row can be used."""
        return np.asarray((self.reasons == "")[self.row_of_sequence])

    def take(self, which: np.ndarray) -> Encoded:
        """The rows with the indices `which` (ascending), without `arrays`."""
        place = np.full(len(self.reasons), -1)
        place[which] = np.arange(len(which))
        owners = place[self.row_of_sequence]
        chosen = np.flatnonzero(owners >= 0)
        return Encoded(
            ragged={name: ragged.take(chosen) for name, ragged in self.ragged.items()},
            arrays={},
            reasons=self.reasons[which],
            full_lengths=self.full_lengths[which],
            owners=None if self.owners is None else owners[chosen],
        )

    @classmethod
    def joined(cls, parts: Sequence[Encoded]) -> Encoded:
        """The rows of several batches as one, without `arrays`."""
        firsts = np.cumsum([0, *(len(part.reasons) for part in parts)])
        return cls(
            ragged={name: concatenated([part.ragged[name] for part in parts]) for name in parts[0].ragged},
            arrays={},
            reasons=np.concatenate([part.reasons for part in parts]),
            full_lengths=np.concatenate([part.full_lengths for part in parts]),
            owners=None
            if parts[0].owners is None
            else np.concatenate([part.row_of_sequence + first for part, first in zip(parts, firsts[:-1], strict=True)]),
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a record: the usable row (its index in reading order), and where its tokens are, [start, stop)."""

    row: int
    start: int
    stop: int


# What a record of the shard, by its number, is made of, in order.
Lineage = Callable[[int], list[Piece]]


class Builder(Protocol):
    """Gathers one shard."""

    @property
    def rows_used(self) -> int:
        """Rows that are in some record, once all chunks are taken."""

    @property
    def tokens_cut(self) -> int:
        """Tokens of used rows that are in no record."""

    def add(self, encoded: Encoded) -> None:
        """Takes the usable rows of a batch."""

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Columns by feature name, each [n, ...]; rows (documents) permuted if `rng` is given. Empties the builder."""

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Where the records come from that `chunks` would give with such an `rng`. Empties the builder."""


class BatchEncoder(Protocol):
    """A loaded tokenizer, made ready for one layout: made once by each worker. `constant_type` is the token type id
    of every position, padding included, where one is certain.

    `concurrent` as for engines; `may_reject` says whether a row that was fine so far can still turn out unusable.
    `engine` and `engine_version` say whose tokens they are; `reference` makes the same of them with the engine that
    others are measured by, and is None where that is the one in use. `added` are the contents of added tokens.
    """

    concurrent: bool
    may_reject: bool
    constant_type: int | None
    engine: str
    engine_version: str
    reference: BatchEncoder | None
    added: tuple[str, ...]

    def encode(self, rows: Rows) -> Encoded:
        """Tokenizes one batch."""

    def builder(self) -> Builder:
        """A builder for one shard."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutContext:
    """What an encoder is opened from: the tokenizer, facts about it, the options, the row length L, and the columns."""

    tokenizer: Any
    facts: TokenizerFacts
    layout: LayoutConfig
    length: int
    columns: ColumnPlan
    engine: EngineName = "auto"

    @property
    def added(self) -> tuple[str, ...]:
        """The contents of the tokenizer's added tokens."""
        return tuple(token.content for token in self.tokenizer.added_tokens_decoder.values())


def text_inputs(source: SourceConfig) -> Inputs:
    """The text columns that were asked for."""
    return Inputs(texts=source.text_columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """One layout. `open_encoder` raises ConfigError or TokenizerError if the tokenizer or the engine cannot serve it;
    `features` are those that it makes of text.

    `inputs` says which columns become tokens.

    `joins_rows`: a record may hold parts of several rows, and its size follows from their tokens together; else each
    row has records of its own, one of them (`one_record`) or any number.
    """

    open_encoder: Callable[[LayoutContext], BatchEncoder]
    features: Callable[[LayoutContext, BatchEncoder], tuple[Feature, ...]]
    inputs: Callable[[SourceConfig], Inputs] = text_inputs
    joins_rows: bool = False
    one_record: bool = True


def input_ids(length: int) -> Feature:
    """The feature that every layout has."""
    return Feature(name="input_ids", dtype="int64", shape=(length,), role="token_ids", meaning="token ids")


def permuted(count: int, rng: np.random.Generator | None) -> np.ndarray:
    """The order int64 [count] in which a shard takes its rows (documents): as they came, without `rng`."""
    order = np.arange(count)
    if rng is not None:
        rng.shuffle(order)
    return order


def by_tokens(order: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of `order` of about `_TOKENS_PER_CHUNK` tokens each."""
    total = np.cumsum(lengths[order])
    edges = np.searchsorted(total, np.arange(_TOKENS_PER_CHUNK, (total[-1] if len(total) else 0), _TOKENS_PER_CHUNK))
    yield from (part for part in np.split(order, edges + 1) if len(part))


def joined(batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays of several batches, one after the other."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in (batches[0] if batches else {})}
