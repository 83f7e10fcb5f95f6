"""Layout `pad` with `--stride S`: a text becomes as many records as its tokens need; neighbours share S tokens.

    text          "An owl lives here"            L = 5 with [CLS] and [SEP], S = 1
    input_ids     [CLS] An  owl lives [SEP]      [CLS] lives here [SEP] .
    char_starts   0     0   3   7     0          0     7     13   0     0
    char_ends     0     2   6   12    0          0     12    17   0     0
    source_row    8                              8

No token is lost. Label and kept columns are in each record of their row, whose number in the split is `source_row`.
See `tokenize.overflow_windows` for how texts are cut into windows.
"""

from __future__ import annotations

import numpy as np

from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, input_ids
from pipelines.prepare.layouts.pad import attention_mask, fields_of, type_feature
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.overflow_windows import EncodedWindows, WindowEncoder, require_windows
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from tfrecord_io.errors import ConfigError
from tfrecord_io.schema import Feature, Role

__all__ = ["WINDOWS", "open_window_encoder", "window_features", "window_fields", "window_values"]


def open_window_encoder(context: LayoutContext, *, stride: int, pair: bool) -> WindowEncoder:
    """Open the encoder that cuts texts into windows.

    Raises: ConfigError if another engine is requested; otherwise as `WindowEncoder`.
    """
    if context.engine not in ("auto", "hf"):
        raise ConfigError(
            f"--engine {context.engine} cannot report the characters of tokens, which this layout needs; only the "
            "tokenizers library can",
            remedy="leave --engine out",
        )
    dtype = id_dtype(context.facts.vocab_size)
    encoder = WindowEncoder(context.tokenizer, length=context.length, stride=stride, pair=pair, dtype=dtype)
    require_windows(context.tokenizer, pair=pair, dtype=dtype)
    return encoder


def window_features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    """Return the features of a window's record."""
    shape = (context.length,)
    meanings: dict[Role, tuple[tuple[int, ...], str]] = {
        "source_row": ((), "number of the row in the source's split, from 0"),
        "char_starts": (shape, "where a token begins in the text, in characters"),
        "char_ends": (shape, "where it ends; both are 0 on tokens that are not of this text"),
    }
    return (
        input_ids(context.length),
        attention_mask(context.length),
        *type_feature(context, encoder),
        *(
            Feature(name=role, dtype="int64", shape=shape, role=role, meaning=meaning)
            for role, (shape, meaning) in meanings.items()
        ),
    )


def window_fields(context: LayoutContext) -> list[Field]:
    """Return how windows are laid out."""
    fields, _ = fields_of(context, constant_type=None)
    side, held = context.facts.padding_side, np.dtype(np.int32)
    characters = (
        Field(name=name, length=context.length, fill=0, side=side, held=held) for name in ("char_starts", "char_ends")
    )
    return [*fields, *characters]


def window_values(encoded: EncodedWindows) -> dict[str, RaggedTokens]:
    """Return the ragged values of windows by feature name."""
    values = {"char_starts": encoded.starts, "char_ends": encoded.ends}
    if encoded.types is not None:
        values["token_type_ids"] = encoded.types
    return {
        "input_ids": encoded.ids,
        **{name: RaggedTokens(each, encoded.ids.offsets) for name, each in values.items()},
    }


class _WindowBatchEncoder:
    may_reject = False
    concurrent = True
    constant_type: int | None = None
    reference: BatchEncoder | None = None

    def __init__(self, context: LayoutContext) -> None:
        stride = context.layout.stride
        assert stride is not None, "this is what chose the layout"
        self._encoder = open_window_encoder(context, stride=stride, pair=False)
        self.engine, self.engine_version = self._encoder.name, self._encoder.version
        self._fields = window_fields(context)

    def encode(self, rows: Rows) -> Encoded:
        encoded = self._encoder.encode([rows.texts[0].to_pylist()])
        return Encoded(
            ragged=window_values(encoded),
            arrays={**rows.arrays, "source_row": rows.numbers},
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=encoded.full_lengths,
            owners=encoded.owners,
        )

    def builder(self) -> Builder:
        return RowsBuilder(self._fields)


WINDOWS = Layout(open_encoder=_WindowBatchEncoder, features=window_features, one_record=False)
