"""Packed rows hold every token of every document once, in full rows, and say where each document is."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.layouts.packing import Packing, lay_out, pack
from pipelines.prepare.tokenize.document_frames import DocumentFrame
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from tests.prepare.layouts import slow_packing

INT32 = np.dtype(np.int32)
PAD, BOS, EOS = 0, 1, 2

LENGTHS = st.lists(st.integers(0, 30), max_size=60)
# On both sides of what one word and one level of the bitmap hold.
ROW_LENGTHS = st.sampled_from([1, 2, 3, 7, 8, 16, 63, 64, 65, 4095, 4096, 4097, 70_000])


class Case(NamedTuple):
    """Documents, with L, and what is put around them."""

    documents: RaggedTokens
    length: int
    frame: DocumentFrame

    def framed(self, document: int) -> list[int]:
        start, stop = self.documents.offsets[document : document + 2]
        return [*self.frame.before, *self.documents.ids[start:stop].tolist(), *self.frame.after]

    def pack(self, order: np.ndarray | None = None) -> Packing:
        return pack(self.documents.lengths + self.frame.num_tokens, length=self.length, order=order)

    def lay_out(self, packing: Packing, loss_mask: np.ndarray | None = None) -> dict[str, np.ndarray]:
        return lay_out(
            self.documents,
            packing,
            length=self.length,
            pad_id=PAD,
            frame=self.frame,
            loss_mask=loss_mask,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(LENGTHS)
    # Every token is another one, so that each can be told from all others.
    ids = iter(range(10, 10 + sum(sizes)))
    documents = from_lists([list(itertools.islice(ids, size)) for size in sizes], dtype=INT32)
    frame = DocumentFrame(before=(BOS,) * draw(st.integers(0, 3)), after=(EOS,) * draw(st.integers(0, 3)))
    return Case(documents, draw(st.integers(1, 24)), frame)


def segments(laid_out: dict[str, np.ndarray]) -> list[list[list[int]]]:
    """The tokens of each segment of each row, told from segment_ids alone."""
    found = []
    for ids, marks in zip(laid_out["input_ids"].tolist(), laid_out["segment_ids"].tolist(), strict=True):
        by_segment = itertools.groupby(zip(marks, ids, strict=True), key=lambda each: each[0])
        found.append([[token for _, token in group] for mark, group in by_segment if mark])
    return found


def fill(lengths: np.ndarray, *, length: int) -> float:
    """The share of positions that hold tokens."""
    return float(lengths.sum()) / (len(pack(lengths, length=length)) * length)


# --- packing --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=75)
@given(lengths=st.lists(st.integers(0, 100), max_size=40), length=ROW_LENGTHS)
def test_rows_are_those_of_a_packing_that_looks_at_every_row(lengths: list[int], length: int) -> None:
    packing = pack(np.array(lengths, np.int64), length=length)
    found = [[(document, stop - start) for document, start, stop in packing.parts(row)] for row in range(len(packing))]
    expected = slow_packing.packed(lengths, length=length)
    assert found == [[(piece.document, piece.size) for piece in row] for row in expected]
    assert packing.firsts.tolist() == [piece.first for row in expected for piece in row]


@settings(deadline=None)
@given(lengths=LENGTHS, length=st.integers(1, 24), data=st.data())
def test_an_order_packs_the_documents_as_if_they_had_come_in_it(
    lengths: list[int], length: int, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(lengths)))), np.int64)
    sizes = np.array(lengths, np.int64)
    ordered, plain = pack(sizes, length=length, order=order), pack(sizes[order], length=length)
    assert ordered.documents.tolist() == order[plain.documents].tolist()
    assert ordered.edges.tolist() == plain.edges.tolist()


def test_long_and_short_documents_are_spread_over_the_shard() -> None:
    """Rows in the order in which they were opened would have the longest documents first."""
    lengths = natural(20_000, median=300)
    packing = pack(lengths, length=2048)
    segments_per_row = np.diff(packing.edges)
    halves = segments_per_row[: len(packing) // 2].mean(), segments_per_row[len(packing) // 2 :].mean()
    assert 0.9 < halves[0] / halves[1] < 1.1


# --- worst cases ----------------------------------------------------------------------------------------------------


def test_no_documents_make_no_rows() -> None:
    case = Case(from_lists([], dtype=INT32), 8, DocumentFrame(before=(BOS,), after=(EOS,)))
    laid_out = case.lay_out(case.pack())
    assert {name: values.shape for name, values in laid_out.items()} == dict.fromkeys(laid_out, (0, 8))


def test_an_empty_document_is_its_separator_or_in_no_row() -> None:
    documents = from_lists([[], [7], []], dtype=INT32)
    followed, bare = Case(documents, 4, DocumentFrame(after=(EOS,))), Case(documents, 4, DocumentFrame())
    assert segments(followed.lay_out(followed.pack())) == [[[EOS], [7, EOS], [EOS]]]
    assert segments(bare.lay_out(bare.pack())) == [[[7]]]


# --- laying out -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(case=cases(), data=st.data())
def test_the_segments_of_a_document_give_it_back(case: Case, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(case.documents)))), np.int64)
    packing = case.pack(order)
    found: dict[int, dict[int, list[int]]] = {}
    rows = segments(case.lay_out(packing))
    for row, in_row in enumerate(rows):
        first = packing.firsts[packing.edges[row] : packing.edges[row + 1]].tolist()
        for (document, start, stop), begins, tokens in zip(packing.parts(row), first, in_row, strict=True):
            assert len(tokens) == stop - start
            found.setdefault(document, {})[begins] = tokens
    joined = {
        document: [token for _, part in sorted(parts.items()) for token in part] for document, parts in found.items()
    }
    whole = {document: case.framed(document) for document in range(len(case.documents))}
    assert joined == {document: tokens for document, tokens in whole.items() if tokens}


@settings(deadline=None, max_examples=50)
@given(case=cases(), data=st.data())
def test_a_loss_mask_goes_with_its_tokens(case: Case, data: st.DataObject) -> None:
    """0 on what leads a document, 1 on what follows it."""
    count = len(case.documents.ids)
    mask = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.uint8)
    laid_out = case.lay_out(case.pack(), mask)
    learned = dict(zip(case.documents.ids.tolist(), mask.tolist(), strict=True)) | {BOS: 0, EOS: 1, PAD: 0}
    assert laid_out["loss_mask"].tolist() == [
        [learned[token] for token in row] for row in laid_out["input_ids"].tolist()
    ]


@settings(deadline=None, max_examples=50)
@given(case=cases(), step=st.integers(1, 5))
def test_rows_are_the_same_laid_out_a_few_at_a_time(case: Case, step: int) -> None:
    packing = case.pack()
    whole = case.lay_out(packing)
    parts = [case.lay_out(packing.rows(start, start + step)) for start in range(0, len(packing), step)]
    for name, values in whole.items():
        assert [row for part in parts for row in part[name].tolist()] == values.tolist()


# --- how full rows are ----------------------------------------------------------------------------------------------


def natural(count: int, *, median: int, spread: float = 1.0) -> np.ndarray:
    """Log-normal lengths, as those of pages, articles and reviews are."""
    rng = np.random.default_rng([count, median])
    return np.maximum(1, rng.lognormal(np.log(median), spread, count)).astype(np.int64)


@pytest.mark.parametrize(
    ("median", "spread", "length", "count", "at_least"),
    [
        (300, 1.0, 2048, 20_000, 0.999),
        (300, 1.0, 2048, 1000, 0.99),
        (25, 0.6, 2048, 100_000, 0.999),
        (180, 0.7, 512, 20_000, 0.99),
        (300, 1.0, 8192, 20_000, 0.999),
    ],
)
def test_rows_of_natural_texts_are_full(median: int, spread: float, length: int, count: int, at_least: float) -> None:
    assert fill(natural(count, median=median, spread=spread), length=length) > at_least
