"""Layouts `concat` and `pack` (docs/format.md): a record of L tokens holds several documents with their special tokens.

concat: documents are joined, then cut at every L-th token, with --segments as in Grain's `ConcatThenSplitIterDataset`.
pack: a record holds whole documents, each with its own segment and positions (see `packing`).
"""

from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.prepare.layouts import base, packing
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize import fill_in_middle
from pipelines.prepare.tokenize.engines import Engine, decide, open_reference
from pipelines.prepare.tokenize.fill_in_middle import FillInMiddle
from pipelines.prepare.tokenize.ragged import RaggedTokens, id_dtype
from pipelines.prepare.tokenize.special_tokens import begin_with, framed, left_out_bos, open_frame, without_frame
from tfrecord_io.schema import Feature

_TOKENS_PER_CHUNK = 1 << 19


def open_engines(context: base.LayoutContext) -> tuple[Engine, Engine]:
    """Return the engine that `context` requests for tokenizing single texts, and the reference engine."""
    dtype = id_dtype(context.facts.vocab_size)
    reference = open_reference(context.tokenizer, dtype=dtype)
    return decide(context.tokenizer, reference, dtype=dtype, wanted=context.engine)[0], reference


def packed_features(length: int) -> tuple[Feature, ...]:
    """Return the features of records of `length` tokens that hold several documents, except a loss mask."""
    return (
        base.input_ids(length),
        base.feature("segment_ids", "1, 2, ... on the documents of this row, 0 on padding", length),
        base.feature("positions", "a token's place in its document, from 0; 0 on padding", length),
    )


