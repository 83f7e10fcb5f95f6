"""Layouts that do not join rows: each ragged value is padded to a fixed length, or to one of several.

    ragged input_ids     5 9 2 | 7 | 4 4        fields  input_ids: L = 4, filled with 0 on the right, and a mask
                                                                        attention_mask
    input_ids            5 9 2 0     7 0 0 0     4 4 0 0
    attention_mask       1 1 1 0     1 0 0 0     1 1 0 0

With records of several lengths, rows are laid out in groups, each as if the dataset had only that length:

    lengths 4, 8      rows of   3   6   2   9   4 tokens  (the fourth was cut to 8)
                      group 4:  0       2       4         rows of the task
                      group 8:      1       3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare.layouts.base import (
    BatchEncoder,
    Builder,
    Encoded,
    LayoutContext,
    Lineage,
    Piece,
    feature,
    input_ids,
    permuted,
)
from pipelines.prepare.options.bucket_lengths import bucket_of
from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.engines import Tokenizing
from pipelines.prepare.tokenize.ragged import GrowingRagged, GrowingVector, RaggedTokens, id_dtype
from tfrecord_io.codec.kernels import jit
from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import Feature

UINT8, INT32, _INT64 = np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64)
_ROWS_PER_CHUNK = 1024
# A chunk has fewer long rows, since they are laid out with all of their padding.
_POSITIONS_PER_CHUNK = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """Description of how the ragged values of a feature's name become [N, L], filled up with `fill` on `side`.

    A feature of shape () has one value a record; one with a `constant` has no ragged values. `held`: the dtype of the
    values while a shard is gathered. `laid_out`: that of the array. `mask`: a feature that is 1 on the values and 0
    elsewhere.
    """

    feature: Feature
    fill: int = 0
    side: Side = "right"
    held: np.dtype = INT32
    laid_out: np.dtype = INT32
    mask: Feature | None = None

    def laid_out_rows(self, ragged: Mapping[str, RaggedTokens], order: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values and the mask of the sequences with the indices `order`, by feature name."""
        if self.feature.constant is not None:
            return {self.feature.name: np.full((len(order), *self.feature.shape), self.feature.constant, self.laid_out)}
        values = ragged[self.feature.name]
        if not self.feature.shape:
            return {self.feature.name: values.ids[order].astype(self.laid_out)}
        (length,) = self.feature.shape
        lengths = values.offsets[order + 1] - values.offsets[order]
        if int(lengths.max(initial=0)) > length:
            raise SchemaError(f"a row of {lengths.max()} tokens, expected at most {length}")
        out = {self.feature.name: np.empty((len(order), length), self.laid_out)}
        left = self.side == "left"
        _place(out[self.feature.name], values.ids, values.offsets, order, left, self.fill)
        if self.mask is not None:
            positions, sizes = np.arange(length, dtype=np.int32), lengths.astype(np.int32)[:, None]
            mask = positions >= length - sizes if left else positions < sizes
            out[self.mask.name] = mask.view(np.int8)
        return out

    def of_length(self, length: int) -> Field:
        """Return the field for rows of another length."""
        mask = None if self.mask is None else dataclasses.replace(self.mask, shape=(length,))
        return dataclasses.replace(self, feature=dataclasses.replace(self.feature, shape=(length,)), mask=mask)


def ids_field(context: LayoutContext) -> Field:
    """Return the field of the tokens, with the attention mask."""
    facts, length = context.facts, context.length
    mask = feature("attention_mask", "1 on tokens, 0 on padding", length)
    held = id_dtype(facts.vocab_size)
    return Field(feature=input_ids(length), fill=facts.pad_id, side=facts.padding_side, held=held, mask=mask)


