"""Layouts of overlapping windows over long texts: `pad` with `--stride S`, and `qa`. docs/format.md has examples.

The records equal `tokenizer(text, truncation=True, max_length=L, stride=S, return_overflowing_tokens=True,
return_offsets_mapping=True)`. With `truncation_side` left, the first window is at the text's end.
"""

import dataclasses
import itertools

import numpy as np
import pyarrow as pa

from pipelines.prepare.layouts.base import Encoded, Layout, LayoutContext, feature, one_text
from pipelines.prepare.layouts.pad import token_fields
from pipelines.prepare.layouts.rows_builder import UINT8, Field, RowsEncoder
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Rows
from pipelines.prepare.tokenize.engines import HuggingFaceEngine, copy_backend, open_reference
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists, id_dtype
from pipelines.prepare.tokenize.special_tokens import require_room
from tfrecord_io.codec.kernels import jit
from tfrecord_io.errors import ConfigError, TokenizerError
from tfrecord_io.shown import some

_NO_ANSWER = -1


class _WindowsEncoder(RowsEncoder):
    def __init__(self, context: LayoutContext, *more: Field, pair: bool = False) -> None:
        tokenizer, length = context.tokenizer, context.length
        if context.engine not in ("auto", "hf"):
            raise ConfigError(
                f"--layout qa and --stride need each token's place in the text, which --engine {context.engine} cannot "
                "report",
                remedy="leave --engine out",
            )
        self._special = require_room(tokenizer, length=length, pair=pair)
        self._stride = length // 4 if context.layout.stride is None else context.layout.stride
        if self._stride >= length - self._special:
            raise ConfigError(
                f"--stride {self._stride} with --max-length {length}: without special tokens, a window holds "
                f"{some(length - self._special, 'token')}, and all of them would be in the next window too",
                remedy=f"give --stride {length - self._special - 1} or less",
            )
        self._dtype = id_dtype(context.facts.vocab_size)
        reference = open_reference(tokenizer, dtype=self._dtype)
        if not isinstance(reference, HuggingFaceEngine):
            raise TokenizerError(
                "--layout qa and --stride need each token's place in the text, which this tokenizer does not report",
                remedy="choose a tokenizer with a tokenizer.json, or another layout without --stride",
            )
        self._whole, self._backend = reference, copy_backend(tokenizer)
        strategy, side = "only_second" if pair else "longest_first", tokenizer.truncation_side
        self._backend.enable_truncation(max_length=length, stride=self._stride, strategy=strategy, direction=side)
        side = context.facts.padding_side
        source_row = feature("source_row", "number of the row in the source's split, from 0")
        starts = feature("char_starts", "where a token begins in the text, in characters", length)
        ends = feature("char_ends", "where it ends; both are 0 on tokens that are not of this text", length)
        places = [Field(feature=place, side=side) for place in (starts, ends)]
        tokens = token_fields(context, only_type=None)  # as in released datasets, which may get more rows
        fields = [*tokens, Field(feature=source_row, laid_out=np.dtype(np.int64)), *places, *more]
        super().__init__(reference, context, fields)
        self._has_types = any(field.feature.role == "token_type_ids" for field in fields)

    def encode(self, rows: Rows) -> Encoded:
        return self._cut(rows)[0]

    def _cut(self, rows: Rows) -> tuple[Encoded, np.ndarray, np.ndarray, np.ndarray]:
        """Cut long texts into windows. If rows have two texts, the second one is cut.

        Returns: the batch; a mask of the rows that cannot be cut; each window's first token, an index in the cut text;
            and each window's number of tokens from that text.
        """
        texts = rows.texts
        pair = len(texts) == 2
        led = self._whole.encode(texts[0]).lengths if pair else np.zeros(len(texts[0]), np.int64)
        # If there is no room to advance, the whole second text must fit into one window.
        room = self._context.length - self._special - led
        impossible = room <= self._stride
        narrow = np.flatnonzero(impossible)
        if len(narrow):
            impossible[narrow] = self._whole.encode(texts[-1].take(pa.array(narrow))).lengths > room[narrow]
        possible = np.flatnonzero(~impossible)
        chosen = [column.take(pa.array(possible)).to_pylist() for column in texts]
        encodings = self._backend.encode_batch(list(zip(*chosen, strict=True)) if pair else chosen[0])
        # Each access to `overflowing` copies all windows, so it is read once.
        parts = [(encoding, *encoding.overflowing) for encoding in encodings]
        owners = np.repeat(possible, [len(part) for part in parts])
        windows = list(itertools.chain.from_iterable(parts))
        ids = from_lists([window.ids for window in windows], dtype=self._dtype)
        sequences = [window.sequence_ids for window in windows]
        count = np.array([of_tokens.count(pair) for of_tokens in sequences], np.int64)
        first = np.array([of_tokens.index(pair) if pair in of_tokens else 0 for of_tokens in sequences], np.int64)
        pairs = itertools.chain.from_iterable(window.offsets for window in windows)
        characters = np.fromiter(itertools.chain.from_iterable(pairs), np.int32, 2 * len(ids.ids))
        position = np.arange(len(ids.ids)) - np.repeat(ids.offsets[:-1], ids.lengths)
        inside = (position >= np.repeat(first, ids.lengths)) & (position < np.repeat(first + count, ids.lengths))
        starts, ends = np.ascontiguousarray(characters.reshape(-1, 2).T) * inside
        # Each window after the first repeats the special tokens, the first text and S tokens.
        total = np.bincount(owners, weights=ids.lengths, minlength=len(led)).astype(np.int64)
        repeated = np.maximum(np.bincount(owners, minlength=len(led)) - 1, 0)
        of_tokens = {"input_ids": ids.ids, "char_starts": starts, "char_ends": ends}
        if self._has_types:
            of_tokens["token_type_ids"] = from_lists([window.type_ids for window in windows], dtype=UINT8).ids
        encoded = Encoded(
            ragged={
                **{name: RaggedTokens(values, ids.offsets) for name, values in of_tokens.items()},
                "source_row": RaggedTokens(rows.numbers[owners], np.arange(len(owners) + 1)),
            },
            arrays=rows.arrays,
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=np.asarray(total - repeated * (self._special + led + self._stride)),
            owners=owners,
        )
        return encoded, impossible, first, count


