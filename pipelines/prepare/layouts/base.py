"""Interface of layouts: a `BatchEncoder` tokenizes batches of rows; a `Builder` collects them and makes records."""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pipelines.prepare.options.config import EngineName, LayoutConfig, SourceConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs, Purpose, Rows
from pipelines.prepare.tokenize.engines import HFTokenizer, Tokenizing
from pipelines.prepare.tokenize.ragged import RaggedTokens, concatenated
from pipelines.prepare.tokenize.special_tokens import DocumentFrame, begin_with, end_with
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import ROLES, TOKEN_IDS, Feature, Role, Schema

_Encoder = TypeVar("_Encoder", bound="BatchEncoder")
# Names of the features with token ids. All other ragged features annotate tokens.
_TOKENS = {ROLES[role].feature_name or role for role in TOKEN_IDS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """Tokenized batch of N rows.

    `ragged`: sequences of values by feature name, such as token ids: one per row, or per entry of `owners`.
    `owners` int64, ascending: the row index of each sequence; None if each row has exactly one sequence.
    `arrays`: features that are not tokenized, by name, [N, ...].
    `reasons` object [N]: why a row is rejected, or ''.
    `full_lengths` int64 [N]: tokens before truncation, including special tokens.
    `side_lengths`, by answer: for preference pairs, full lengths with this answer; `full_lengths` has the larger.
    `tokens_cut`: tokens that truncation removed from usable rows.
    `fim`: usable rows by kind of fill-in-the-middle (see `Ledger`).
    `details`: explanations of the reasons, by row index.
    """

    ragged: Mapping[str, RaggedTokens]
    arrays: Mapping[str, np.ndarray]
    reasons: np.ndarray
    full_lengths: np.ndarray
    tokens_cut: int = 0
    fim: Mapping[str, int] = dataclasses.field(default_factory=dict)
    owners: np.ndarray | None = None
    details: Mapping[int, str] = dataclasses.field(default_factory=dict)
    side_lengths: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all sequences of token ids."""
        return sum(len(ragged.ids) for name, ragged in self.ragged.items() if name in _TOKENS)

    @property
    def row_of_sequence(self) -> np.ndarray:
        """Row index of each sequence, int64, ascending."""
        return np.arange(len(self.reasons)) if self.owners is None else self.owners

    @property
    def num_sequences(self) -> np.ndarray:
        """Number of sequences per row, int64 [N]."""
        return np.bincount(self.row_of_sequence, minlength=len(self.reasons))

    @property
    def usable(self) -> np.ndarray:
        """Mask of the sequences that come from usable rows, bool [number of sequences]."""
        return np.asarray((self.reasons == "")[self.row_of_sequence])

    def take(self, indices: np.ndarray) -> Encoded:
        """Return a batch of the rows at the ascending `indices`, with only sequences, `reasons` and `full_lengths`."""
        new_index = np.full(len(self.reasons), -1)
        new_index[indices] = np.arange(len(indices))
        owners = new_index[self.row_of_sequence]
        chosen = np.flatnonzero(owners >= 0)
        return Encoded(
            ragged={name: sequences.take(chosen) for name, sequences in self.ragged.items()},
            arrays={},
            reasons=self.reasons[indices],
            full_lengths=self.full_lengths[indices],
            owners=None if self.owners is None else owners[chosen],
        )

    @classmethod
    def joined(cls, parts: Sequence[Encoded]) -> Encoded:
        """Concatenate one or more batches, without `details`, `tokens_cut`, `fim` and `side_lengths`."""
        firsts = itertools.accumulate((len(part.reasons) for part in parts[:-1]), initial=0)
        owners = [part.row_of_sequence + first for part, first in zip(parts, firsts, strict=True)]
        return cls(
            ragged={name: concatenated([part.ragged[name] for part in parts]) for name in parts[0].ragged},
            arrays={name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays},
            reasons=np.concatenate([part.reasons for part in parts]),
            full_lengths=np.concatenate([part.full_lengths for part in parts]),
            owners=None if parts[0].owners is None else np.concatenate(owners),
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a record: its tokens [start, stop) come from `row`, an index among the task's usable rows."""

    row: int
    start: int
    stop: int


# Function that returns a record's pieces in order, from its index in the shard.
Lineage = Callable[[int], list[Piece]]


class Builder(abc.ABC):
    """Collects tokenized rows, and makes the records of a shard.

    `rows_used`: rows in records. `tokens_cut`: tokens of used rows that are in no record. Both are final after the last
    chunk. `length`, `rows`: see `by_length`; None if all records have the same length.
    """

    length: int | None = None
    rows: np.ndarray | None = None

    def __init__(self) -> None:
        self.rows_used = self.tokens_cut = 0
        self.fim = collections.Counter[str]()
        self._batches: list[Encoded] = []

    def add(self, encoded: Encoded) -> None:
        """Add a batch of tokenized rows. Batches must be added in reading order."""
        self.tokens_cut += encoded.tokens_cut
        self.fim.update(encoded.fim)
        self._batches.append(encoded)

    def _take(self) -> Encoded:
        whole = Encoded.joined(self._batches) if len(self._batches) != 1 else self._batches[0]
        self._batches = []
        return whole

    @abc.abstractmethod
    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Yield n records at a time: arrays [n, ...] by feature name. `rng` shuffles them. Empties the builder."""

    def by_length(self) -> Sequence[Builder]:
        """Return one builder per record length that occurs; only this builder if all records have the same length.

        Sets each builder's `length`, its record length, and its `rows`, int64: indices among the task's usable rows.
        """
        return (self,)

    @abc.abstractmethod
    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return a function from a record's index to the rows that it comes from (see `Lineage`). Empties the builder.

        The records are the ones that `chunks` would yield with the same `rng`.
        """


class BatchEncoder(abc.ABC):
    """Tokenizer set up for one layout. Encoders can be pickled.

    `engine`: its name and version. `concurrent`: calling `encode` in several threads at once is faster. `reference`:
    the same encoder with the reference engine; None if this encoder uses it. `notes`: lines to print before the build.
    """

    notes: tuple[str, ...] = ()
    reference: BatchEncoder | None = None

    def __init__(self, tokenizing: Tokenizing) -> None:
        self.engine = f"{tokenizing.name} {tokenizing.version}"
        self.concurrent = tokenizing.concurrent

    @abc.abstractmethod
    def features(self) -> tuple[Feature, ...]:
        """Return the features that the layout computes from texts."""

    @abc.abstractmethod
    def encode(self, rows: Rows) -> Encoded:
        """Tokenize one batch of rows. Several threads may call this at once."""

    @abc.abstractmethod
    def builder(self) -> Builder:
        """Return a builder for one shard."""

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        """Return lines to print about a sample of rows. Must not be called on an unpickled encoder."""
        return ()


def beside_reference(open_with: Callable[[Any], _Encoder], fast: Tokenizing, slow: Tokenizing) -> _Encoder:
    """Return `open_with(fast)`, an encoder. Its `reference` is `open_with(slow)`, unless both engines are the same."""
    encoder = open_with(fast)
    if slow is not fast:
        encoder.reference = open_with(slow)
    return encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutContext:
    """Arguments for opening an encoder. `length`: tokens in the longest record. `seed`: for fill-in-the-middle."""

    tokenizer: HFTokenizer
    facts: TokenizerFacts
    layout: LayoutConfig
    length: int
    columns: ColumnPlan
    engine: EngineName = "auto"
    seed: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "tokenizer": None}  # not needed after unpickling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Description of one layout.

    `open_encoder` may raise ConfigError or TokenizerError, `inputs` ConfigError. `joins_rows`: a record may contain
    parts of several rows, so it has no label. Otherwise a row has exactly one record (`one_record`) or any number.
    """

    open_encoder: Callable[[LayoutContext], BatchEncoder]
    inputs: Callable[[SourceConfig], Inputs] = lambda source: Inputs(texts=source.text_columns)
    joins_rows: bool = False
    one_record: bool = True


def one_text(source: SourceConfig) -> Inputs:
    """Return the name of the text column, for layouts of one text. Raises: ConfigError if the user named two."""
    if len(source.text_columns) == 2:
        raise ConfigError(
            "two text columns, but --layout concat, --layout pack and --stride accept only one",
            remedy="give --text-column once, choose --layout pad for pairs, or --layout qa for questions with contexts",
        )
    return Inputs(texts=source.text_columns)


def notes_on_ends(documents: RaggedTokens, frame: DocumentFrame, spelt: Callable[[int], str]) -> tuple[str, ...]:
    """Return notes on sampled texts that already begin or end with the frame's tokens. `spelt`: the text of a token."""
    ends = ("begin", frame.before, begin_with), ("end", frame.after, end_with)
    return tuple(
        f"{'all' if matches.all() else 'some'} sampled texts already {verb} with {' '.join(map(spelt, tokens))}; no "
        "second one is added"
        for verb, tokens, test in ends
        if (matches := test(documents, tokens)).any()
    )


