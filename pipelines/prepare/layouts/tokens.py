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

import numpy as np

from pipelines.prepare.layouts.base import BatchEncoder, Encoded, Layout, LayoutContext, beside_reference, feature
from pipelines.prepare.layouts.pad import PadEncoder
from pipelines.prepare.layouts.rows_builder import UINT8, Field
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Rows
from pipelines.prepare.sources.columns.labels import list_lengths, tag_values
from pipelines.prepare.tokenize.ragged import id_dtype, offsets_of
from pipelines.prepare.tokenize.text_rows import EncodedRows, RowEncoder
from pipelines.prepare.tokenize.word_rows import joins_words, open_words
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
    return beside_reference(lambda rows: _TokensEncoder(rows, context), fast, slow)


class _TokensEncoder(PadEncoder):
    def __init__(self, encoder: RowEncoder, context: LayoutContext) -> None:
        length, side = context.length, context.facts.padding_side
        meaning = "class id of the word that a token begins, 0 where tag_mask is 0"
        tags = feature("token_labels", meaning, length, name="tags")
        mask = feature("token_label_mask", "1 on tokens with a label of their own", length, name="tag_mask")
        fields = Field(feature=tags, side=side), Field(feature=mask, side=side, held=UINT8, laid_out=UINT8)
        super().__init__(encoder, context, *fields)

    def features(self) -> tuple[Feature, ...]:
        if joins_words(self._context.tokenizer):
            _log.warning(
                "this %s puts no space between words: ['a', 'b'] gives the tokens of 'ab'; if its model was trained on "
                "text with spaces, save it with add_prefix_space=True and give that folder as --tokenizer",
                type(self._context.tokenizer).__name__,
            )
        return super().features()

    def encode(self, rows: Rows) -> Encoded:
        plan = self._context.columns.tags
        assert plan is not None, "the columns were planned for this layout"
        encoded = self._encoder.encode([rows.nested["words"]])
        tags, mask = _aligned(
            encoded,
            tag_values(rows.nested["tags"], plan),
            counts=list_lengths(rows.nested["tags"]),
            every=self._context.layout.label_all_tokens,
        )
        return self._encoded(encoded, rows, tags=tags, tag_mask=mask)


def _aligned(
    encoded: EncodedRows, tags: np.ndarray, *, counts: np.ndarray, every: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's label (int32 [T], 0 if it has none) and whether it has one (uint8 [T]).

    `tags` are the labels of all words, of which `counts` int64 [N] are in each row. `every`: label all tokens of a
    word.
    """
    offsets, words = encoded.ids.offsets, encoded.words
    assert words is not None, "its rows are lists of words"
    labelled = words >= 0
    if not every:
        before = np.concatenate([[-1], words[:-1]])[: len(words)]
        before[offsets[:-1][offsets[:-1] < len(words)]] = -1
        labelled &= words != before
    first_word = np.repeat(offsets_of(counts)[:-1], np.diff(offsets))
    of_tokens = np.zeros(len(words), np.int32)
    of_tokens[labelled] = tags[(first_word + words)[labelled]]
    return of_tokens, labelled.astype(np.uint8)


TOKENS = Layout(open_encoder=_open_encoder, inputs=_inputs)
