"""Interface of layouts: an encoder that tokenizes batches, and a builder that gathers a shard and lays it out.

    encode    turns texts into tokens; has no side effects, so several threads may call it at once
    add       takes the result of `encode`, in reading order
    chunks    yields arrays for the Example encoder, about a thousand rows at a time, permuted if asked

Tokens are held ragged, in the narrowest dtype: about the size of the finished shard, without its padding and masks.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pipelines.prepare.options.config import EngineName, LayoutConfig, SourceConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs, Rows
from pipelines.prepare.tokenize.engines import HFTokenizer, Tokenizing
from pipelines.prepare.tokenize.ragged import RaggedTokens, concatenated
from pipelines.prepare.tokenize.special_tokens import DocumentFrame, begin_with, end_with
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import ROLES, TOKEN_IDS, Feature, Role, Schema

_Encoder = TypeVar("_Encoder", bound="BatchEncoder")
# Names of the ragged values that are tokens; the others annotate tokens.
_TOKENS = {ROLES[role].feature_name or role for role in TOKEN_IDS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """Tokenized batch of N rows.

    `ragged`: values by feature name, one sequence for each row; if a row gives several or none, one for each of
        `owners` (int64, ascending: the index of the sequence's row).
    `arrays`: other features of the rows, by name, [N, ...].
    `reasons` (object [N]): why a row cannot be used, '' if it can. Sequences of unusable rows are left out of records.
    `full_lengths` int64 [N]: tokens of each row, including special tokens and the tokens that do not fit.
    `tokens_cut`: number of tokens of usable rows that do not fit.
    `details`: explanations of the reasons, by row index.
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
        """Number of tokens in the batch."""
        return sum(len(ragged.ids) for name, ragged in self.ragged.items() if name in _TOKENS)

    @property
    def row_of_sequence(self) -> np.ndarray:
        """Index of each sequence's row, int64, ascending."""
        return np.arange(len(self.reasons)) if self.owners is None else self.owners

    @property
    def num_sequences(self) -> np.ndarray:
        """Number of sequences of each row, int64 [N]."""
        return np.bincount(self.row_of_sequence, minlength=len(self.reasons))

    @property
    def usable(self) -> np.ndarray:
        """Mask of the sequences that belong to usable rows, bool."""
        return np.asarray((self.reasons == "")[self.row_of_sequence])

    def take(self, which: np.ndarray) -> Encoded:
        """Return the rows with the indices `which` (ascending), without `arrays`."""
        new_index = np.full(len(self.reasons), -1)
        new_index[which] = np.arange(len(which))
        owners = new_index[self.row_of_sequence]
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
        """Concatenate one or more batches, without `details` and `tokens_cut`."""
        firsts = np.cumsum([0, *(len(part.reasons) for part in parts)])
        return cls(
            ragged={name: concatenated([part.ragged[name] for part in parts]) for name in parts[0].ragged},
            arrays={name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays},
            reasons=np.concatenate([part.reasons for part in parts]),
            full_lengths=np.concatenate([part.full_lengths for part in parts]),
            owners=None
            if parts[0].owners is None
            else np.concatenate([part.row_of_sequence + first for part, first in zip(parts, firsts[:-1], strict=True)]),
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a record: its tokens [start, stop) come from `row`, an index among the usable rows in reading order."""

    row: int
    start: int
    stop: int


# Returns the pieces, in order, of the shard's record with the given index.
Lineage = Callable[[int], list[Piece]]


class Builder(abc.ABC):
    """Base class of builders, which gather the rows of one shard and lay them out.

    `rows_used`: how many rows are in a record; `tokens_cut`: how many tokens of used rows are in none. Both are final
    once all chunks are taken.
    """

    def __init__(self) -> None:
        self.rows_used = self.tokens_cut = 0
        self._batches: list[Encoded] = []

    def add(self, encoded: Encoded) -> None:
        """Add a batch, whose usable rows become records."""
        self.tokens_cut += encoded.tokens_cut
        self._batches.append(encoded)

    def _take(self) -> Encoded:
        """Return all rows added, usable or not, as one batch. Empties the builder."""
        whole = Encoded.joined(self._batches) if len(self._batches) != 1 else self._batches[0]
        self._batches = []
        return whole

    @abc.abstractmethod
    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns by feature name, each [n, ...], with rows permuted if `rng` is given. Empties the builder."""

    @abc.abstractmethod
    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return the lineage of the records that `chunks` would give with the same `rng`. Empties the builder."""


class BatchEncoder(abc.ABC):
    """Base class of encoders: a loaded tokenizer, set up for one layout, that a worker opens or gets pickled.

    `concurrent`: whether threads may call `encode` at once. `may_reject`: whether `encode` can find a row unusable.
    `engine`, `engine_version`: what tokenizes. `reference`: the same encoder with the reference engine, to compare
    with; None if that is the one in use. `notes`: what users should know before rows are made.
    """

    may_reject = False
    notes: tuple[str, ...] = ()
    reference: BatchEncoder | None = None

    def __init__(self, tokenizing: Tokenizing) -> None:
        """Take name, version and concurrency from the engine, or from the row encoder that uses it."""
        self.engine, self.engine_version = tokenizing.name, tokenizing.version
        self.concurrent = tokenizing.concurrent

    @abc.abstractmethod
    def features(self) -> tuple[Feature, ...]:
        """Return the features that the layout computes from texts."""

    @abc.abstractmethod
    def encode(self, rows: Rows) -> Encoded:
        """Tokenize one batch."""

    @abc.abstractmethod
    def builder(self) -> Builder:
        """Return a builder for one shard."""

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        """Return notes on a sample of rows. Needs the tokenizer, so only the launcher calls it."""
        return ()


def beside_reference(open_with: Callable[[Any], _Encoder], fast: Tokenizing, slow: Tokenizing) -> _Encoder:
    """Open an encoder with `fast`; unless `slow` is the same, open its `reference` with `slow`."""
    encoder = open_with(fast)
    if slow is not fast:
        encoder.reference = open_with(slow)
    return encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutContext:
    """Arguments for opening an encoder: the tokenizer, facts about it, options, the row length L and the columns."""

    tokenizer: HFTokenizer
    facts: TokenizerFacts
    layout: LayoutConfig
    length: int
    columns: ColumnPlan
    engine: EngineName = "auto"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "tokenizer": None}  # an encoder that is sent to a worker already has what it needs of it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Description of one layout.

    `open_encoder` raises ConfigError or TokenizerError if the tokenizer or the engine cannot serve it.
    `inputs`: the columns that become tokens, by default the text columns; raises ConfigError if the named columns do
    not fit. `joins_rows`: whether a record may hold parts of several rows, and so has no labels; if not, each row has
    its own records, exactly one (`one_record`) or any number.
    """

    open_encoder: Callable[[LayoutContext], BatchEncoder]
    inputs: Callable[[SourceConfig], Inputs] = lambda source: Inputs(texts=source.text_columns)
    joins_rows: bool = False
    one_record: bool = True


def one_text(source: SourceConfig) -> Inputs:
    """Return the text column as inputs. Raises: ConfigError if there are two."""
    if len(source.text_columns) == 2:
        raise ConfigError(
            "two text columns with --layout concat or pack, or --stride, expected one: its texts are joined or cut",
            remedy="give --text-column once, choose --layout pad for pairs, or --layout qa for questions with contexts",
        )
    return Inputs(texts=source.text_columns)


def notes_on_ends(
    documents: RaggedTokens, frame: DocumentFrame, spelt: Callable[[int], str], *, texts: str = "texts"
) -> tuple[str, ...]:
    """Return notes on sampled documents that already begin or end with the frame's tokens."""
    ends = ("begin", frame.before, begin_with), ("end", frame.after, end_with)
    return tuple(
        f"{'all' if have.all() else 'some'} sampled {texts} {place} with {' '.join(map(spelt, tokens))} already; no "
        "second one is added"
        for place, tokens, found in ends
        if (have := found(documents, tokens)).any()
    )


def feature(role: Role, meaning: str, *shape: int, name: str = "", constant: int | None = None) -> Feature:
    """Return a feature of integers, with the role's usual name unless `name` is given."""
    return Feature(
        name=name or ROLES[role].feature_name or role,
        dtype="int64",
        shape=shape,
        role=role,
        meaning=meaning,
        constant=constant,
    )


def input_ids(length: int) -> Feature:
    """Return the feature `input_ids`, which every layout has."""
    return feature("token_ids", "token ids", length)


def permuted(count: int, rng: np.random.Generator | None) -> np.ndarray:
    """Return the order of a shard's rows, int64 [count]: shuffled, or unchanged without `rng`."""
    order = np.arange(count)
    if rng is not None:
        rng.shuffle(order)
    return order


def count_tokens(columns: Mapping[str, np.ndarray], schema: Schema) -> np.ndarray:
    """Count the tokens of each record, without padding, int64 [n], by its masks, segments or counts."""
    marks = [columns[feature.name] for feature in schema.features if ROLES[feature.role].marks_tokens]
    counts = [np.count_nonzero(values, axis=1) for values in marks]
    if (count := schema.with_role("num_tokens")) is not None:
        counts.append(columns[count.name].astype(np.int64))
    return np.sum(counts, axis=0)
