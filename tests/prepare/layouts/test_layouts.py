"""A builder's rows depend on the texts and their order alone, not on the batches and chunks that they went through."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.layouts.base import Encoded, feature, input_ids
from pipelines.prepare.layouts.rows_builder import Field, RowsBuilder
from pipelines.prepare.options.config import LayoutConfig, Side, SpecialTokens
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from pipelines.prepare.tokenize.ragged import from_lists
from pipelines.prepare.tokenize.special_tokens import open_frame
from tests.prepare.layouts import encoding
from tests.support import seams, texts
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import SchemaError

LENGTH = 12
UINT16 = np.dtype(np.uint16)
WORDS = "the a of every small house river walks 7 , x"
SOME_TEXTS = [*texts.sentences(12, seed=7), "", "one", *texts.HOSTILE[::6]]

TEXTS = st.lists(st.lists(st.sampled_from(WORDS.split()), max_size=15).map(" ".join), max_size=14)
# Where a list of rows is cut into batches: positions modulo its length, in any order, with repetitions (empty batches).
CUTS = st.lists(st.integers(0, 100), max_size=4)


@dataclasses.dataclass(frozen=True)
class Opened:
    tokenizer: Any
    encoder: BatchEncoder
    layout: LayoutConfig


@functools.cache
def _opened(zoo: Zoo, kind: str, layout: LayoutConfig, pair: bool) -> Opened:
    tokenizer = zoo.tokenizer(kind)
    columns = ColumnPlan(texts=("text", "other") if pair else ("text",))
    return Opened(tokenizer, encoding.open_encoder(tokenizer, layout, columns), layout)


def _pad(zoo: Zoo, kind: str = "wordpiece_cased", *, pair: bool = False, **options: Any) -> Opened:
    return _opened(zoo, kind, LayoutConfig(name="pad", max_length=LENGTH, **options), pair)


def _concat(zoo: Zoo, kind: str = "unigram", **options: Any) -> Opened:
    return _opened(zoo, kind, LayoutConfig(name="concat", max_length=LENGTH, **options), False)


def _rows(columns: Sequence[list[str]], *, first: int = 0) -> Rows:
    return Rows(
        texts=tuple(pa.array(column, pa.string()) for column in columns),
        arrays={"row": np.arange(first, first + len(columns[0]))},
    )


def _batches(columns: Sequence[list[str]], cuts: list[int]) -> Iterator[Rows]:
    size = len(columns[0])
    edges = sorted([0, *(cut % (size + 1) for cut in cuts), size])
    for start, stop in itertools.pairwise(edges):
        yield _rows([column[start:stop] for column in columns], first=start)


def _build(
    opened: Opened, columns: Sequence[list[str]], *, cuts: list[int], chunk: int, seed: int | None = None
) -> dict[str, np.ndarray]:
    """All chunks of a builder joined, with at most `chunk` rows (or about as many tokens) in each."""
    with pytest.MonkeyPatch.context() as patch:
        seams.put(patch, chunk_rows=chunk, chunk_tokens=chunk)
        return encoding.laid_out(opened.encoder, *_batches(columns, cuts), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pad", "concat"])
@given(texts=TEXTS, cuts=CUTS, chunk=st.integers(1, 5), seed=st.none() | st.integers(0, 9))
def test_records_are_the_same_through_any_batches_and_chunks(
    zoo: Zoo, layout: str, texts: list[str], cuts: list[int], chunk: int, seed: int | None
) -> None:
    opened, columns = (_pad(zoo, pair=True), [texts, texts[::-1]]) if layout == "pad" else (_concat(zoo), [texts])
    whole = _build(opened, columns, cuts=[], chunk=10**6, seed=seed)
    parts = _build(opened, columns, cuts=cuts, chunk=chunk, seed=seed)
    assert parts.keys() == whole.keys()
    assert all(np.array_equal(parts[name], whole[name]) for name in parts)


@pytest.mark.parametrize(
    ("kind", "pair", "constant"),
    [
        ("wordpiece_cased", False, 0),
        ("wordpiece_cased", True, None),
        ("unigram_left", False, None),
        ("slow_byt5", False, None),
    ],
)
def test_a_type_id_is_said_to_be_constant_only_where_it_is(
    zoo: Zoo, kind: str, pair: bool, constant: int | None
) -> None:
    opened = _pad(zoo, kind, pair=pair)
    assert {column.name: column.constant for column in opened.encoder.features()}.get("token_type_ids") == constant
    if constant is not None:
        built = _build(opened, [SOME_TEXTS] * (1 + pair), cuts=[], chunk=9)
        assert set(built["token_type_ids"].ravel()) == {constant}


@pytest.mark.parametrize("side", ["left", "right"])
@given(rows=st.lists(st.lists(st.integers(0, 65_535), max_size=7), min_size=1, max_size=10))
def test_the_unmasked_values_of_a_padded_row_are_the_row(side: Side, rows: list[list[int]]) -> None:
    mask_of = feature("attention_mask", "", 7, name="mask")
    builder = RowsBuilder([Field(feature=input_ids(7), fill=99_999, side=side, mask=mask_of)])
    ids = from_lists(rows, dtype=UINT16)
    reasons = np.full(len(rows), "", object)
    builder.add(Encoded(ragged={"input_ids": ids}, arrays={}, reasons=reasons, full_lengths=ids.lengths))
    (padded,) = builder.chunks(None)
    mask = padded["mask"].astype(bool)
    assert (str(padded["input_ids"].dtype), str(padded["mask"].dtype)) == ("int32", "int8")
    assert [row[keep].tolist() for row, keep in zip(padded["input_ids"], mask, strict=True)] == rows
    assert (padded["input_ids"][~mask] == 99_999).all()
    assert (np.sort(mask, axis=1) == (mask if side == "left" else mask[:, ::-1])).all()


def test_a_row_that_is_too_long_is_refused() -> None:
    ids = from_lists([[1], [1, 2, 3]], dtype=UINT16)
    with pytest.raises(SchemaError, match="a row has 3 tokens, expected at most 2"):
        Field(feature=input_ids(2)).laid_out_rows({"input_ids": ids}, np.arange(2))


def _documents(opened: Opened, texts: list[str]) -> list[list[int]]:
    frame = open_frame(opened.tokenizer, opened.layout.special_tokens)
    ids = opened.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [[*frame.before, *document, *frame.after] for document in ids]


@pytest.mark.parametrize(
    ("kind", "special_tokens"),
    [
        ("unigram", "eos"),
        ("byte_bpe_roberta", "bos-eos"),
        ("byte_bpe_roberta", "none"),
        ("wordpiece_cased", "tokenizer"),
        ("slow_byt5", "eos"),
    ],
)
@settings(max_examples=30)
@given(texts=TEXTS, cuts=CUTS, chunk=st.integers(1, 40))
def test_blocks_hold_the_documents_with_their_separators_in_source_order(
    zoo: Zoo, kind: str, special_tokens: SpecialTokens, texts: list[str], cuts: list[int], chunk: int
) -> None:
    opened = _concat(zoo, kind, special_tokens=special_tokens)
    blocks = _build(opened, [texts], cuts=cuts, chunk=chunk)
    tokens = blocks["input_ids"][np.arange(LENGTH) < blocks["num_tokens"][:, None]].tolist() if blocks else []
    assert tokens == [token for document in _documents(opened, texts) for token in document]
    assert not blocks or (blocks["num_tokens"][:-1] == LENGTH).all()


@given(texts=TEXTS, chunk=st.integers(1, 40))
def test_a_dropped_remainder_is_counted_to_the_token(zoo: Zoo, texts: list[str], chunk: int) -> None:
    opened = _concat(zoo, remainder="drop")
    builder = opened.encoder.builder()
    builder.add(opened.encoder.encode(_rows([texts])))
    with pytest.MonkeyPatch.context() as patch:
        seams.put(patch, chunk_tokens=chunk)
        blocks = list(builder.chunks(None))
    size = sum(map(len, _documents(opened, texts)))
    assert sum(len(block["input_ids"]) for block in blocks) == size // LENGTH
    assert all((block["num_tokens"] == LENGTH).all() for block in blocks)
    assert builder.tokens_cut == size % LENGTH
