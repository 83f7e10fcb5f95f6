"""Layout `tokens`: one record for each row of tagged words, its tokens labelled with the tags of their words.

    words           EU      rejects       German
    tags            B-ORG   O             B-MISC
    input_ids       [CLS]   EU      re    ##jects  German  [SEP]  .      as `pad` has it, with attention_mask
    tags            0       3       0     0        7       0      0      and token_type_ids
    tag_mask        0       1       1     0        1       0      0

A word's tag stands on its first token in the row, or on all of them (`--label-all-tokens`). Where `tag_mask` is 0
there is no label, and `tags` is 0: special tokens, the other pieces of a word, padding. A word without tokens, or one
that was cut away, is in no record; see `word_rows` for how tokens are assigned to words.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, input_ids
from pipelines.prepare.layouts.pad import attention_mask, fields_of, type_feature
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Rows
from pipelines.prepare.sources.columns.labels import list_lengths, tag_values
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype, offsets_of
from pipelines.prepare.tokenize.word_rows import EncodedWords, WordEncoder, joins_words, open_words
from tfrecord_io.schema import Feature

__all__ = ["TOKENS"]

_log = logging.getLogger(__name__)


def _inputs(source: SourceConfig) -> Inputs:
    return Inputs(nested={"words": source.words_column or "tokens", "tags": source.tags_column or "tags"})


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    fast, slow = open_words(
        context.tokenizer,
        length=context.length,
        truncation=context.layout.truncation,
        dtype=id_dtype(context.facts.vocab_size),
        wanted=context.engine,
    )
    reference = None if fast is slow else _TokensBatchEncoder(slow, context, reference=None)
    return _TokensBatchEncoder(fast, context, reference=reference)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    _warn_of_joined_words(context.tokenizer)
    shape = (context.length,)
    return (
        input_ids(context.length),
        attention_mask(context.length),
        *type_feature(context, encoder),
        Feature(
            name="tags",
            dtype="int64",
            shape=shape,
            role="token_labels",
            meaning="class id of the word that a token begins, 0 where tag_mask is 0",
        ),
        Feature(
            name="tag_mask",
            dtype="int64",
            shape=shape,
            role="token_label_mask",
            meaning="1 on tokens with a label of their own",
        ),
    )


def _warn_of_joined_words(tokenizer: Any) -> None:
    if joins_words(tokenizer):
        _log.warning(
            "this %s puts no space between words: ['a', 'b'] gives the tokens of 'ab'; if its model was trained on "
            "text with spaces, save it with add_prefix_space=True and give that folder as --tokenizer",
            type(tokenizer).__name__,
        )


class _TokensBatchEncoder:
    def __init__(self, encoder: WordEncoder, context: LayoutContext, *, reference: BatchEncoder | None) -> None:
        self.may_reject = context.layout.truncation != "longest_first"
        self.concurrent = encoder.concurrent
        only, pad_type = encoder.only_type, context.tokenizer.pad_token_type_id
        self.constant_type = only if only == pad_type else None
        self.engine, self.engine_version = encoder.name, encoder.version
        self.reference = reference
        self._encoder = encoder
        self._context = context
        self._fields, self._constants = fields_of(context, constant_type=self.constant_type)
        self._fields += _tag_fields(context)

    def encode(self, rows: Rows) -> Encoded:
        plan = self._context.columns.tags
        assert plan is not None, "the columns were planned for this layout"
        encoded = self._encoder.encode(rows.nested["words"])
        ids, types = encoded.rows.ids, encoded.rows.types
        tags, mask = _aligned(
            encoded,
            tag_values(rows.nested["tags"], plan),
            counts=list_lengths(rows.nested["tags"]),
            every=self._context.layout.label_all_tokens,
        )
        values = {"tags": tags, "tag_mask": mask, **({} if types is None else {"token_type_ids": types})}
        return Encoded(
            ragged={"input_ids": ids, **{name: RaggedTokens(each, ids.offsets) for name, each in values.items()}},
            arrays=rows.arrays,
            reasons=np.where(encoded.rows.impossible, "too_long", "").astype(object),
            full_lengths=encoded.rows.full_lengths,
            tokens_cut=encoded.rows.tokens_cut,
        )

    def builder(self) -> Builder:
        return RowsBuilder(self._fields, constants=self._constants)


def _aligned(
    encoded: EncodedWords, tags: np.ndarray, *, counts: np.ndarray, every: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's label (int32 [T], 0 if it has none) and whether it has one (uint8 [T]).

    `tags` are the labels of all words, of which `counts` int64 [N] are in each row. `every`: label all tokens of a
    word.
    """
    offsets, words = encoded.rows.ids.offsets, encoded.words
    labelled = words >= 0
    if not every:
        before = np.concatenate([[-1], words[:-1]])[: len(words)]
        before[offsets[:-1][offsets[:-1] < len(words)]] = -1
        labelled &= words != before
    first_word = np.repeat(offsets_of(counts)[:-1], np.diff(offsets))
    of_tokens = np.zeros(len(words), np.int32)
    of_tokens[labelled] = tags[(first_word + words)[labelled]]
    return of_tokens, labelled.astype(np.uint8)


def _tag_fields(context: LayoutContext) -> list[Field]:
    side, narrow = context.facts.padding_side, np.dtype(np.uint8)
    return [
        Field(name="tags", length=context.length, fill=0, side=side, held=np.dtype(np.int32)),
        Field(name="tag_mask", length=context.length, fill=0, side=side, held=narrow, laid_out=narrow),
    ]


TOKENS = Layout(open_encoder=_open_encoder, features=_features, inputs=_inputs)
