"""Fill-in-the-middle gives the rows of Megatron-LM, and is refused where a text could not be put together again."""

import functools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.layouts.base import Encoded
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from tests import building
from tests.prepare.layouts import encoding
from tests.support import infilling, texts
from tests.support.tokenizers_zoo import Zoo

DOCUMENTS = [*texts.sentences(1_000 - len(texts.HOSTILE), seed=5), *texts.HOSTILE]


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(infilling.tokenizer())


def encoded(documents: list[str], **options: Any) -> Encoded:
    layout = LayoutConfig(**{"name": "concat", "max_length": 64, "special_tokens": "none", **options})
    encoder = encoding.open_encoder(tokenizer(), layout, ColumnPlan(texts=("text",)))
    column, numbers = pa.array(documents, pa.string()), np.arange(len(documents))
    return encoder.encode(Rows(texts=(column,), arrays={}, numbers=numbers, split="train"))


def runs_of(made: Encoded) -> list[list[int]]:
    ids = made.ragged["input_ids"]
    return [run.tolist() for run in np.split(ids.ids, ids.offsets[1:-1])]


@pytest.mark.parametrize(("rate", "spm_rate"), [(0.5, 0.5), (1.0, 0.0), (1.0, 1.0), (0.25, 0.9)])
def test_ids_are_those_of_megatron_given_the_same_random_numbers(rate: float, spm_rate: float) -> None:
    documents = DOCUMENTS[-400:]
    runs = runs_of(encoded(documents, fim_rate=rate, fim_spm_rate=spm_rate))
    for document, draws, ids in zip(documents, infilling.draws_of(range(400)).tolist(), runs, strict=True):
        assert ids == infilling.permuted(document, draws, tokenizer(), rate=rate, spm_rate=spm_rate), document


@pytest.mark.slow
@settings(max_examples=25)
@given(documents=st.lists(st.text(max_size=40) | st.sampled_from(texts.HOSTILE), min_size=1, max_size=20))
def test_every_rewritten_document_can_be_put_together_again(documents: list[str]) -> None:
    p, s, m = tokenizer().convert_tokens_to_ids(list(infilling.SENTINELS))
    for document, ids in zip(documents, runs_of(encoded(documents, fim_rate=1.0)), strict=True):
        if not document:
            assert not ids
            continue
        at = [ids.index(sentinel) for sentinel in (p, s, m)]
        prefix, suffix, middle = ids[1 : at[1]], ids[at[1] + 1 : at[2]], ids[at[2] + 1 :]
        again = tokenizer().decode([*prefix, *middle, *suffix], clean_up_tokenization_spaces=False)
        assert again == document, "with the suffix first, prefix and middle follow each other"


def test_as_many_documents_are_rewritten_as_asked() -> None:
    fim = encoded([f"text {number}" for number in range(10_000)], fim_rate=0.5, fim_spm_rate=0.5).fim
    assert fim["psm"] + fim["spm"] == pytest.approx(5_000, abs=200)
    assert fim["spm"] == pytest.approx(2_500, abs=150)


@pytest.mark.parametrize("name", ["concat", "pack"])
def test_documents_without_room_are_counted(name: str) -> None:
    options: dict[str, Any] = {"name": name, "max_length": 24, "special_tokens": "eos"}
    plain, made = encoded(DOCUMENTS, **options), encoded(DOCUMENTS, **options, fim_rate=1.0)
    is_longer = np.array([len(run) + 1 > 24 for run in runs_of(encoded(DOCUMENTS, fim_rate=1.0))])
    num_longer = int(is_longer.sum())
    assert 100 < num_longer < 900
    if name == "concat":
        assert made.fim["longer_than_row"] == num_longer
        return
    assert made.fim["unchanged"] == num_longer
    assert [run for run, long in zip(runs_of(made), is_longer, strict=True) if long] == [
        run for run, long in zip(runs_of(plain), is_longer, strict=True) if long
    ]