class PackBuilder(base.Builder):
    """Builder that packs the documents of a shard into records.

    Empty documents count as used, but are in no record. `length`: tokens in a record. `truncates`: documents that are
    longer than a record are truncated, not split. `most`: maximum number of documents in a record; None for no limit.
    """

    def __init__(self, *, length: int, pad_id: int, truncates: bool = False, most: int | None = None) -> None:
        super().__init__()
        self._length, self._pad_id, self._truncates, self._most = length, pad_id, truncates, most

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        ragged, packed, owners = self._packed(rng)
        self.rows_used += int(np.count_nonzero(ragged["input_ids"].lengths == 0))
        chunk_rows = max(1, _TOKENS_PER_CHUNK // self._length)
        is_used = np.zeros(len(owners), bool)
        for start in range(0, len(packed), chunk_rows):
            part = packed.rows(start, start + chunk_rows)
            is_used[owners[part.documents[part.firsts == 0]]] = True
            yield self._laid_out(ragged, part)
        self.rows_used += int(np.count_nonzero(is_used))

    def lineage(self, rng: np.random.Generator | None) -> base.Lineage:
        _, packed, owners = self._packed(rng)
        return lambda record: [base.Piece(int(owners[at]), start, stop) for at, start, stop in packed.parts(record)]

    def _packed(
        self, rng: np.random.Generator | None
    ) -> tuple[Mapping[str, RaggedTokens], packing.Packing, np.ndarray]:
        whole = self._take()
        if not whole.usable.all():
            whole = whole.take(np.flatnonzero(whole.reasons == ""))
        documents = whole.ragged["input_ids"]
        packed = self._pack(documents.lengths, base.permuted(len(documents), rng))
        return whole.ragged, packed, whole.row_of_sequence

    def _pack(self, lengths: np.ndarray, order: np.ndarray) -> packing.Packing:
        if self._truncates:
            self.tokens_cut += int(np.maximum(lengths - self._length, 0).sum())
            lengths = np.minimum(lengths, self._length)
        return packing.pack(lengths, length=self._length, order=order, most=self._most)

    def _laid_out(self, ragged: Mapping[str, RaggedTokens], part: packing.Packing) -> dict[str, np.ndarray]:
        segment_ids, positions = packing.segments(part, length=self._length)
        columns = {"input_ids": self._ids(ragged, part), "segment_ids": segment_ids, "positions": positions}
        if "loss_mask" in ragged:
            columns["loss_mask"] = packing.lay_out(ragged["loss_mask"], part, length=self._length, dtype=np.uint8)
        return columns

    def _ids(self, ragged: Mapping[str, RaggedTokens], part: packing.Packing) -> np.ndarray:
        return packing.lay_out(ragged["input_ids"], part, length=self._length, dtype=np.int32, fill=self._pad_id)


class JoinBuilder(PackBuilder):
    """Builder that joins documents, then cuts after every `length` tokens. `drop`: omit a last record with padding."""

    def __init__(self, *, length: int, pad_id: int, drop: bool, segments: bool = False) -> None:
        super().__init__(length=length, pad_id=pad_id)
        self._drop, self._segments = drop, segments

    def _pack(self, lengths: np.ndarray, order: np.ndarray) -> packing.Packing:
        joined = packing.join(lengths, length=self._length, order=order)
        num_whole = int(np.count_nonzero(joined.num_tokens == self._length))
        if not self._drop or num_whole == len(joined):
            return joined
        dropped = joined.rows(num_whole, len(joined))
        self.rows_used += int(np.count_nonzero(dropped.firsts == 0))
        self.tokens_cut += int(dropped.sizes.sum())
        return joined.rows(0, num_whole)

    def _laid_out(self, ragged: Mapping[str, RaggedTokens], part: packing.Packing) -> dict[str, np.ndarray]:
        if self._segments:
            return super()._laid_out(ragged, part)
        return {"input_ids": self._ids(ragged, part), "num_tokens": part.num_tokens.astype(np.int32)}


class _DocumentEncoder(base.BatchEncoder):
    def __init__(self, engine: Engine, context: base.LayoutContext) -> None:
        super().__init__(engine)
        self._engine = engine
        self._context = context
        self._frame = open_frame(context.tokenizer, context.layout.special_tokens)
        self._left_out = left_out_bos(context.tokenizer, context.layout.special_tokens)
        self._fim: FillInMiddle | None = None
        if context.layout.fim_rate:
            frame, is_packed = self._frame, context.layout.name == "pack"
            longest = context.length - len(frame.before) - len(frame.after) if is_packed else None
            self._fim = FillInMiddle(context.tokenizer, context.layout, seed=context.seed, frame=frame, longest=longest)
            if context.layout.fim_tokens is None:
                self.notes = (f"fill-in-the-middle uses the sentinel tokens {' '.join(self._fim.tokens)}",)

    def features(self) -> tuple[Feature, ...]:
        length = self._context.length
        if self._context.layout.name == "pack" or self._context.layout.segments:
            return packed_features(length)
        return base.input_ids(length), base.feature("num_tokens", "tokens of this row that are not padding")

    def encode(self, rows: Rows) -> base.Encoded:
        fim: Mapping[str, int] = {}
        if self._fim is None:
            (documents,) = without_frame(self._engine.encode(rows.texts[0]), self._frame)
        else:
            documents, kinds = self._fim.encode(rows, self._engine)
        documents = framed(documents, self._frame)
        is_longer = documents.lengths > self._context.length
        reasons = np.where(is_longer & (self._context.layout.long_documents == "drop"), "too_long", "").astype(object)
        if self._fim is not None:
            fim = fill_in_middle.counts(kinds[reasons == ""], is_longer=is_longer[reasons == ""])
        return base.Encoded(
            ragged={"input_ids": documents}, arrays={}, reasons=reasons, full_lengths=documents.lengths, fim=fim
        )

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        if self._fim is not None:
            self._fim.require_reversible(rows, self._engine, self._context.tokenizer)
        documents, spelt = self._engine.encode(rows.texts[0]), self._context.tokenizer.convert_ids_to_tokens
        notes = base.notes_on_ends(documents, self._frame, spelt)
        if self._left_out is None:
            return notes
        name, chosen, bos = self._context.facts.name, self._context.layout.special_tokens, spelt(self._left_out)
        if begin_with(documents, (self._left_out,)).all():
            return (*notes, f"all sampled texts begin with {bos}, so --special-tokens bos-eos is not needed")
        cause = f"tokenizer {name!r} begins every text with {bos}, but --special-tokens {chosen} leaves it out"
        return (*notes, f"{cause}; --special-tokens bos-eos puts it before each document that does not begin with it")

    def builder(self) -> base.Builder:
        length, pad_id, layout = self._context.length, self._context.facts.pad_id, self._context.layout
        if layout.name == "pack":
            truncates = layout.long_documents == "truncate"
            return PackBuilder(length=length, pad_id=pad_id, truncates=truncates, most=layout.most_documents)
        return JoinBuilder(length=length, pad_id=pad_id, drop=layout.remainder == "drop", segments=layout.segments)


def _open_encoder(context: base.LayoutContext) -> base.BatchEncoder:
    return base.beside_reference(lambda engine: _DocumentEncoder(engine, context), *open_engines(context))


CONCAT = PACK = base.Layout(open_encoder=_open_encoder, inputs=base.one_text, joins_rows=True, one_record=False)