class RowsEncoder(BatchEncoder):
    """Base class of encoders that give each row records of its own; `fields` say what the records hold."""

    def __init__(self, tokenizing: Tokenizing, context: LayoutContext, fields: Sequence[Field]) -> None:
        super().__init__(tokenizing)
        self._context = context
        self.fields = tuple(fields)

    def features(self) -> tuple[Feature, ...]:
        """Return the features that the layout makes of text."""
        return tuple(each for field in self.fields for each in (field.feature, field.mask) if each is not None)

    def builder(self) -> Builder:
        """Return a builder for one shard."""
        return RowsBuilder(self.fields, lengths=self._context.layout.buckets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Gathered:
    """Sequences, and what R records are made of them.

    `ragged`: all sequences, by feature name. By record: `sequences`, the index of its sequence; `rows`, that of its
    row among the usable rows; `tokens_cut`, how many tokens the sequence is shorter than the row; `arrays`, other
    features.
    """

    ragged: Mapping[str, RaggedTokens]
    sequences: np.ndarray
    rows: np.ndarray
    tokens_cut: np.ndarray
    arrays: Mapping[str, np.ndarray]

    def take(self, which: np.ndarray) -> _Gathered:
        """Return the records with the indices `which`."""
        arrays = {name: values[which] for name, values in self.arrays.items()}
        sequences, rows, tokens_cut = self.sequences[which], self.rows[which], self.tokens_cut[which]
        return _Gathered(ragged=self.ragged, sequences=sequences, rows=rows, tokens_cut=tokens_cut, arrays=arrays)


class RowsBuilder:
    """Builder that makes one record of each sequence, with other arrays beside it.

    With `lengths`, each record has the smallest length that holds it: `length_groups` takes the builder apart.
    """

    def __init__(self, fields: Sequence[Field], *, lengths: Sequence[int] = ()) -> None:
        self.rows_used = 0
        self.tokens_cut = 0
        self.lengths = tuple(lengths)
        self._fields = tuple(fields)
        named = {field.feature.name: field for field in fields if field.feature.constant is None}
        self._ragged = {name: GrowingRagged(field.held) for name, field in named.items()}
        self._arrays: list[dict[str, np.ndarray]] = []
        self._sequences, self._rows, self._cut = (GrowingVector(_INT64) for _ in range(3))
        self._num_sequences = self._num_rows = 0
        self._gathered: _Gathered | None = None

    def add(self, encoded: Encoded) -> None:
        """Add the usable rows of a batch."""
        self.tokens_cut += encoded.tokens_cut
        for name, ragged in self._ragged.items():
            ragged.append(encoded.ragged[name])
        usable = np.flatnonzero(encoded.usable)
        owners = encoded.row_of_sequence[usable]
        # Unusable rows do not count: they are listed in rejected/.
        number = np.cumsum(encoded.reasons == "") - 1 + self._num_rows
        self._rows.append(number[owners])
        self._num_rows += int((encoded.reasons == "").sum())
        self._sequences.append(usable + self._num_sequences)
        self._num_sequences += len(encoded.row_of_sequence)
        self._arrays.append({name: values[owners] for name, values in encoded.arrays.items()})
        self._cut.append(encoded.full_lengths[owners] - encoded.ragged["input_ids"].lengths[usable])

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns by feature name, a thousand records at a time, or fewer long ones."""
        gathered = self._take()
        order = permuted(len(gathered.rows), rng)
        laid_out = np.zeros(int(gathered.rows.max(initial=-1)) + 1, bool)
        longest = max(max(field.feature.shape, default=1) for field in self._fields)
        chunk_rows = max(1, min(_ROWS_PER_CHUNK, _POSITIONS_PER_CHUNK // longest))
        for start in range(0, len(order), chunk_rows):
            chosen = gathered.take(order[start : start + chunk_rows])
            laid_out[chosen.rows] = True
            self.rows_used = int(np.count_nonzero(laid_out))
            columns: dict[str, np.ndarray] = {}
            for field in self._fields:
                columns |= field.laid_out_rows(chosen.ragged, chosen.sequences)
            yield columns | dict(chosen.arrays)

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return the lineage of records: each comes from one row."""
        gathered = self._take()
        lengths = gathered.ragged["input_ids"].lengths[gathered.sequences]
        order = permuted(len(gathered.rows), rng)
        return lambda record: [Piece(int(gathered.rows[order[record]]), 0, int(lengths[order[record]]))]

    def length_groups(self) -> tuple[LengthGroup, ...]:
        """Return the groups that have rows, or the one of the longest records if none has. Empties the builder."""
        gathered = self._take()
        bucket = bucket_of(self.lengths, gathered.ragged["input_ids"].lengths[gathered.sequences])
        groups = []
        for at, length in enumerate(self.lengths):
            builder = RowsBuilder([field.of_length(length) for field in self._fields])
            builder._gathered = taken = gathered.take(np.flatnonzero(bucket == at))
            builder.tokens_cut = int(taken.tokens_cut.sum())
            groups.append(LengthGroup(length=length, builder=builder, rows=taken.rows))
        return tuple(group for group in groups if group.rows is not None and len(group.rows)) or (groups[-1],)

    def _take(self) -> _Gathered:
        """Return what was gathered; the builder is empty afterwards."""
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            first = self._arrays[0] if self._arrays else {}
            gathered = _Gathered(
                ragged={name: growing.take_all() for name, growing in self._ragged.items()},
                sequences=self._sequences.take_all(),
                rows=self._rows.take_all(),
                tokens_cut=self._cut.take_all(),
                arrays={name: np.concatenate([batch[name] for batch in self._arrays]) for name in first},
            )
            self._arrays.clear()
            self._num_sequences = self._num_rows = 0
        return gathered


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthGroup:
    """The rows of a task whose records have one length.

    `length` is None if all records of the dataset have the same length, and `rows` too then. Otherwise `rows` int64 are
    the indices of the group's rows among the task's usable rows.
    """

    length: int | None
    builder: Builder
    rows: np.ndarray | None = None


def length_groups(builder: Builder) -> tuple[LengthGroup, ...]:
    """Return what a builder has gathered, by length: at least one group; an empty one only if there is no other."""
    if isinstance(builder, RowsBuilder) and builder.lengths:
        return builder.length_groups()
    return (LengthGroup(length=None, builder=builder),)


# Indices are unsigned: for a signed one, each access tests whether it counts from the end, which takes several times as
# long as copying the element (measured).
@jit
def _place(out, values, offsets, order, left, fill):  # type: ignore[no-untyped-def]
    """Copy each sequence of `order` into a row, and `fill` into the rest of it."""
    length = np.uint64(out.shape[1])
    for row in range(len(order)):
        start, size = np.uint64(offsets[order[row]]), np.uint64(offsets[order[row] + 1] - offsets[order[row]])
        at = length - size if left else np.uint64(0)
        line = out[row]
        for position in range(at):
            line[np.uint64(position)] = fill
        for position in range(size):
            line[at + np.uint64(position)] = values[start + np.uint64(position)]
        for position in range(at + size, length):
            line[np.uint64(position)] = fill