@pytest.mark.parametrize(
    ("layout", "note"),
    [
        ("concat", " longer than a row of 32 tokens, with the middle in another row: --layout pack keeps"),
        ("pack", " unchanged, since rewriting would exceed 32 tokens"),
    ],
)
def test_plan_build_and_report_tell_of_documents_without_room(tmp_path: Path, layout: str, note: str) -> None:
    options = {"tokenizer": infilling.tokenizer(), "layout": layout, "fim_rate": 1.0, "split": "train"}
    arguments = building.options(tmp_path / "out", **options)
    planned, built = (building.command(name, building.REVIEWS, *arguments) for name in ("plan", "build"))
    assert f"train, by its sample: fill-in-the-middle: {'320' if layout == 'concat' else ''}" in planned.err
    assert note in planned.err
    assert note in built.err
    building.command("report", tmp_path / "out", "--output", tmp_path / "page.html")
    assert note in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_numbers_of_rows_are_those_of_the_format() -> None:
    """By the formulas of docs/format.md; SplitMix64 from state 0 begins with E220A8397B1DCDAF."""
    gamma, most = 0x9E3779B97F4A7C15, 2**64

    def mix(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % most
        value = (value ^ value >> 27) * 0x94D049BB133111EB % most
        return value ^ value >> 31

    assert mix(gamma) == 0xE220A8397B1DCDAF
    state = mix((mix(mix(7) ^ zlib.crc32(b"test")) + 1_001 * gamma) % most)
    expected = [(mix((state + at * gamma) % most) >> 11) / 2**53 for at in range(1, 5)]
    assert infilling.draws_of([3, 1_000], split="test", seed=7)[1].tolist() == expected


@pytest.mark.parametrize("special_tokens", ["eos", "bos-eos"])
def test_ends_that_a_text_already_has_are_not_split(special_tokens: Any) -> None:
    bare = ["the film was good", "never again"]
    ends = "<|endoftext|>" if special_tokens == "bos-eos" else "", "<|endoftext|>"
    framed = [f"{ends[0]}{text}{ends[1]}" for text in bare]
    one, two = (runs_of(encoded(texts, fim_rate=1.0, special_tokens=special_tokens)) for texts in (bare, framed))
    assert one == two


@pytest.mark.parametrize(
    "tokens", [infilling.SENTINELS, ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), ("<PRE>", "<SUF>", "<MID>")]
)
def test_sentinels_of_known_vocabularies_are_found(zoo: Zoo, tokens: tuple[str, ...]) -> None:
    opened = zoo.tokenizer("byte_bpe")
    opened.add_special_tokens({"additional_special_tokens": list(tokens), "pad_token": "<|endoftext|>"})
    layout = LayoutConfig(name="pack", max_length=64, fim_rate=0.5)
    encoder = encoding.open_encoder(opened, layout, ColumnPlan(texts=("text",)))
    assert encoder.notes == (f"fill-in-the-middle uses the sentinel tokens {' '.join(tokens)}",)


GIVEN = {"layout": "pack", "fim_rate": 0.5}


@pytest.mark.parametrize(
    ("options", "cause", "remedy"),
    [
        ({**GIVEN, "layout": "pad"}, "--fim-rate was given with --layout pad", "--layout concat"),
        ({**GIVEN, "fim_rate": 1.5}, "--fim-rate 1.5, expected at most 1", "0.5"),
        ({**GIVEN, "fim_spm_rate": -0.1}, "--fim-spm-rate -0.1, expected at least 0", "0.5"),
        ({**GIVEN, "fim_rate": None, "fim_spm_rate": 1.0}, "without --fim-rate", "--fim-rate 0.5"),
        ({**GIVEN, "fim_tokens": "<a>,<b>"}, "expected three different tokens", "<fim_prefix>"),
        ({**GIVEN, "fim_tokens": "<a>,<b>,<a>"}, "expected three different tokens", "<fim_prefix>"),
        ({**GIVEN, "fim_tokens": "a,b,<fim>"}, "'<fim>' is", "add_special_tokens"),
        (GIVEN, "no known sentinels, expected for example <fim_prefix>", "--fim-tokens"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(
    tmp_path: Path, zoo: Zoo, options: dict[str, Any], cause: str, remedy: str
) -> None:
    arguments = building.options(tmp_path / "out", **{"tokenizer": zoo.path("byte_bpe"), **options})
    outcome = building.command("build", building.REVIEWS, *arguments)
    assert cause in outcome.error[0]
    assert remedy in outcome.error[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("wordpiece_uncased", "[CLS],[SEP],[MASK]"),
        ("wordpiece_cased", "[CLS],[SEP],[MASK]"),
        ("bpe_fallback", "<s>,</s>,<unk>"),
        ("unigram", "<pad>,</s>,<extra_id_0>"),
    ],
)
def test_a_tokenizer_that_changes_texts_or_their_parts_is_refused(
    tmp_path: Path, zoo: Zoo, kind: str, tokens: str
) -> None:
    options = {**GIVEN, "tokenizer": zoo.path(kind), "fim_tokens": tokens}
    outcome = building.command("build", building.REVIEWS, *building.options(tmp_path / "out", **options))
    assert "split into three parts, decodes to" in outcome.error[0]
    assert not (tmp_path / "out" / "manifest.json").exists()
