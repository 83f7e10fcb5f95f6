"""The test material is what it claims to be: otherwise the tests that rest on it prove nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, KINDS, SLOW_KINDS, Zoo

# kind: (layout of one text, layout of a pair); TOKEN:TYPE as in tokenizers' templates.
_BERT = ("[CLS]:0 A:0 [SEP]:0", "[CLS]:0 A:0 [SEP]:0 B:1 [SEP]:1")
LAYOUTS = {
    "wordpiece_uncased": _BERT,
    "wordpiece_cased": _BERT,
    "truncation_left": _BERT,
    "byte_bpe": ("A:0", "A:0 B:1"),
    "byte_bpe_bos": ("<|begin_of_text|>:0 A:0", "<|begin_of_text|>:0 A:0 <|begin_of_text|>:1 B:1"),
    "byte_bpe_roberta": ("<s>:0 A:0 </s>:0", "<s>:0 A:0 </s>:0 </s>:0 B:0 </s>:0"),
    "bpe_fallback": ("<s>:0 A:0", "<s>:0 A:0 <s>:1 B:1"),
    "unigram": ("A:0 </s>:0", "A:0 </s>:0 B:0 </s>:0"),
    "unigram_left": ("A:0 <sep>:0 <cls>:2", "A:0 <sep>:0 B:1 <sep>:1 <cls>:2"),
    "slow_ctrl": ("A:0", "A:0 B:0"),
    "slow_byt5": ("A:0 </s>:0", "A:0 </s>:0 B:0 </s>:0"),
    "slow_canine": ("\ue000:0 A:0 \ue001:0", "\ue000:0 A:0 \ue001:0 B:0 \ue001:0"),
}
# Loading CANINE's, with a name for each code point, takes a second.
KINDS_TO_TRY = [pytest.param(kind, marks=pytest.mark.slow) if kind == "slow_canine" else kind for kind in KINDS]
TEXT, PAIR = "Anna walked home, slowly.", "Where does the yellow bird live?"


def _lay_out(tokenizer: Any, layout: str) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    types: list[int] = []
    for piece, _, type_id in (item.rpartition(":") for item in layout.split()):
        text = {"A": TEXT, "B": PAIR}.get(piece)
        more = tokenizer(text, add_special_tokens=False)["input_ids"] if text else [_id(tokenizer, piece)]
        ids += more
        types += [int(type_id)] * len(more)
    return ids, types


def _id(tokenizer: Any, token: str) -> int:
    number: int = tokenizer.convert_tokens_to_ids(token)
    return number


@pytest.mark.parametrize("kind", KINDS_TO_TRY)
def test_a_kind_is_fast_exactly_when_it_is_listed_so(zoo: Zoo, kind: str) -> None:
    assert zoo.tokenizer(kind).is_fast == (kind in FAST_KINDS)
    assert (kind in FAST_KINDS) != (kind in SLOW_KINDS)


@pytest.mark.parametrize("kind", KINDS_TO_TRY)
def test_every_kind_makes_several_different_tokens_of_a_sentence(zoo: Zoo, kind: str) -> None:
    ids = zoo.tokenizer(kind)(TEXT, add_special_tokens=False)["input_ids"]
    assert len(set(ids)) >= 4


@pytest.mark.parametrize("kind", KINDS_TO_TRY)
def test_the_special_tokens_and_type_ids_stand_where_stated(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    single = tokenizer([TEXT], return_token_type_ids=True)
    pair = tokenizer([TEXT], [PAIR], return_token_type_ids=True)
    for encoded, layout in zip((single, pair), LAYOUTS[kind], strict=True):
        ids, types = _lay_out(tokenizer, layout)
        assert encoded["input_ids"][0] == ids
        # Python tokenizers that declare no type ids: transformers 4 numbers the segments of a pair, 5 does not.
        assert kind in SLOW_KINDS or encoded["token_type_ids"][0] == types


@pytest.mark.slow
def test_training_again_in_another_process_gives_the_same_files(zoo: Zoo, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from tests.support.tokenizers_zoo import KINDS\n"
        "for kind, train in KINDS.items(): train(pathlib.Path(sys.argv[1]) / kind)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=root, env=environment, check=True)
    for kind in KINDS:
        assert _contents(tmp_path / kind) == _contents(zoo.path(kind)), kind


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", ["byte_bpe_bos", "bpe_fallback", "unigram_left"])
def test_kinds_that_pad_on_the_left_do(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    padded = tokenizer(TEXT, padding="max_length", max_length=64)
    length = len(tokenizer(TEXT)["input_ids"])
    assert padded["input_ids"][: 64 - length] == [tokenizer.pad_token_id] * (64 - length)
    assert padded["attention_mask"] == [0] * (64 - length) + [1] * length


def test_truncation_left_keeps_the_end_of_the_text(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("truncation_left")
    whole = tokenizer(TEXT)["input_ids"]
    assert tokenizer(TEXT, truncation=True, max_length=6)["input_ids"] == [whole[0], *whole[-5:]]


def test_byte_bpe_cannot_pad(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("byte_bpe")
    assert tokenizer.pad_token_id is None
    with pytest.raises(ValueError, match="does not have a padding token"):
        tokenizer(TEXT, padding="max_length", max_length=64)


@pytest.mark.parametrize("kind", ["byte_bpe", "byte_bpe_bos", "byte_bpe_roberta", "slow_byt5"])
def test_byte_kinds_give_every_ordinary_text_back(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    for text in texts.MULTI_SCRIPT:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_bpe_fallback_spells_unknown_letters_as_bytes(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("bpe_fallback")
    assert tokenizer.tokenize("ꙮ") == ["▁", "<0xEA>", "<0x99>", "<0xAE>"]


@pytest.mark.parametrize("kind", ["wordpiece_uncased", "unigram", "slow_ctrl"])
def test_word_kinds_have_letters_that_they_do_not_know(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    assert tokenizer.unk_token_id in tokenizer("ꙮ", add_special_tokens=False)["input_ids"]


def test_hostile_texts_are_distinct_and_fit_into_utf8() -> None:
    assert len(set(texts.HOSTILE)) == len(texts.HOSTILE) > 100
    assert all(text.encode().decode() == text for text in texts.HOSTILE)


@pytest.mark.parametrize("text", texts.LONE_SURROGATES, ids=ascii)
def test_lone_surrogates_do_not_fit_into_utf8(text: str) -> None:
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        text.encode()


def test_one_mb_word_is_one_word_of_a_million_bytes() -> None:
    assert texts.ONE_MB_WORD.split() == [texts.ONE_MB_WORD]
    assert len(texts.ONE_MB_WORD.encode()) == 1_000_000


def test_sentences_are_empty_short_and_long() -> None:
    lengths = [len(text.split()) for text in texts.sentences(400, seed=1)]
    assert min(lengths) == 0
    assert 380 < max(lengths) <= texts.MAX_WORDS
    assert sum(length < 100 for length in lengths) > 150


def test_more_sentences_begin_with_the_fewer() -> None:
    assert texts.sentences(20, seed=5)[:10] == texts.sentences(10, seed=5)
    assert texts.sentences(10, seed=6) != texts.sentences(10, seed=5)


def test_generated_texts_are_the_same_on_every_python_version() -> None:
    generated = "\n".join([*texts.sentences(30, seed=2), *texts.mutated(30, seed=2), texts.ONE_MB_WORD])
    assert hashlib.sha256(generated.encode()).hexdigest()[:16] == "cef4fa744abe1f2f"


def test_mutated_texts_differ_from_their_sentences_and_fit_into_utf8() -> None:
    originals, mutants = texts.sentences(50, seed=3), texts.mutated(50, seed=3)
    assert len(mutants) == len(originals)
    assert sum(mutant != original for mutant, original in zip(mutants, originals, strict=True)) > 40
    assert all(mutant.encode().decode() == mutant for mutant in mutants)


def test_the_libraries_use_a_private_cache_and_no_network() -> None:
    import huggingface_hub.constants

    assert os.environ["HF_HOME"] == huggingface_hub.constants.HF_HOME
    assert "prep-tfrecords-tests-" in huggingface_hub.constants.HF_HUB_CACHE
    assert huggingface_hub.constants.HF_HUB_OFFLINE
