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

from pipelines.prepare.layouts.base import BatchEncoder, Encoded, Layout, LayoutContext, feature
from pipelines.prepare.layouts.pad import token_fields
from pipelines.prepare.layouts.rows_builder import Field, RowsEncoder
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.overflow_windows import EncodedWindows, open_windows
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from tfrecord_io.errors import ConfigError

__all__ = ["WINDOWS", "WindowBatchEncoder"]


class WindowBatchEncoder(RowsEncoder):
    """Batch encoder that makes a record of each window of a text. `more`: fields behind those of windows."""

    def __init__(self, context: LayoutContext, *more: Field, stride: int, pair: bool = False) -> None:
        """Open the encoder. Raises: ConfigError if another engine is requested; otherwise as `open_windows`."""
        if context.engine not in ("auto", "hf"):
            raise ConfigError(
                f"--engine {context.engine} cannot report the characters of tokens, which this layout needs; only the "
                "tokenizers library can",
                remedy="leave --engine out",
            )
        dtype = id_dtype(context.facts.vocab_size)
        self._encoder = open_windows(context.tokenizer, length=context.length, stride=stride, pair=pair, dtype=dtype)
        side, length, numbers = context.facts.padding_side, context.length, np.dtype(np.int64)
        source_row = feature("source_row", "number of the row in the source's split, from 0")
        starts = feature("char_starts", "where a token begins in the text, in characters", length)
        ends = feature("char_ends", "where it ends; both are 0 on tokens that are not of this text", length)
        fields = [
            *token_fields(context),
            Field(feature=source_row, held=numbers, laid_out=numbers),
            *(Field(feature=each, side=side) for each in (starts, ends)),
            *more,
        ]
        super().__init__(self._encoder, context, fields)

    def encode(self, rows: Rows) -> Encoded:
        """Tokenize one batch."""
        return self._encoded(self._encoder.encode([rows.texts[0].to_pylist()]), rows)

    def _encoded(self, encoded: EncodedWindows, rows: Rows, **more: np.ndarray) -> Encoded:
        """Return the batch. `more`: other values by feature name, one for each window."""
        of_tokens = {"input_ids": encoded.ids.ids, "char_starts": encoded.starts, "char_ends": encoded.ends}
        if encoded.types is not None:
            of_tokens["token_type_ids"] = encoded.types
        of_windows = {"source_row": rows.numbers[encoded.owners], **more}
        one_each = np.arange(len(encoded.owners) + 1)
        return Encoded(
            ragged={
                **{name: RaggedTokens(values, encoded.ids.offsets) for name, values in of_tokens.items()},
                **{name: RaggedTokens(values, one_each) for name, values in of_windows.items()},
            },
            arrays=rows.arrays,
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=encoded.full_lengths,
            owners=encoded.owners,
        )


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    stride = context.layout.stride
    assert stride is not None, "this is what chose the layout"
    return WindowBatchEncoder(context, stride=stride)


WINDOWS = Layout(open_encoder=_open_encoder, one_record=False)
