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
    beside_reference,
    feature,
    input_ids,
    permuted,
)
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.document_frames import DocumentFrame, open_frame
from pipelines.prepare.tokenize.engines import Engine, choose, open_reference
from pipelines.prepare.tokenize.ragged import GrowingRagged, RaggedTokens, id_dtype
from tfrecord_io.codec.kernels import jit
from tfrecord_io.schema import Feature

__all__ = ["CONCAT", "DocumentEncoder", "open_engines"]

_TOKENS_PER_CHUNK = 1 << 19


def open_engines(context: LayoutContext) -> tuple[Engine, Engine]:
    """Open engines that tokenize documents without special tokens: the one to use, and the reference."""
    dtype = id_dtype(context.facts.vocab_size)
    reference = open_reference(context.tokenizer, dtype=dtype)
    return choose(context.tokenizer, reference, dtype=dtype, wanted=context.engine), reference


class DocumentEncoder(BatchEncoder):
    """Base class of encoders that put special tokens around each document, and cut none."""

    def __init__(self, engine: Engine, context: LayoutContext) -> None:
        super().__init__(engine)
        self._engine = engine
        self._context = context
        self._frame = open_frame(context.tokenizer, context.layout.special_tokens)

    @classmethod
    def open(cls, context: LayoutContext) -> BatchEncoder:
        """Open the encoder with the engine to use, and the reference beside it."""
        return beside_reference(lambda engine: cls(engine, context), *open_engines(context))

    def encode(self, rows: Rows) -> Encoded:
        """Tokenize one batch."""
        documents = self._engine.encode(rows.texts[0])
        return Encoded(
            ragged={"input_ids": documents},
            arrays={},
            reasons=np.full(len(rows), "", dtype=object),
            full_lengths=documents.lengths + self._frame.num_tokens,
        )


class _ConcatEncoder(DocumentEncoder):
    def builder(self) -> Builder:
        return _ConcatBuilder(self._context, self._frame)


class _ConcatBuilder:
    def __init__(self, context: LayoutContext, frame: DocumentFrame) -> None:
        self.rows_used = 0
        self.tokens_cut = 0
        self._length, self._pad_id = context.length, context.facts.pad_id
        self._frame = frame
        self._drop = context.layout.remainder == "drop"
        self._documents = GrowingRagged(id_dtype(context.facts.vocab_size))

    def add(self, encoded: Encoded) -> None:
        self._documents.append(encoded.ragged["input_ids"])

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        documents = self._documents.take_all()
        order = permuted(len(documents), rng)
        total = np.cumsum(documents.lengths[order])
        edges = np.arange(_TOKENS_PER_CHUNK, (total[-1] if len(total) else 0), _TOKENS_PER_CHUNK)
        left = np.empty(0, np.int32)
        for chosen in np.split(order, np.searchsorted(total, edges) + 1):
            self.rows_used += len(chosen)
            tokens = np.concatenate([left, _joined(documents, chosen, self._frame)])
            whole = len(tokens) // self._length * self._length
            left = tokens[whole:]
            if whole:
                yield self._cut(tokens[:whole])
        if self._drop:
            self.tokens_cut += len(left)
        elif len(left):
            padding = np.full(self._length - len(left), self._pad_id, np.int32)
            yield {**self._cut(np.concatenate([left, padding])), "num_tokens": np.array([len(left)], np.int32)}

    def _cut(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Return full records: input_ids int32 [N, L] and num_tokens int32 [N]."""
        ids = tokens.reshape(-1, self._length)
        return {"input_ids": ids, "num_tokens": np.full(len(ids), self._length, np.int32)}

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


def _joined(documents: RaggedTokens, order: np.ndarray, frame: DocumentFrame) -> np.ndarray:
    """Join the documents with the indices `order`, each in its `frame`, to one int32 vector."""
    num_tokens = int((documents.offsets[order + 1] - documents.offsets[order]).sum())
    out = np.empty(num_tokens + frame.num_tokens * len(order), np.int32)
    before, after = np.array(frame.before, np.int32), np.array(frame.after, np.int32)
    _join(documents.ids, documents.offsets, order, before, after, out)
    return out


@jit
def _join(ids, offsets, order, before, after, out):  # type: ignore[no-untyped-def]
    at = np.uint64(0)  # unsigned, see `rows_builder`
    for index in range(len(order)):
        for token in before:
            out[at] = token
            at += np.uint64(1)
        start, size = np.uint64(offsets[order[index]]), np.uint64(offsets[order[index] + 1] - offsets[order[index]])
        for position in range(size):
            out[at + np.uint64(position)] = ids[start + np.uint64(position)]
        at += size
        for token in after:
            out[at] = token
            at += np.uint64(1)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    del encoder
    return (input_ids(context.length), feature("num_tokens", "tokens of this row that are not padding"))


CONCAT = Layout(open_encoder=_ConcatEncoder.open, features=_features, joins_rows=True, one_record=False)