def _inputs(source: SourceConfig) -> Inputs:
    if len(source.text_columns) != 2:
        raise ConfigError(
            f"--layout qa with only one text column, {source.text_columns[0]!r}, expected questions and contexts",
            remedy="name two columns, for example --text-column question --text-column context",
        )
    return Inputs(texts=source.text_columns, nested={"answers": source.answers_column or "answers"})


class _QaEncoder(_WindowsEncoder):
    def __init__(self, context: LayoutContext) -> None:
        start = "place in the row of the answer's first token, 0 without one"
        places = (
            feature("start_position", start, name="start_positions"),
            feature("end_position", "place of its last token", name="end_positions"),
        )
        super().__init__(context, *(Field(feature=place) for place in places), pair=True)
        self._padded_left = context.length if context.facts.padding_side == "left" else 0

    def encode(self, rows: Rows) -> Encoded:
        encoded, impossible, first, count = self._cut(rows)
        answers, mismatched = _answers(rows.nested["answers"], rows.texts[1].to_pylist())
        encoded.reasons[impossible] = "question_too_long"
        encoded.reasons[mismatched] = "answer_mismatch"
        starts, ends = encoded.ragged["char_starts"], encoded.ragged["char_ends"]
        positions, begins = np.full((2, len(starts)), _NO_ANSWER, np.int64), starts.offsets[:-1]
        _find(begins + first, count, starts.ids, ends.ids, answers[encoded.row_of_sequence], positions)
        missing = positions[0] == _NO_ANSWER
        positions += -begins + (self._padded_left - starts.lengths if self._padded_left else 0)
        positions[:, missing] = 0
        offsets = encoded.ragged["source_row"].offsets
        begin, end = (RaggedTokens(places, offsets) for places in positions.astype(np.int32))
        return dataclasses.replace(encoded, ragged={**encoded.ragged, "start_positions": begin, "end_positions": end})


@jit
def _find(begins, counts, starts, ends, answers, positions):  # type: ignore[no-untyped-def]
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
            positions[0, window], positions[1, window] = first, last


def _answers(column: pa.Array, contexts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    spans, mismatched = np.zeros((len(contexts), 2), np.int64), np.zeros(len(contexts), bool)
    for row, answers in enumerate(column.to_pylist()):
        texts, places = answers["text"] or [], answers["answer_start"] or []
        text, start = next(zip(texts, places, strict=False), ("", 0))
        is_place = len(texts) == len(places) and text is not None and start is not None and start >= 0
        mismatched[row] = not is_place or contexts[row][start : start + len(text)] != text
        if not mismatched[row]:
            spans[row] = start, start + len(text)
    return spans, mismatched


WINDOWS = Layout(open_encoder=_WindowsEncoder, inputs=one_text, one_record=False)
QA = Layout(open_encoder=_QaEncoder, inputs=_inputs, one_record=False)
