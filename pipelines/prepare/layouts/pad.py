"""Layout `pad`: one record for each row, as `tokenizer(text, pair, padding="max_length")` makes it.

    [CLS] a b [SEP] . . .      input_ids
      1   1 1   1   0 0 0      attention_mask
      0   0 0   0   0 0 0      token_type_ids, where the tokenizer has them

`.` is padding, on the tokenizer's side. With --bucket-lengths records have one of several lengths (see `buckets`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, input_ids
from pipelines.prepare.layouts.buckets import BucketsBuilder
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.options.config import EngineName
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.engines import SlowEngine, choose
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from pipelines.prepare.tokenize.text_rows import RowEncoder, TemplateRows, open_rows
from tfrecord_io.schema import Feature

__all__ = ["PAD", "attention_mask", "fields_of", "open_row_encoders", "type_feature"]


def attention_mask(length: int) -> Feature:
    """Return the feature that masks padding."""
    return Feature(
        name="attention_mask",
        dtype="int64",
        shape=(length,),
        role="attention_mask",
        meaning="1 on tokens, 0 on padding",
    )


def type_feature(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    """Return the feature of token type ids, if the tokenizer has them."""
    if "token_type_ids" not in context.tokenizer.model_input_names:
        return ()
    return (
        Feature(
            name="token_type_ids",
            dtype="int64",
            shape=(context.length,),
            role="token_type_ids",
            meaning="which text of a pair a token belongs to",
            constant=encoder.constant_type,
        ),
    )


def open_row_encoders(context: LayoutContext) -> tuple[RowEncoder, RowEncoder]:
    """Open what makes whole rows of texts: with the engine to use, and with the reference engine."""
    dtype = id_dtype(context.facts.vocab_size)
    slow = open_rows(
        context.tokenizer,
        length=context.length,
        truncation=context.layout.truncation,
        pair=len(context.columns.texts) == 2,
        dtype=dtype,
    )
    return _faster(slow, context.tokenizer, dtype=dtype, wanted=context.engine), slow


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


def _faster(rows: RowEncoder, tokenizer: Any, *, dtype: np.dtype, wanted: EngineName) -> RowEncoder:
    """Return the row encoder with the engine to use, or unchanged if no engine can make its rows."""
    if not isinstance(rows, TemplateRows):
        # Raises an error if an engine was requested by name.
        choose(tokenizer, SlowEngine(tokenizer, dtype=dtype), dtype=dtype, wanted=wanted)
        return rows
    chosen = choose(tokenizer, rows.engine, dtype=dtype, wanted=wanted)
    return rows if chosen is rows.engine else rows.with_engine(chosen)


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    fast, slow = open_row_encoders(context)
    reference = None if fast is slow else _PadBatchEncoder(slow, context, reference=None)
    return _PadBatchEncoder(fast, context, reference=reference)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    return (input_ids(context.length), attention_mask(context.length), *type_feature(context, encoder))


class _PadBatchEncoder:
    def __init__(self, encoder: RowEncoder, context: LayoutContext, *, reference: BatchEncoder | None) -> None:
        truncation = context.layout.truncation
        self.may_reject = truncation != "longest_first"
        self.concurrent = encoder.concurrent
        only, pad_type = encoder.only_type, context.tokenizer.pad_token_type_id
        self.constant_type = only if only == pad_type else None
        self.engine, self.engine_version = encoder.name, encoder.version
        self.reference = reference
        self._encoder = encoder
        self._impossible = "too_long" if truncation == "do_not_truncate" else "cannot_truncate"
        self._length, self._lengths = context.length, context.layout.buckets
        self._fields, self._constants = fields_of(context, constant_type=self.constant_type)

    def encode(self, rows: Rows) -> Encoded:
        encoded = self._encoder.encode(rows.texts)
        ragged = {"input_ids": encoded.ids}
        if encoded.types is not None:
            ragged["token_type_ids"] = RaggedTokens(encoded.types, encoded.ids.offsets)
        return Encoded(
            ragged=ragged,
            arrays=rows.arrays,
            reasons=np.where(encoded.impossible, self._impossible, "").astype(object),
            full_lengths=encoded.full_lengths,
            tokens_cut=encoded.tokens_cut,
        )

    def builder(self) -> Builder:
        return BucketsBuilder(self._lengths, self._rows_of) if self._lengths else self._rows_of(self._length)

    def _rows_of(self, length: int) -> Builder:
        fields = [dataclasses.replace(field, length=length) for field in self._fields]
        return RowsBuilder(fields, constants={name: value[:length] for name, value in self._constants.items()})


PAD = Layout(open_encoder=_open_encoder, features=_features)
