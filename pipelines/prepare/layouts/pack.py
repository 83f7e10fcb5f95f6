"""Layout `pack`: whole documents side by side in rows of exactly L tokens, each with its own segment and positions.

    documents      a b c | d | e f g h i      L = 8, each followed by a separator, '|'
    input_ids      a b c | d | . .            e f g h i | . .
    segment_ids    1 1 1 1 2 2 0 0            1 1 1 1 1 1 0 0
    positions      0 1 2 3 0 1 0 0            0 1 2 3 4 5 0 0

A document that is longer than a row is split, or left out (`--long-documents drop`); no other is split. Which documents
share a row is decided for a whole shard at once, in its permuted order; see `packing` for how, and for the rows' order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from pipelines.prepare.layouts import packing
from pipelines.prepare.layouts.base import (
    BatchEncoder,
    Builder,
    Encoded,
    Layout,
    LayoutContext,
    Lineage,
    Piece,
    feature,
    input_ids,
    permuted,
)
from pipelines.prepare.layouts.concat import DocumentEncoder
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.document_frames import DocumentFrame
from pipelines.prepare.tokenize.engines import Engine
from pipelines.prepare.tokenize.ragged import GrowingRagged, RaggedTokens, id_dtype
from tfrecord_io.schema import Feature

__all__ = ["PACK", "PackBuilder", "packed_features"]

NO_FRAME = DocumentFrame()
_TOKENS_PER_CHUNK = 1 << 19


def packed_features(length: int) -> tuple[Feature, ...]:
    """Return the features that `PackBuilder` makes of documents."""
    return (
        input_ids(length),
        feature("segment_ids", "1, 2, ... on the documents of this row, 0 on padding", length),
        feature("positions", "a token's place in its document, from 0; 0 on padding", length),
    )


class PackBuilder:
    """Packs the documents of a shard, one sequence of `input_ids` for each row.

    `frame` is put around each document; one without any token counts as used, but is in no record. `loss_mask`: there
    are sequences of that name too, with 0 or 1 for each token.
    """

    def __init__(
        self, *, length: int, pad_id: int, dtype: np.dtype, frame: DocumentFrame = NO_FRAME, loss_mask: bool = False
    ) -> None:
        self.rows_used = 0
        self.tokens_cut = 0
        self._length = length
        self._pad_id = pad_id
        self._frame = frame
        self._ragged = {"input_ids": GrowingRagged(dtype)}
        if loss_mask:
            self._ragged["loss_mask"] = GrowingRagged(np.dtype(np.uint8))

    def add(self, encoded: Encoded) -> None:
        """Add the documents of the usable rows."""
        self.tokens_cut += encoded.tokens_cut
        usable = encoded.usable
        for name, growing in self._ragged.items():
            ragged = encoded.ragged[name]
            growing.append(ragged if usable.all() else ragged.take(np.flatnonzero(usable)))

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns by feature name, about half a million tokens at a time."""
        ragged = {name: growing.take_all() for name, growing in self._ragged.items()}
        documents = ragged["input_ids"]
        packed = self._packed(documents, rng)
        if not self._frame.num_tokens:
            self.rows_used += int(np.count_nonzero(documents.lengths == 0))
        chunk_rows = max(1, _TOKENS_PER_CHUNK // self._length)
        for start in range(0, len(packed), chunk_rows):
            part = packed.rows(start, start + chunk_rows)
            self.rows_used += int(np.count_nonzero(part.firsts == 0))
            yield packing.lay_out(
                documents,
                part,
                length=self._length,
                pad_id=self._pad_id,
                frame=self._frame,
                loss_mask=ragged["loss_mask"].ids if "loss_mask" in ragged else None,
            )

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return the lineage of records: the documents in each, or parts of them, in order."""
        packed = self._packed(self._ragged["input_ids"].take_all(), rng)
        return lambda record: [Piece(*part) for part in packed.parts(record)]

    def _packed(self, documents: RaggedTokens, rng: np.random.Generator | None) -> packing.Packing:
        order = permuted(len(documents), rng)
        return packing.pack(documents.lengths + self._frame.num_tokens, length=self._length, order=order)


class _PackEncoder(DocumentEncoder):
    def __init__(self, engine: Engine, context: LayoutContext) -> None:
        super().__init__(engine, context)
        self.may_reject = context.layout.long_documents == "drop"

    def encode(self, rows: Rows) -> Encoded:
        encoded = super().encode(rows)
        if not self.may_reject:
            return encoded
        reasons = np.where(encoded.full_lengths > self._context.length, "too_long", "").astype(object)
        return dataclasses.replace(encoded, reasons=reasons)

    def builder(self) -> Builder:
        length, facts = self._context.length, self._context.facts
        dtype = id_dtype(facts.vocab_size)
        return PackBuilder(length=length, pad_id=facts.pad_id, dtype=dtype, frame=self._frame)


def _features(context: LayoutContext, encoder: BatchEncoder) -> tuple[Feature, ...]:
    del encoder
    return packed_features(context.length)


PACK = Layout(open_encoder=_PackEncoder.open, features=_features, joins_rows=True, one_record=False)
