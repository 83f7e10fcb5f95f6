"""Layout `pad`: one record for each row, as `tokenizer(text, pair, padding="max_length")` makes it.

    [CLS] a b [SEP] . . .      input_ids
      1   1 1   1   0 0 0      attention_mask
      0   0 0   0   0 0 0      token_type_ids, where the tokenizer has them

`.` is padding, on the tokenizer's side. With --bucket-lengths records have one of several lengths (see `rows_builder`).
"""

from __future__ import annotations

import numpy as np

from pipelines.prepare.layouts.base import Encoded, Layout, LayoutContext, beside_reference, feature
from pipelines.prepare.layouts.rows_builder import UINT8, Field, RowsEncoder, ids_field
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from pipelines.prepare.tokenize.text_rows import EncodedRows, RowEncoder, open_rows, with_engine

__all__ = ["PAD", "PadEncoder", "open_pad", "token_fields"]


def token_fields(context: LayoutContext, *, constant_type: int | None = None) -> list[Field]:
    """Return the fields of tokens, and of their type ids if the tokenizer has such.

    `constant_type`: the type id of every position, padding included, if it is always the same.
    """
    tokenizer, side = context.tokenizer, context.facts.padding_side
    if "token_type_ids" not in tokenizer.model_input_names:
        return [ids_field(context)]
    meaning, pad_type = "which text of a pair a token belongs to", tokenizer.pad_token_type_id
    types = feature("token_type_ids", meaning, context.length, constant=constant_type)
    return [ids_field(context), Field(feature=types, fill=pad_type, side=side, held=UINT8, laid_out=UINT8)]


class PadEncoder(RowsEncoder):
    """Batch encoder that pads what `encoder` makes of each row. `more`: fields behind those of tokens."""

    def __init__(self, encoder: RowEncoder, context: LayoutContext, *more: Field) -> None:
        only, pad_type = encoder.only_type, context.tokenizer.pad_token_type_id
        fields = token_fields(context, constant_type=only if only == pad_type else None)
        super().__init__(encoder, context, [*fields, *more])
        truncation = context.layout.truncation
        self.may_reject = truncation != "longest_first"
        self._encoder = encoder
        self._impossible = "too_long" if truncation == "do_not_truncate" else "cannot_truncate"

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


def open_pad(context: LayoutContext) -> PadEncoder:
    """Open the encoder with the engine to use, and the reference beside it."""
    tokenizer, dtype = context.tokenizer, id_dtype(context.facts.vocab_size)
    pair, truncation = len(context.columns.texts) == 2, context.layout.truncation
    slow = open_rows(tokenizer, length=context.length, truncation=truncation, pair=pair, dtype=dtype)
    fast = with_engine(slow, tokenizer, dtype=dtype, wanted=context.engine)
    return beside_reference(lambda rows: PadEncoder(rows, context), fast, slow)


PAD = Layout(open_encoder=open_pad)
