"""Layout `seq2seq`: each row becomes one record with the input of an encoder and the target of a decoder.

The inputs equal `tokenizer(prefix + text, truncation=True, max_length=L, padding="max_length")`, and the targets equal
`tokenizer(text_target=target, truncation=True, max_length=T)`. Targets are padded on the right, because the reader
shifts them for the decoder (`tfrecord_io.objectives`). docs/format.md has an example.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.layouts.base import BatchEncoder, Encoded, Layout, LayoutContext, feature
from pipelines.prepare.layouts.pad import PadEncoder
from pipelines.prepare.layouts.rows_builder import Field, RowsEncoder
from pipelines.prepare.options.config import SourceConfig, Truncation
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs, Rows
from pipelines.prepare.tokenize import engines
from pipelines.prepare.tokenize.special_tokens import require_room
from tfrecord_io.errors import ConfigError


def _inputs(source: SourceConfig) -> Inputs:
    if source.target_column is None:
        raise ConfigError(
            "--layout seq2seq without --target-column, expected the column of the text to generate",
            remedy="give --target-column NAME",
        )
    return Inputs(texts=source.text_columns, nested={"target": source.target_column})


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    prefix = context.layout.input_prefix
    try:
        prefix.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"--input-prefix {prefix!r} is not UTF-8", remedy="give the prefix in UTF-8") from error
    targets = _of_targets(context)
    require_room(targets.tokenizer, length=targets.length, pair=False, option="--target-length", of="target")
    inputs = PadEncoder.open(context)
    facts, length = context.facts, targets.length
    target = Field(
        feature=feature("target_ids", "token ids of what is to be generated", length),
        fill=facts.pad_id,
        mask=feature("target_mask", "1 on tokens of the target, 0 on padding", length),
    )
    return _Seq2SeqEncoder(inputs, PadEncoder.open(targets), context, [*inputs.fields, target])


def _of_targets(context: LayoutContext) -> LayoutContext:
    # A target is a single text, but only_first and only_second are for pairs.
    cut: Truncation = "do_not_truncate" if context.layout.truncation == "do_not_truncate" else "longest_first"
    for_targets = dataclasses.replace(
        context,
        layout=dataclasses.replace(context.layout, truncation=cut),
        length=context.layout.target_length or context.length,
        columns=ColumnPlan(texts=context.columns.texts[:1]),
    )
    texts = list(engines.BATTERY)
    as_text, as_target = context.tokenizer(texts, verbose=False), context.tokenizer(text_target=texts, verbose=False)
    if as_text["input_ids"] == as_target["input_ids"]:
        return for_targets
    # No engine has a mode for targets, so an engine named with --engine tokenizes the inputs only.
    return dataclasses.replace(for_targets, tokenizer=_AsTarget(context.tokenizer), engine="auto")


class _AsTarget:
    def __init__(self, tokenizer: engines.HFTokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: list[str], **options: Any) -> Any:
        return self._tokenizer(text_target=text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class _Seq2SeqEncoder(RowsEncoder):
    def __init__(
        self, inputs: BatchEncoder, targets: BatchEncoder, context: LayoutContext, fields: Sequence[Field]
    ) -> None:
        # Name the reference engine only if it tokenizes both inputs and targets.
        self.engine = targets.engine if engines.is_reference(inputs.engine) else inputs.engine
        self.concurrent = inputs.concurrent and targets.concurrent
        if inputs.reference or targets.reference:
            references = inputs.reference or inputs, targets.reference or targets
            self.reference = _Seq2SeqEncoder(*references, context, fields)
        self._context, self.fields = context, tuple(fields)
        self._inputs, self._targets = inputs, targets
        self._prefix = context.layout.input_prefix

    def encode(self, rows: Rows) -> Encoded:
        first, *second = rows.texts
        if self._prefix:
            first = pc.binary_join_element_wise(pa.scalar(self._prefix, first.type), first, pa.scalar("", first.type))
        inputs = self._inputs.encode(dataclasses.replace(rows, texts=(first, *second)))
        targets = self._targets.encode(Rows(texts=(rows.nested["target"],), arrays={}))
        reasons = inputs.reasons.copy()
        reasons[(reasons == "") & (targets.reasons == "too_long")] = "target_too_long"
        full_lengths = inputs.full_lengths + targets.full_lengths
        kept = inputs.ragged["input_ids"].lengths + targets.ragged["input_ids"].lengths
        return Encoded(
            ragged={**inputs.ragged, "target_ids": targets.ragged["input_ids"]},
            arrays=rows.arrays,
            reasons=reasons,
            full_lengths=full_lengths,
            tokens_cut=int((full_lengths - kept)[reasons == ""].sum()),
        )


SEQ2SEQ = Layout(open_encoder=_open_encoder, inputs=_inputs)
