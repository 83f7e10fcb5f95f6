"""Windows over long texts, and answers in them: the same as `transformers` makes, and every token as promised."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from tests.prepare.layouts import encoding
from tests.prepare.layouts.encoding import laid_out, tokenizer
from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, Zoo
from tfrecord_io.errors import ConfigError, TokenizerError

LENGTH, STRIDE = 20, 4
SOME_TEXTS = [*texts.sentences(6, seed=3), "", "one", *texts.HOSTILE[::5]]
KINDS = [*FAST_KINDS, "unigram_left+left", "byte_bpe_roberta+left"]
WORDS = ["the", "a", "of", "every", "small", "house", "river", "walks", "7", ",", "unbelievably", "é", "中文"]
CONTEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=60)


def _encoder(
    zoo: Zoo, kind: str, *, pair: bool = True, stride: int | None = STRIDE, engine: Any = "auto"
) -> BatchEncoder:
    layout = LayoutConfig(name="qa" if pair else "pad", max_length=LENGTH, stride=stride)
    columns = ColumnPlan(texts=("question", "context") if pair else ("text",))
    return encoding.open_encoder(tokenizer(zoo, kind), layout, columns, engine=engine)


def _answers(answers: Sequence[tuple[str, int] | None]) -> pa.Array:
    made: list[dict[str, list[Any]]] = [
        {"text": [], "answer_start": []} if a is None else {"text": [a[0]], "answer_start": [a[1]]} for a in answers
    ]
    return pa.array(made, pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))]))


def _rows(*columns: list[str], answers: Sequence[tuple[str, int] | None] | None = None, first: int = 0) -> Rows:
    return Rows(
        texts=tuple(pa.array(column, pa.string()) for column in columns),
        arrays={"label": np.arange(len(columns[0])) * 10},
        nested={} if answers is None else {"answers": _answers(answers)},
        numbers=np.arange(first, first + len(columns[0])),
    )


def _expected(made: Any, *columns: list[str]) -> Any:
    return made(
        *columns,
        truncation="only_second" if len(columns) == 2 else True,
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_those_of_the_tokenizer(zoo: Zoo, kind: str, pair: bool) -> None:
    columns = [["what is it ?"] * len(SOME_TEXTS), SOME_TEXTS] if pair else [SOME_TEXTS]
    rows = _rows(*columns, answers=[None] * len(SOME_TEXTS) if pair else None, first=100)
    ours = laid_out(_encoder(zoo, kind, pair=pair), rows)
    expected = _expected(tokenizer(zoo, kind), *columns)
    owners = expected["overflow_to_sample_mapping"]
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert (name in ours) == (name in expected)
        if name in expected:
            assert ours[name].tolist() == expected[name]
    for window, offsets in enumerate(expected["offset_mapping"]):
        of_text = [sequence == pair for sequence in expected.sequence_ids(window)]
        assert ours["char_starts"][window].tolist() == [at[0] * own for at, own in zip(offsets, of_text, strict=True)]
        assert ours["char_ends"][window].tolist() == [at[1] * own for at, own in zip(offsets, of_text, strict=True)]
    assert ours["source_row"].tolist() == [100 + owner for owner in owners]
    assert ours["label"].tolist() == [10 * owner for owner in owners]


def _as_in_guides(expected: Any, window: int, answer: tuple[str, int] | None) -> tuple[int, int]:
    """The preprocessing of SQuAD as guides to question answering write it down."""
    sequence, offsets = expected.sequence_ids(window), expected["offset_mapping"][window]
    own = [place for place, which in enumerate(sequence) if which == 1]
    if answer is None or not own:
        return 0, 0
    start, end = answer[1], answer[1] + len(answer[0])
    if offsets[own[0]][0] > start or offsets[own[-1]][1] < end:
        return 0, 0
    first = max(place for place in own if offsets[place][0] <= start)
    last = min(place for place in own if offsets[place][1] >= end)
    return first, last


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte_bpe_roberta", "wordpiece_uncased", "truncation_left"])
@settings(max_examples=20)
@given(words=CONTEXTS, data=st.data())
def test_positions_are_those_of_the_usual_preprocessing(zoo: Zoo, kind: str, words: list[str], data: Any) -> None:
    words = [word for word in words if word.isascii()] or ["a"]
    begin = data.draw(st.integers(0, len(words) - 1))
    stop = data.draw(st.integers(begin + 1, len(words)))
    context = " ".join(words)
    answer = (" ".join(words[begin:stop]), len(" ".join(words[:begin])) + (begin > 0))
    columns = laid_out(_encoder(zoo, kind), _rows(["a house ?"], [context], answers=[answer]))
    expected = _expected(tokenizer(zoo, kind), ["a house ?"], [context])
    positions = list(zip(columns["start_positions"].tolist(), columns["end_positions"].tolist(), strict=True))
    assert positions == [_as_in_guides(expected, window, answer) for window in range(len(positions))]


def test_of_characters_with_several_tokens_the_answer_has_all(zoo: Zoo) -> None:
    context, opened = "a 中 house", tokenizer(zoo, "byte_bpe")
    columns = laid_out(_encoder(zoo, "byte_bpe"), _rows(["a ?"], [context], answers=[("中", 2)]))
    first, last = int(columns["start_positions"][0]), int(columns["end_positions"][0])
    assert first < last
    assert opened.decode(columns["input_ids"][0, first : last + 1]).strip() == "中"


def test_rows_that_cannot_be_used_are_named(zoo: Zoo) -> None:
    long = " ".join(["house"] * 40)
    rows: list[tuple[str, str, tuple[str, int] | None, str]] = [
        ("a ?", "the small house", ("small", 4), ""),
        ("a ?", "the small house", ("small", 5), "answer_mismatch"),
        ("a ?", "the small house", ("house", -5), "answer_mismatch"),
        ("a ?", "the small house", ("small", 400), "answer_mismatch"),
        (long, "the small house", ("small", 4), "question_too_long"),
        (long, "the small house", ("small", 0), "answer_mismatch"),
        (" ".join(["a"] * 14), long, None, "question_too_long"),
        (" ".join(["a"] * 14), "a a a", None, ""),
        (" ".join(["a"] * 14), "a a a a", None, "question_too_long"),
        ("a ?", "", None, ""),
        ("", "the house", None, ""),
    ]
    encoder = _encoder(zoo, "wordpiece_cased")
    questions, contexts, answers, reasons = (list(column) for column in zip(*rows, strict=True))
    made = _rows(questions, contexts, answers=answers)
    assert encoder.encode(made).reasons.tolist() == reasons
    usable = [row for row, reason in enumerate(reasons) if not reason]
    assert sorted(set(laid_out(encoder, made)["source_row"].tolist())) == usable


@pytest.mark.parametrize("pair", [False, True])
def test_an_engine_without_characters_is_refused(zoo: Zoo, pair: bool) -> None:
    with pytest.raises(ConfigError, match="which --engine wordpiece cannot report"):
        _encoder(zoo, "wordpiece_cased", pair=pair, engine="wordpiece")


@pytest.mark.parametrize(("pair", "stride", "most"), [(False, 18, 17), (True, 17, 16)])
def test_windows_that_would_not_get_on_are_refused(zoo: Zoo, pair: bool, stride: int, most: int) -> None:
    with pytest.raises(ConfigError, match=rf"--stride {stride} with --max-length 20.*give --stride {most} or less"):
        _encoder(zoo, "wordpiece_cased", pair=pair, stride=stride)
    assert _encoder(zoo, "wordpiece_cased", pair=pair, stride=most).engine.startswith("hf ")


def test_a_tokenizer_in_python_is_refused(zoo: Zoo) -> None:
    with pytest.raises(TokenizerError, match="need each token's place in the text, which this tokenizer"):
        _encoder(zoo, "slow_byt5", pair=False)
