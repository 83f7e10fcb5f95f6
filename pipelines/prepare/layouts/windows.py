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

from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, feature
from pipelines.prepare.layouts.pad import PAD, fields_of
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.overflow_windows import EncodedWindows, open_windows
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from tfrecord_io.errors import ConfigError
from tfrecord_io.schema import Feature

__all__ = ["WINDOWS", "WindowBatchEncoder"]


class WindowBatchEncoder(BatchEncoder):
    """Batch encoder that makes a record of each window of a text."""

    def __init__(self, context: LayoutContext, *, stride: int, pair: bool = False) -> None:
        """Open the encoder. Raises: ConfigError if another engine is requested; otherwise as `open_windows`."""
        if context.engine not in ("auto", "hf"):
            raise ConfigError(
                f"--engine {context.engine} cannot report the characters of tokens, which this layout needs; only the "
                "tokenizers library can",
                remedy="leave --engine out",
            )
        dtype = id_dtype(context.facts.vocab_size)
        self._encoder = open_windows(context.tokenizer, length=context.length, stride=stride, pair=pair, dtype=dtype)
        super().__init__(self._encoder)
        self._fields, _ = fields_of(context, constant_type=None)
        side, held = context.facts.padding_side, np.dtype(np.int32)
        for name in ("char_starts", "char_ends"):
            self._fields.append(Field(name=name, length=context.length, fill=0, side=side, held=held))

    def encode(self, rows: Rows) -> Encoded:
        """Tokenize one batch."""
        return self._encoded(self._encoder.encode([rows.texts[0].to_pylist()]), rows)

    def _encoded(self, encoded: EncodedWindows, rows: Rows, **more: RaggedTokens) -> Encoded:
        """Return the batch. `more`: other values of each window, by feature name."""
        values = {"char_starts": encoded.starts, "char_ends": encoded.ends}
        if encoded.types is not None:
            values["token_type_ids"] = encoded.types
        ids = encoded.ids
        return Encoded(
            ragged={
                "input_ids": ids,
                **{name: RaggedTokens(each, ids.offsets) for name, each in values.items()},
                **more,
            },
            arrays={**rows.arrays, "source_row": rows.numbers},
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=encoded.full_lengths,
            owners=encoded.owners,
        )

    def builder(self) -> Builder:
        """Return a builder for one shard."""
        return RowsBuilder(self._fields)


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    stride = context.layout.stride
    assert stride is not None, "this is what chose the layout"
    return WindowBatchEncoder(context, stride=stride)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    ends = "where it ends; both are 0 on tokens that are not of this text"
    return (
        *PAD.features(context, encoder),
        feature("source_row", "number of the row in the source's split, from 0"),
        feature("char_starts", "where a token begins in the text, in characters", context.length),
        feature("char_ends", ends, context.length),
    )


WINDOWS = Layout(open_encoder=_open_encoder, features=_features, one_record=False)
