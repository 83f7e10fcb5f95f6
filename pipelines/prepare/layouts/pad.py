"""Layouts `pad` and `tokens`: each row becomes one padded record. docs/format.md has examples.

pad: the result of `tokenizer(text, pair, padding="max_length")`.
tokens: a word's tag labels the word's first token, or with `--label-all-tokens` all of its tokens, as in run_ner.py of
`transformers`. Positions without a label have `tag_mask` 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.prepare.layouts.base import Encoded, Layout, LayoutContext, beside_reference, feature
from pipelines.prepare.layouts.rows_builder import UINT8, Field, RowsEncoder, ids_field
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Rows
from pipelines.prepare.sources.columns.labels import label_values, list_lengths
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype, offsets_of
from pipelines.prepare.tokenize.text_rows import EncodedRows, RowEncoder, joins_words, open_rows, with_engine
from tfrecord_io.errors import ConfigError


def token_fields(context: LayoutContext, *, only_type: int | None) -> list[Field]:
    """Return the fields of token ids and, if the tokenizer has them, of type ids. `only_type`: see `RowTemplate`."""
    tokenizer, side = context.tokenizer, context.facts.padding_side
    if "token_type_ids" not in tokenizer.model_input_names:
        return [ids_field(context)]
    meaning, pad_type = "which text of a pair a token belongs to", tokenizer.pad_token_type_id
    constant = only_type if only_type == pad_type else None
    types = feature("token_type_ids", meaning, context.length, constant=constant)
    return [ids_field(context), Field(feature=types, fill=pad_type, side=side, laid_out=UINT8)]


class PadEncoder(RowsEncoder):
    """Encoder that pads the token sequences of a `RowEncoder`. `words`: whether rows are lists of words, not texts."""

    words = False

    def __init__(self, encoder: RowEncoder, context: LayoutContext, *more: Field) -> None:
        super().__init__(encoder, context, [*token_fields(context, only_type=encoder.only_type), *more])
        self._encoder = encoder
        self._impossible = "too_long" if context.layout.truncation == "do_not_truncate" else "cannot_truncate"

    @classmethod
    def open(cls, context: LayoutContext) -> PadEncoder:
        """Return an encoder with the requested engine."""
        tokenizer, length, dtype = context.tokenizer, context.length, id_dtype(context.facts.vocab_size)
        pair, truncation = len(context.columns.texts) == 2, context.layout.truncation
        slow = open_rows(tokenizer, length=length, truncation=truncation, dtype=dtype, pair=pair, words=cls.words)
        fast = with_engine(slow, tokenizer, dtype=dtype, wanted=context.engine)
        return beside_reference(lambda rows: cls(rows, context), fast, slow)

    def encode(self, rows: Rows) -> Encoded:
        return self._encoded(self._encoder.encode(rows.texts), rows)

    def _encoded(self, encoded: EncodedRows, rows: Rows, **more: np.ndarray) -> Encoded:
        if encoded.types is not None:
            more["token_type_ids"] = encoded.types
        ids = encoded.ids
        return Encoded(
            ragged={"input_ids": ids, **{name: RaggedTokens(values, ids.offsets) for name, values in more.items()}},
            arrays=rows.arrays,
            reasons=np.where(encoded.impossible, self._impossible, "").astype(object),
            full_lengths=encoded.full_lengths,
            tokens_cut=encoded.tokens_cut,
        )


class _TokensEncoder(PadEncoder):
    words = True

    def __init__(self, encoder: RowEncoder, context: LayoutContext) -> None:
        length, side = context.length, context.facts.padding_side
        meaning = "class id of the word that a token begins, 0 where tag_mask is 0"
        tags = feature("token_labels", meaning, length, name="tags")
        mask = feature("token_label_mask", "1 on tokens with a label of their own", length, name="tag_mask")
        fields = Field(feature=tags, side=side), Field(feature=mask, side=side, laid_out=UINT8)
        super().__init__(encoder, context, *fields)
        if joins_words(context.tokenizer):
            self.notes = (
                "this tokenizer puts no space between words: the words 'a' and 'b' get the tokens of 'ab'; if its "
                "model was trained on text with spaces, edit a copy of the tokenizer's folder: set "
                '"normalizer": {"type": "Prepend", "prepend": " "} in tokenizer.json, and '
                '"tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json',
            )

    def encode(self, rows: Rows) -> Encoded:
        plan = self._context.columns.tags
        assert plan is not None, "the columns were planned for this layout"
        encoded = self._encoder.encode([rows.nested["words"]])
        tags, mask = _aligned(
            encoded,
            label_values(rows.nested["tags"], plan),
            counts=list_lengths(rows.nested["tags"]),
            inside=_inside(plan.names) if self._context.layout.label_all_tokens else None,
        )
        return self._encoded(encoded, rows, tags=tags, tag_mask=mask)


def _inside(names: Sequence[str] | None) -> np.ndarray:
    ids = {name: number for number, name in enumerate(names or ())}
    inside = (ids.get("I" + name[1:], tag) if name.startswith("B-") else tag for name, tag in ids.items())
    return np.fromiter(inside, np.int32, len(ids))


def _aligned(
    encoded: EncodedRows, tags: np.ndarray, *, counts: np.ndarray, inside: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's label, 0 if it has none, and a mask of the tokens with a label.

    `inside`: maps a word's tag id to the tag id of its later tokens. Empty: the same id. None: they have no label.
    """
    offsets, words = encoded.ids.offsets, encoded.words
    assert words is not None, "the encoder's rows are lists of words"
    before = np.concatenate([[-1], words[:-1]])[: len(words)]
    before[offsets[:-1][offsets[:-1] < len(words)]] = -1
    follows, labelled = words == before, words >= 0
    if inside is None:
        labelled &= ~follows
    first_word = np.repeat(offsets_of(counts)[:-1], np.diff(offsets))
    of_tokens = np.zeros(len(words), np.int32)
    of_tokens[labelled] = tags[(first_word + words)[labelled]]
    if inside is not None and len(inside):
        again = labelled & follows
        of_tokens[again] = inside[of_tokens[again]]
    return of_tokens, labelled.astype(np.uint8)


def _words(source: SourceConfig) -> Inputs:
    if source.label_column:
        raise ConfigError(
            "--layout tokens with --label-column: this layout's labels are the words' tags, and a dataset has only one "
            "list of class names",
            remedy="leave --label-column out, or keep a column of integers with --keep-column",
        )
    return Inputs(nested={"words": source.words_column or "tokens", "tags": source.tags_column or "tags"})


PAD = Layout(open_encoder=PadEncoder.open)
TOKENS = Layout(open_encoder=_TokensEncoder.open, inputs=_words)