def named_columns(source: SourceConfig, *purposes: Purpose) -> dict[Purpose, str]:
    """Return the names given by options such as --tools-column, by purpose (such as "tools")."""
    named = {purpose: getattr(source, f"{purpose}_column") for purpose in purposes}
    return {purpose: name for purpose, name in named.items() if name}


def feature(role: Role, meaning: str, *shape: int, name: str = "", constant: int | None = None) -> Feature:
    """Return an integer feature. `constant`: its only value. `name`: by default the usual name of the role."""
    name = name or ROLES[role].feature_name or role
    return Feature(name=name, dtype="int64", shape=shape, role=role, meaning=meaning, constant=constant)


def input_ids(length: int) -> Feature:
    return feature("token_ids", "token ids", length)


def permuted(count: int, rng: np.random.Generator | None) -> np.ndarray:
    """Return the numbers from 0 to `count` - 1, int64: shuffled with `rng`, or ascending if `rng` is None."""
    return np.arange(count) if rng is None else rng.permutation(count)


def count_tokens(columns: Mapping[str, np.ndarray], schema: Schema) -> np.ndarray:
    """Return the number of tokens, without padding, in each of n records, int64 [n].

    `columns`: arrays [n, ...] by feature name.
    """
    marks = [columns[feature.name] for feature in schema.features if ROLES[feature.role].marks_tokens]
    counts = [np.count_nonzero(values, axis=1) for values in marks]
    if (count := schema.with_role("num_tokens")) is not None:
        counts.append(columns[count.name].astype(np.int64))
    return np.sum(counts, axis=0)
