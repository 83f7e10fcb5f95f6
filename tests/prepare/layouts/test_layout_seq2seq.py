"""Inputs and targets are equal to those from `transformers`, for any tokenizer and any processing of the rows."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from transformers import AutoTokenizer, NllbTokenizer

from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from tests.prepare.layouts import encoding
from tests.support import texts
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import ConfigError

L, T = 14, 9
KINDS = (
    *("wordpiece_cased", "byte_bpe_bos", "unigram_left", "slow_byt5"),
    *("truncation_left", "byte_bpe_roberta", "bpe_fallback", "unigram"),
)
SOURCES = [*texts.sentences(12, seed=3), "", "one", *texts.HOSTILE[::6]]
TARGETS = [*SOURCES[5:], *SOURCES[:5]]


def _encoder(tokenizer: Any, *, pair: bool = False, **options: Any) -> BatchEncoder:
    columns = ColumnPlan(texts=("text", "other") if pair else ("text",), nested={"target": "target"})
    layout = LayoutConfig(name="seq2seq", max_length=L, **{"target_length": T, **options})
    return encoding.open_encoder(tokenizer, layout, columns)


def _rows(columns: Sequence[list[str]], targets: list[str], *, first: int = 0) -> Rows:
    return Rows(
        texts=tuple(pa.array(column, pa.string()) for column in columns),
        nested={"target": pa.array(targets, pa.string())},
        arrays={"row": np.arange(first, first + len(targets))},
    )


def _built(
    encoder: BatchEncoder, columns: Sequence[list[str]], targets: list[str], *, cuts: Sequence[int] = ()
) -> dict[str, np.ndarray]:
    """All records, the rows given in as many batches as `cuts` make."""
    batches = [
        _rows([column[start:stop] for column in columns], targets[start:stop], first=start)
        for start, stop in itertools.pairwise([0, *cuts, len(targets)])
    ]
    return encoding.laid_out(encoder, *batches)


def _expected(tokenizer: Any, columns: Sequence[list[str]], targets: list[str]) -> dict[str, Any]:
    fixed: dict[str, Any] = {"truncation": True, "padding": "max_length", "return_attention_mask": True}
    inputs = dict(tokenizer(*columns, max_length=L, **fixed))
    made = tokenizer(text_target=targets, max_length=T, padding_side="right", **fixed)
    return {**inputs, "target_ids": made["input_ids"], "target_mask": made["attention_mask"]}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_targets_are_those_of_transformers(zoo: Zoo, kind: str) -> None:
    built = _built(_encoder(zoo.tokenizer(kind)), [SOURCES], TARGETS, cuts=[3, 9])
    assert encoding.lists(built) == _expected(zoo.tokenizer(kind), [SOURCES], TARGETS)


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe_bos", "slow_byt5"])
def test_the_prefix_is_part_of_each_text_and_of_no_target(zoo: Zoo, kind: str) -> None:
    tokenizer, prefix = zoo.tokenizer(kind), "to ΣΊ: "
    built = _built(_encoder(tokenizer, input_prefix=prefix), [SOURCES], TARGETS)
    assert encoding.lists(built) == _expected(tokenizer, [[prefix + text for text in SOURCES]], TARGETS)


def test_a_target_is_as_long_as_an_input_unless_it_is_given_a_length_of_its_own(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("unigram")
    for length, expected in ((None, L), (5, 5)):
        encoder = _encoder(tokenizer, target_length=length)
        shapes = {feature.name: feature.shape for feature in encoder.features()}
        assert shapes["target_ids"] == shapes["target_mask"] == (expected,)
        assert shapes["input_ids"] == (L,)
        assert _built(encoder, [["a house"]], ["a river"])["target_ids"].shape == (1, expected)


def test_targets_of_a_tokenizer_with_a_target_mode_get_the_code_of_their_language(tmp_path: Path) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = NllbTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=[*languages.values()], **languages)
    made.save_pretrained(tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    built = _built(_encoder(tokenizer), [SOURCES], TARGETS, cuts=[4])
    assert encoding.lists(built) == _expected(tokenizer, [SOURCES], TARGETS)
    source, target = tokenizer.convert_tokens_to_ids([*languages.values()])
    assert set(built["input_ids"][:, 0]) == {source}
    assert set(built["target_ids"][:, 0]) == {target}


def test_a_row_that_may_not_be_cut_is_rejected_by_what_is_too_long_in_it(zoo: Zoo) -> None:
    encoder = _encoder(zoo.tokenizer("unigram"), truncation="do_not_truncate")
    long = "the house " * 20
    encoded = encoder.encode(_rows([["a", long, "a", long]], ["b", "b", long, long]))
    assert encoded.reasons.tolist() == ["", "too_long", "target_too_long", "too_long"]
    assert encoded.tokens_cut == 0


def test_a_target_is_cut_where_only_the_first_text_of_an_input_may_give_way(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("unigram")
    encoder = _encoder(tokenizer, pair=True, truncation="only_first")
    long = "the house " * 20
    encoded = encoder.encode(_rows([["a", "a"], ["b", long]], [long, long]))
    assert encoded.reasons.tolist() == ["", "cannot_truncate"]
    expected = tokenizer(text_target=[long], truncation=True, max_length=T)["input_ids"][0]
    assert encoded.ragged["target_ids"].ids[:T].tolist() == expected


def test_a_prefix_that_is_not_utf8_is_refused(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match="is not UTF-8"):
        _encoder(zoo.tokenizer("unigram"), input_prefix="\udcff")
