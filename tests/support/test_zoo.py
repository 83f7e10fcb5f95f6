"""The test material is what it claims to be: otherwise the tests that rest on it prove nothing."""

import os

import pytest

from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, KINDS, Zoo

TEXT = "Anna walked home, slowly."


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "slow_canine"])  # which takes a second to load
def test_every_kind_is_fast_as_listed_and_makes_several_different_tokens_of_a_sentence(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    assert tokenizer.is_fast == (kind in FAST_KINDS)
    assert len(set(tokenizer(TEXT, add_special_tokens=False)["input_ids"])) >= 4


def test_hostile_texts_are_distinct_and_fit_into_utf8() -> None:
    assert len(set(texts.HOSTILE)) == len(texts.HOSTILE) > 100
    assert all(text.encode().decode() == text for text in texts.HOSTILE)
    assert texts.ONE_MB_WORD.split() == [texts.ONE_MB_WORD]


def test_mutated_texts_differ_from_their_sentences_and_fit_into_utf8() -> None:
    originals, mutants = texts.sentences(50, seed=3), texts.mutated(50, seed=3)
    assert sum(mutant != original for mutant, original in zip(mutants, originals, strict=True)) > 40
    assert all(mutant.encode().decode() == mutant for mutant in mutants)


def test_the_libraries_use_a_private_cache_and_no_network() -> None:
    import huggingface_hub.constants

    assert os.environ["HF_HOME"] == huggingface_hub.constants.HF_HOME
    assert "prep-tfrecords-tests-" in huggingface_hub.constants.HF_HUB_CACHE
    assert huggingface_hub.constants.HF_HUB_OFFLINE
