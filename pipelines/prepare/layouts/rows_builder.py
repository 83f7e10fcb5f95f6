"""Encoder and builder for layouts that do not join rows: each row is padded to a fixed length, or to one of several.

The rows of each length get their own builder and shard:

    lengths 4, 8      rows of   3   6   2   9   4 tokens  (truncated to 8)
                      length 4: 0       2       4         row numbers
                      length 8:     1       3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare.layouts import base, packing
from pipelines.prepare.options.bucket_lengths import length_index
from pipelines.prepare.options.config import Side
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.engines import Tokenizing
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import Feature

UINT8, INT32 = np.dtype(np.uint8), np.dtype(np.int32)
_ROWS_PER_CHUNK = 1024
_POSITIONS_PER_CHUNK = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """Feature of N records, and how to make its array: [N, L] of dtype `laid_out`, padded with `fill` on `side`.

    `mask`: another feature, which is 1 on values and 0 on padding; None without a mask.
    """

    feature: Feature
    fill: int = 0
    side: Side = "right"
    laid_out: np.dtype = INT32
    mask: Feature | None = None

    def laid_out_rows(self, ragged: Mapping[str, RaggedTokens], order: np.ndarray) -> dict[str, np.ndarray]:
        """Return the padded arrays of the feature and its mask, by name, for the sequences at the indices `order`."""
        if self.feature.constant is not None:
            return {self.feature.name: np.full((len(order), *self.feature.shape), self.feature.constant, self.laid_out)}
        values = ragged[self.feature.name]
        if not self.feature.shape:
            return {self.feature.name: values.ids[order].astype(self.laid_out)}
        (length,) = self.feature.shape
        lengths = values.offsets[order + 1] - values.offsets[order]
        if int(lengths.max(initial=0)) > length:
            raise SchemaError(f"a row has {lengths.max():,} tokens, expected at most {length:,}")
        out = {self.feature.name: np.empty((len(order), length), self.laid_out)}
        left = self.side == "left"
        starts, edges = values.offsets[order], np.arange(len(order) + 1)
        packing.place(values.ids, starts, lengths, edges, left, self.fill, out[self.feature.name])
        if self.mask is not None:
            positions, sizes = np.arange(length, dtype=np.int32), lengths.astype(np.int32)[:, None]
            mask = positions >= length - sizes if left else positions < sizes
            out[self.mask.name] = mask.view(np.int8)
        return out

    def of_length(self, length: int) -> Field:
        mask = None if self.mask is None else dataclasses.replace(self.mask, shape=(length,))
        return dataclasses.replace(self, feature=dataclasses.replace(self.feature, shape=(length,)), mask=mask)


def ids_field(context: base.LayoutContext) -> Field:
    """Return the field of token ids, with the attention mask as its `mask`."""
    facts, length = context.facts, context.length
    mask = base.feature("attention_mask", "1 on tokens, 0 on padding", length)
    return Field(feature=base.input_ids(length), fill=facts.pad_id, side=facts.padding_side, mask=mask)


class RowsEncoder(base.BatchEncoder):
    """Base class of encoders for records that come from one row each. `fields`: the fields of a record."""

    def __init__(self, tokenizing: Tokenizing, context: base.LayoutContext, fields: Sequence[Field]) -> None:
        super().__init__(tokenizing)
        self._context = context
        self.fields = tuple(fields)

    def features(self) -> tuple[Feature, ...]:
        pairs = ((field.feature, field.mask) for field in self.fields)
        return tuple(feature for pair in pairs for feature in pair if feature is not None)

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        facts, encoded = self._context.facts, self.encode(rows)
        places = {"begin": (0, {facts.bos_id, facts.cls_id}), "end": (-2, {facts.eos_id, facts.sep_id})}
        twice = dict.fromkeys(
            (place, int(token))
            for name in ("input_ids", "target_ids")
            if name in encoded.ragged
            for place, (first, ids) in places.items()
            for token in _repeated(encoded.ragged[name], first)
            if token in ids
        )
        spelt = self._context.tokenizer.convert_ids_to_tokens
        return tuple(
            f"some sampled texts already {place} with {spelt(token)}, and the tokenizer adds another, as in "
            "`transformers`; to have the token once, remove it from the texts with a function and --map"
            for place, token in twice
        )

    def builder(self) -> base.Builder:
        return RowsBuilder(self.fields, lengths=self._context.layout.buckets)


class RowsBuilder(base.Builder):
    """Builder of one record per token sequence. `lengths`: record lengths for `by_length`; empty if all are equal."""

    def __init__(self, fields: Sequence[Field], *, lengths: Sequence[int] = ()) -> None:
        super().__init__()
        self._lengths = tuple(lengths)
        self._fields = tuple(fields)
        self._chosen: np.ndarray | None = None

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        whole, sequences = self._take_sequences()
        order, owners = sequences[base.permuted(len(sequences), rng)], whole.row_of_sequence
        laid_out = np.zeros(len(whole.reasons), bool)
        longest = max(max(field.feature.shape, default=1) for field in self._fields)
        chunk_rows = max(1, min(_ROWS_PER_CHUNK, _POSITIONS_PER_CHUNK // longest))
        for start in range(0, len(order), chunk_rows):
            chosen = order[start : start + chunk_rows]
            laid_out[owners[chosen]] = True
            self.rows_used = int(np.count_nonzero(laid_out))
            columns: dict[str, np.ndarray] = {}
            for field in self._fields:
                columns |= field.laid_out_rows(whole.ragged, chosen)
            yield columns | {name: values[owners[chosen]] for name, values in whole.arrays.items()}

    def lineage(self, rng: np.random.Generator | None) -> base.Lineage:
        whole, sequences = self._take_sequences()
        order = sequences[base.permuted(len(sequences), rng)]
        ids = whole.ragged[self._fields[0].feature.name]
        rows, lengths = _usable_row_of(whole, order), ids.lengths[order]
        return lambda record: [base.Piece(int(rows[record]), 0, int(lengths[record]))]

    def by_length(self) -> Sequence[base.Builder]:
        if not self._lengths:
            return super().by_length()
        whole, sequences = self._take_sequences()
        kept, full = whole.ragged["input_ids"].lengths, whole.full_lengths[whole.row_of_sequence]
        bucket = length_index(self._lengths, kept[sequences])
        builders = []
        for at in np.unique(bucket).tolist() or [len(self._lengths) - 1]:
            length, chosen = self._lengths[at], sequences[bucket == at]
            builder = RowsBuilder([field.of_length(length) for field in self._fields])
            builder._batches, builder._chosen = [whole], chosen
            builder.length, builder.rows = length, _usable_row_of(whole, chosen)
            builder.tokens_cut = int((full - kept)[chosen].sum())
            builders.append(builder)
        return builders

    def _take_sequences(self) -> tuple[base.Encoded, np.ndarray]:
        whole = self._take()
        return whole, np.flatnonzero(whole.usable) if self._chosen is None else self._chosen


def _repeated(rows: RaggedTokens, first: int) -> list[int]:
    usable = np.flatnonzero(rows.lengths > 2)  # around an empty text, the tokenizer's two tokens may be equal
    places = (rows.offsets[1:] if first < 0 else rows.offsets[:-1])[usable] + first
    tokens = rows.ids[places]
    return np.unique(tokens[tokens == rows.ids[places + 1]]).tolist()


def _usable_row_of(whole: base.Encoded, sequences: np.ndarray) -> np.ndarray:
    return np.asarray((np.cumsum(whole.reasons == "") - 1)[whole.row_of_sequence[sequences]])
