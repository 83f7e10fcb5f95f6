"""Layouts of overlapping windows over long texts: `pad` with `--stride S`, and `qa`.

With `--stride S` a text becomes as many records as its tokens need; neighbours share S tokens.

    text          "An owl lives here"            L = 5 with [CLS] and [SEP], S = 1
    input_ids     [CLS] An  owl lives [SEP]      [CLS] lives here [SEP] .
    char_starts   0     0   3   7     0          0     7     13   0     0
    char_ends     0     2   6   12    0          0     12    17   0     0
    source_row    8                              8

No token is lost. Label and kept columns are in each record of their row, whose number in the split is `source_row`.
See `tokenize.overflow_windows` for how texts are cut into windows.

With `--layout qa` a question and a window of its context become one record, with the position of the answer.

    question, context   "Who ?"   "Anna lives in Rome"     answer "Rome" at character 14
    input_ids        [CLS] Who ?   [SEP] Anna lives [SEP]     [CLS] Who ? [SEP] in Rome [SEP]
    char_starts      0     0   0   0     0    5     0         0     0   0 0     11 14   0
    char_ends        0     0   0   0     4    10    0         0     0   0 0     13 18   0
    start_positions  0                                        5
    end_positions    0                                        5

Windows share `--stride` tokens, without it a quarter of L. The characters are those of the context. Of several answers
the first one counts. Positions count all of the row, padding on the left too; both are 0 where the answer is not, or
not completely, in the window, and where there is none.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.layouts.base import Encoded, Layout, LayoutContext, feature
from pipelines.prepare.layouts.pad import token_fields
from pipelines.prepare.layouts.rows_builder import Field, RowsEncoder
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Rows
from pipelines.prepare.sources.columns.labels import list_lengths
from pipelines.prepare.tokenize.overflow_windows import EncodedWindows, open_windows
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from tfrecord_io.codec.kernels import jit
from tfrecord_io.errors import ConfigError

_NO_ANSWER = -1


class _WindowsEncoder(RowsEncoder):
    """Batch encoder that makes a record of each window of a text. `more`: fields behind those of windows."""

    def __init__(self, context: LayoutContext, *more: Field, pair: bool = False) -> None:
        """Open the encoder. Raises: ConfigError if another engine is requested; otherwise as `open_windows`."""
        if context.engine not in ("auto", "hf"):
            raise ConfigError(
                f"--engine {context.engine} cannot report the characters of tokens, which this layout needs; only the "
                "tokenizers library can",
                remedy="leave --engine out",
            )
        dtype = id_dtype(context.facts.vocab_size)
        stride = context.length // 4 if context.layout.stride is None else context.layout.stride
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


def _inputs(source: SourceConfig) -> Inputs:
    if len(source.text_columns) != 2:
        raise ConfigError(
            f"--layout qa with the text column {source.text_columns[0]!r} alone, expected questions and contexts",
            remedy="give for example --text-column question --text-column context",
        )
    return Inputs(texts=source.text_columns, nested={"answers": source.answers_column or "answers"})


class _QaEncoder(_WindowsEncoder):
    may_reject = True

    def __init__(self, context: LayoutContext) -> None:
        start = "place in the row of the answer's first token, 0 without one"
        places = (
            feature("start_position", start, name="start_positions"),
            feature("end_position", "place of its last token", name="end_positions"),
        )
        super().__init__(context, *(Field(feature=each) for each in places), pair=True)
        self._padded_left = context.length if context.facts.padding_side == "left" else 0

    def encode(self, rows: Rows) -> Encoded:
        questions, contexts = (column.to_pylist() for column in rows.texts)
        windows = self._encoder.encode([questions, contexts])
        answers, mismatched = _answers(rows.nested["answers"], contexts)
        starts, ends = self._positions(windows, answers)
        encoded = self._encoded(windows, rows, start_positions=starts, end_positions=ends)
        encoded.reasons[windows.impossible] = "question_too_long"
        encoded.reasons[mismatched] = "answer_mismatch"
        return encoded

    def _positions(self, encoded: EncodedWindows, answers: np.ndarray) -> np.ndarray:
        """Return the first and the last position of the answer in each window, int32 [2, W]."""
        found = np.full((2, len(encoded.owners)), _NO_ANSWER, np.int64)
        begins = encoded.ids.offsets[:-1] + encoded.first
        _find(begins, encoded.count, encoded.starts, encoded.ends, answers[encoded.owners], found)
        missing = found[0] == _NO_ANSWER
        found += -encoded.ids.offsets[:-1] + (self._padded_left - encoded.ids.lengths if self._padded_left else 0)
        found[:, missing] = 0
        return found.astype(np.int32)


@jit
def _find(begins, counts, starts, ends, answers, found):  # type: ignore[no-untyped-def]
    """Find the first and the last token of the answer among the tokens [begin, begin + count) of each window.

    A window that does not have all of the answer keeps what `found` says.
    """
    for window in range(len(begins)):
        first, stop = begins[window], begins[window] + counts[window]
        start, end = answers[window, 0], answers[window, 1]
        if start >= end or first == stop or starts[first] > start or ends[stop - 1] < end:
            continue
        last = stop - 1
        while first < stop and ends[first] <= start:
            first += 1
        while last >= first and starts[last] >= end:
            last -= 1
        if first <= last:
            found[0, window], found[1, window] = first, last


def _answers(column: pa.Array, contexts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the characters [start, end) of each row's first answer, and the rows whose answer is not there.

    Returns: int64 [N, 2], [0, 0) without an answer; bool [N].
    """
    texts, places = column.field("text"), column.field("answer_start")
    counts = list_lengths(texts)
    spans = np.zeros((len(contexts), 2), np.int64)
    mismatched = counts != list_lengths(places)
    answered = np.flatnonzero(~mismatched & (counts > 0))
    firsts = _firsts(texts, answered), _firsts(places, answered)
    for row, text, start in zip(answered.tolist(), *firsts, strict=True):
        if text is None or start is None or start < 0 or contexts[row][start : start + len(text)] != text:
            mismatched[row] = True
        else:
            spans[row] = start, start + len(text)
    return spans, mismatched


def _firsts(lists: pa.Array, which: np.ndarray) -> list[Any]:
    """Return the first value of each list with an index in `which`."""
    counts = list_lengths(lists)
    firsts: list[Any] = lists.flatten().take(pa.array((np.cumsum(counts) - counts)[which])).to_pylist()
    return firsts


WINDOWS = Layout(open_encoder=_WindowsEncoder, one_record=False)
QA = Layout(open_encoder=_QaEncoder, inputs=_inputs, one_record=False)
