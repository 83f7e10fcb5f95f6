"""The test material has the claimed properties; otherwise the tests with it prove nothing."""

import os

import pytest

from tests.support.tokenizers_zoo import FAST_KINDS, KINDS, Zoo

TEXT = "Anna walked home, slowly."


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_fast_as_listed_and_makes_several_different_tokens_of_a_sentence(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    assert tokenizer.is_fast == (kind in FAST_KINDS)
    assert len(set(tokenizer(TEXT, add_special_tokens=False)["input_ids"])) >= 4


def test_the_libraries_use_a_private_cache_and_no_network() -> None:
    import huggingface_hub.constants

    assert os.environ["HF_HOME"] == huggingface_hub.constants.HF_HOME
    assert "prep-tfrecords-tests-" in huggingface_hub.constants.HF_HUB_CACHE
    assert huggingface_hub.constants.HF_HUB_OFFLINE
