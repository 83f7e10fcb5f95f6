"""Layout `pad`: one record for each row, as `tokenizer(text, pair, padding="max_length")` makes it.

    [CLS] a b [SEP] . . .      input_ids
      1   1 1   1   0 0 0      attention_mask
      0   0 0   0   0 0 0      token_type_ids, where the tokenizer has them

`.` is padding, on the tokenizer's side. With --bucket-lengths records have one of several lengths (see `rows_builder`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.layouts.base import (
    BatchEncoder,
    Builder,
    Encoded,
    Layout,
    LayoutContext,
    beside_reference,
    feature,
    input_ids,
)
from pipelines.prepare.layouts.rows_builder import BucketsBuilder, Field, RowsBuilder
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from pipelines.prepare.tokenize.text_rows import EncodedRows, RowEncoder, open_rows, with_engine
from tfrecord_io.schema import Feature

__all__ = ["PAD", "PadEncoder", "attention_mask", "fields_of"]


def attention_mask(length: int) -> Feature:
    """Return the feature that masks padding."""
    return feature("attention_mask", "1 on tokens, 0 on padding", length)


def fields_of(context: LayoutContext, *, constant_type: int | None) -> tuple[list[Field], dict[str, np.ndarray]]:
    """Return how tokens and their type ids are laid out: fields, and constants by feature name."""
    tokenizer, facts, length = context.tokenizer, context.facts, context.length
    side = facts.padding_side
    dtype = id_dtype(facts.vocab_size)
    fields = [Field(name="input_ids", length=length, fill=facts.pad_id, side=side, held=dtype, mask="attention_mask")]
    if "token_type_ids" not in tokenizer.model_input_names:
        return fields, {}
    narrow = np.dtype(np.uint8)
    if constant_type is not None:
        return fields, {"token_type_ids": np.full(length, constant_type, narrow)}
    pad_type = tokenizer.pad_token_type_id
    fields.append(Field(name="token_type_ids", length=length, fill=pad_type, side=side, held=narrow, laid_out=narrow))
    return fields, {}


class PadEncoder(BatchEncoder):
    """Batch encoder that pads what `encoder` makes of each row."""

    def __init__(self, encoder: RowEncoder, context: LayoutContext) -> None:
        super().__init__(encoder)
        truncation = context.layout.truncation
        self.may_reject = truncation != "longest_first"
        only, pad_type = encoder.only_type, context.tokenizer.pad_token_type_id
        self.constant_type = only if only == pad_type else None
        self._encoder = encoder
        self._context = context
        self._impossible = "too_long" if truncation == "do_not_truncate" else "cannot_truncate"
        self._fields, self._constants = fields_of(context, constant_type=self.constant_type)

    def encode(self, rows: Rows) -> Encoded:
        """Tokenize one batch."""
        return self._encoded(self._encoder.encode(rows.texts), rows)

    def _encoded(self, encoded: EncodedRows, rows: Rows, **more: np.ndarray) -> Encoded:
        """Return the batch. `more`: other values of each token, by feature name."""
        if encoded.types is not None:
            more["token_type_ids"] = encoded.types
        ids = encoded.ids
        return Encoded(
            ragged={"input_ids": ids, **{name: RaggedTokens(each, ids.offsets) for name, each in more.items()}},
            arrays=rows.arrays,
            reasons=np.where(encoded.impossible, self._impossible, "").astype(object),
            full_lengths=encoded.full_lengths,
            tokens_cut=encoded.tokens_cut,
        )

    def builder(self) -> Builder:
        """Return a builder for one shard."""
        lengths = self._context.layout.buckets
        return BucketsBuilder(lengths, self._rows_of) if lengths else self._rows_of(self._context.length)

    def _rows_of(self, length: int) -> Builder:
        fields = [dataclasses.replace(field, length=length) for field in self._fields]
        return RowsBuilder(fields, constants={name: value[:length] for name, value in self._constants.items()})


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    tokenizer, dtype = context.tokenizer, id_dtype(context.facts.vocab_size)
    pair, truncation = len(context.columns.texts) == 2, context.layout.truncation
    slow = open_rows(tokenizer, length=context.length, truncation=truncation, pair=pair, dtype=dtype)
    fast = with_engine(slow, tokenizer, dtype=dtype, wanted=context.engine)
    return beside_reference(lambda rows: PadEncoder(rows, context), fast, slow)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    always = (input_ids(context.length), attention_mask(context.length))
    if "token_type_ids" not in context.tokenizer.model_input_names:
        return always
    meaning = "which text of a pair a token belongs to"
    return (*always, feature("token_type_ids", meaning, context.length, constant=encoder.constant_type))


PAD = Layout(open_encoder=_open_encoder, features=_features)
