"""Layout `chat`: conversations through the tokenizer's chat template, with a mask on the assistant's words.

    {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}

    input_ids       <|im_start|> user ⏎ 2 + 2 ? <|im_end|> ⏎ <|im_start|> assistant ⏎ 4 <|im_end|> ⏎ . .      L = 16
    attention_mask       1         1  1 1 1 1 1     1      1      1           1     1 1     1      1 0 0
    loss_mask            0         0  0 0 0 0 0     0      0      0           0     0 1     1      0 0 0

Conversations of other forms become such messages first (see `sources.columns.chats`). The ids are those of
`tokenizer.apply_chat_template(messages, tools=tools)`. A conversation of more than L tokens loses whole turns, the
latest ones, or with --truncation-side left the oldest ones behind the system prompt. With --pack-rows conversations
come side by side in rows of L tokens, each with its own segment and positions, as in layout `pack`.

How conversations become tokens and masks: `pipelines.prepare.tokenize.chat`.
"""

from __future__ import annotations

import dataclasses

from pipelines.prepare.layouts.base import (
    Builder,
    Encoded,
    Layout,
    LayoutContext,
    beside_reference,
    feature,
)
from pipelines.prepare.layouts.documents import PackBuilder, open_engines, packed_features
from pipelines.prepare.layouts.rows_builder import UINT8, Field, RowsEncoder, ids_field
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Purpose, Rows
from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.encoder import ChatEncoder
from pipelines.prepare.tokenize.chat.template import Template, open_template
from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine
from pipelines.prepare.tokenize.ragged import id_dtype
from tfrecord_io.errors import TokenizerError
from tfrecord_io.schema import Feature


def _inputs(source: SourceConfig) -> Inputs:
    nested: dict[Purpose, str] = {"messages": source.messages_column} if source.messages_column else {}
    if source.tools_column is not None:
        nested["tools"] = source.tools_column
    return Inputs(nested=nested, finds_chats=source.messages_column is None)


def _open_encoder(context: LayoutContext) -> _ChatEncoder:
    engine, reference = open_engines(context)
    if not isinstance(reference, HuggingFaceEngine):
        raise TokenizerError(
            f"--layout chat needs a tokenizer that reports where its tokens are, which this one, a "
            f"{type(context.tokenizer).__name__}, does not",
            remedy="choose one with a tokenizer.json",
        )
    template = open_template(context.tokenizer, date=context.layout.chat_date, name=context.layout.chat_template)
    aligner = Aligner(context.tokenizer, dtype=id_dtype(context.facts.vocab_size))
    return beside_reference(lambda engine: _ChatEncoder(engine, context, template, aligner), engine, reference)


class _ChatEncoder(RowsEncoder):
    """Batch encoder for conversations."""

    may_reject = True

    def __init__(self, engine: Engine, context: LayoutContext, template: Template, aligner: Aligner) -> None:
        mask = feature("loss_mask", "1 on the tokens to be learned", context.length)
        field = Field(feature=mask, side=context.facts.padding_side, held=UINT8, laid_out=UINT8)
        super().__init__(engine, context, [ids_field(context), field])
        side = context.tokenizer.truncation_side
        self._encoder = ChatEncoder(template, engine, aligner, length=context.length, side=side)

    def features(self) -> tuple[Feature, ...]:
        if not self._context.layout.pack_rows:
            return super().features()
        return (*packed_features(self._context.length), self.fields[-1].feature)

    def encode(self, rows: Rows) -> Encoded:
        encoded = self._encoder.encode(rows.nested["messages"], rows.nested.get("tools"))
        return Encoded(
            ragged={"input_ids": encoded.ids, "loss_mask": encoded.learned},
            arrays=rows.arrays,
            reasons=encoded.reasons,
            full_lengths=encoded.full_lengths,
            tokens_cut=encoded.tokens_cut,
            details=encoded.details,
        )

    def builder(self) -> Builder:
        if not self._context.layout.pack_rows:
            return super().builder()
        facts, dtype = self._context.facts, id_dtype(self._context.facts.vocab_size)
        return PackBuilder(length=self._context.length, pad_id=facts.pad_id, dtype=dtype, loss_mask=True)


CHAT = Layout(open_encoder=_open_encoder, inputs=_inputs)
PACKED_CHAT = dataclasses.replace(CHAT, joins_rows=True, one_record=False)
