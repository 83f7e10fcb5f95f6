"""BPE and WordPiece from counts: the tokens, ids and merges that `tokenizers` learns from the texts themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.prepare.tokenizer_training import bpe
from tests.prepare.tokenizer_training.texts import arrays, counted, reviews

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPACES = pre_tokenizers.WhitespaceSplit()


def backend(pre_tokenizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def theirs(texts: Sequence[str], pre_tokenizer: Any, **options: Any) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    tokenizer = backend(pre_tokenizer)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(show_progress=False, **options))
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def ours(texts: Sequence[str], pre_tokenizer: Any, **options: Any) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    options["continuing_prefix"] = options.pop("continuing_subword_prefix", "")
    learned = bpe.learn(*counted(texts, backend(pre_tokenizer)), **options)
    return {token: number for number, token in enumerate(learned.tokens)}, list(learned.merges)


@pytest.mark.parametrize("vocab_size", [257, 300, 2000, 100_000])
def test_byte_level_bpe_of_real_texts_is_theirs(vocab_size: int) -> None:
    options = {"vocab_size": vocab_size, "special_tokens": ["<|endoftext|>"], "initial_alphabet": BYTES}
    assert ours(reviews(), BYTE_LEVEL, **options) == theirs(reviews(), BYTE_LEVEL, **options)


@pytest.mark.parametrize("min_frequency", [2, 20])
def test_pairs_that_are_too_rare_are_not_merged(min_frequency: int) -> None:
    options = {"vocab_size": 5000, "min_frequency": min_frequency}
    assert ours(reviews(), SPACES, **options) == theirs(reviews(), SPACES, **options)


# Few letters, so that pairs repeat within words, and two merges often spell the same token.
texts_of = st.one_of(
    *(st.lists(st.text(f"{letters} ", max_size=40), max_size=12) for letters in ("a", "ab", "abc", "aé漢𝒳"))
)


@hypothesis.settings(deadline=None)
@hypothesis.given(texts=texts_of, vocab_size=st.integers(1, 80), min_frequency=st.integers(0, 3))
def test_bpe_of_any_texts_is_theirs(texts: list[str], vocab_size: int, min_frequency: int) -> None:
    options = {"vocab_size": vocab_size, "min_frequency": min_frequency}
    assert ours(texts, SPACES, **options) == theirs(texts, SPACES, **options)


@hypothesis.settings(deadline=None)
@hypothesis.given(texts=texts_of, vocab_size=st.integers(1, 80))
def test_wordpiece_of_any_texts_is_theirs_if_its_letters_have_fixed_ids(texts: list[str], vocab_size: int) -> None:
    # Theirs gives ids to ## letters in the order of a hash map, unless they are given.
    special_tokens = ["[UNK]", *(f"##{letter}" for letter in "abcé漢𝒳")]
    options = {"vocab_size": vocab_size, "special_tokens": special_tokens, "continuing_subword_prefix": "##"}
    assert ours(texts, SPACES, **options) == theirs(texts, SPACES, **options)


def test_letters_that_continue_a_word_have_ids_by_code_point() -> None:
    learned = bpe.learn(*arrays(["zc", "zb", "za"], [1, 1, 1]), vocab_size=7, continuing_prefix="##")
    assert learned.tokens == ("a", "b", "c", "z", "##a", "##b", "##c")


def test_the_order_of_words_changes_nothing() -> None:
    words, counts = counted(reviews(), backend(BYTE_LEVEL))
    order = np.random.default_rng(0).permutation(len(words))
    first = bpe.learn(words, counts, vocab_size=2000, continuing_prefix="##")
    assert bpe.learn(words.take(order), counts[order], vocab_size=2000, continuing_prefix="##") == first


def test_of_a_limited_alphabet_the_most_frequent_letters_stay() -> None:
    learned = bpe.learn(*arrays(["aab", "aac", "adb"], [5, 1, 2]), vocab_size=5, limit_alphabet=2)
    assert learned.tokens == ("a", "b", "ab", "aab", "aa")
    options = {"vocab_size": 400, "limit_alphabet": 20}
    assert ours(reviews(), SPACES, **options) == theirs(reviews(), SPACES, **options)


def test_counts_beyond_32_bits_are_no_overflow() -> None:
    learned = bpe.learn(*arrays(["ab", "bc"], [2**33, 2**33 + 1]), vocab_size=4)
    assert learned.merges == (("b", "c"),)


@pytest.mark.parametrize("words", [[], [""], ["a"]])
def test_without_a_pair_there_is_only_the_alphabet(words: list[str]) -> None:
    learned = bpe.learn(*arrays(words, [1] * len(words)), vocab_size=10, special_tokens=["<s>"])
    assert learned.tokens == ("<s>", *"".join(words))
    assert (learned.num_given, learned.merges) == (len(learned.tokens), ())
