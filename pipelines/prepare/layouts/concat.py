"""Layout `concat`: documents joined, each with its special tokens, then cut at every L-th token.

    documents    a b c | d | e f g | h i
    records      a b c </s>     d </s> e f     g </s> h i     </s> . . .
    num_tokens        4              4              4             1

`.` is padding, which only the last record of a shard has; `num_tokens` counts the other tokens of a record.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipelines.prepare.layouts.base import (
    BatchEncoder,
    Builder,
    Encoded,
    Layout,
    LayoutContext,
    Lineage,
    Piece,
    by_tokens,
    input_ids,
    permuted,
)
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize import arrays
from pipelines.prepare.tokenize.document_frames import DocumentFrame, open_frame
from pipelines.prepare.tokenize.engines import Engine, choose, open_reference
from pipelines.prepare.tokenize.ragged import GrowingRagged, id_dtype
from tfrecord_io.schema import Feature

__all__ = ["CONCAT", "open_engines"]


def open_engines(context: LayoutContext) -> tuple[Engine, Engine]:
    """Open engines that tokenize documents without special tokens: the one to use, and the reference."""
    dtype = id_dtype(context.facts.vocab_size)
    reference = open_reference(context.tokenizer, dtype=dtype)
    return choose(context.tokenizer, reference, dtype=dtype, wanted=context.engine), reference


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    chosen, reference = open_engines(context)
    slow = None if chosen is reference else _ConcatBatchEncoder(reference, context, reference=None)
    return _ConcatBatchEncoder(chosen, context, reference=slow)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    del encoder
    meaning = "tokens of this row that are not padding"
    count = Feature(name="num_tokens", dtype="int64", shape=(), role="num_tokens", meaning=meaning)
    return (input_ids(context.length), count)


class _ConcatBatchEncoder:
    may_reject = False
    constant_type: int | None = None

    def __init__(self, engine: Engine, context: LayoutContext, *, reference: BatchEncoder | None) -> None:
        self.concurrent = engine.concurrent
        self.engine, self.engine_version = engine.name, engine.version
        self.reference = reference
        self._engine = engine
        self._context = context
        self._frame = open_frame(context.tokenizer, context.layout.special_tokens)

    def encode(self, rows: Rows) -> Encoded:
        documents = self._engine.encode(rows.texts[0])
        return Encoded(
            ragged={"input_ids": documents},
            arrays={},
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=documents.lengths + self._frame.num_tokens,
        )

    def builder(self) -> Builder:
        return _ConcatBuilder(
            length=self._context.length,
            frame=self._frame,
            pad_id=self._context.facts.pad_id,
            drop=self._context.layout.remainder == "drop",
            dtype=id_dtype(self._context.facts.vocab_size),
        )


class _ConcatBuilder:
    def __init__(self, *, length: int, frame: DocumentFrame, pad_id: int, drop: bool, dtype: np.dtype) -> None:
        self.rows_used = 0
        self.tokens_cut = 0
        self._length = length
        self._frame = frame
        self._pad_id = pad_id
        self._drop = drop
        self._documents = GrowingRagged(dtype)

    def add(self, encoded: Encoded) -> None:
        self._documents.append(encoded.ragged["input_ids"])

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        documents = self._documents.take_all()
        order = permuted(len(documents), rng)
        left = np.empty(0, np.int32)
        for chosen in by_tokens(order, documents.lengths):
            joined = arrays.join(documents, order=chosen, frame=self._frame)
            self.rows_used += len(chosen)
            tokens = np.concatenate([left, joined])
            whole = len(tokens) // self._length * self._length
            left = tokens[whole:]
            if whole:
                yield arrays.cut(tokens[:whole], length=self._length, pad_id=self._pad_id)
        if self._drop:
            self.tokens_cut += len(left)
        elif len(left):
            yield arrays.cut(left, length=self._length, pad_id=self._pad_id)

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        lengths = self._documents.take_all().lengths + self._frame.num_tokens
        order = permuted(len(lengths), rng)
        stops = np.cumsum(lengths[order])
        starts = stops - lengths[order]

        def pieces(record: int) -> list[Piece]:
            first = record * self._length
            last = min(first + self._length, int(stops[-1]))
            inside = range(int(np.searchsorted(stops, first, "right")), int(np.searchsorted(starts, last, "left")))
            return [
                Piece(int(order[i]), max(int(starts[i]), first) - first, min(int(stops[i]), last) - first)
                for i in inside
                if lengths[order[i]]  # without special tokens a document may have none
            ]

        return pieces


CONCAT = Layout(open_encoder=_open_encoder, features=_features, joins_rows=True, one_record=False)
