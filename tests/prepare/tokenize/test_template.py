"""Templates are read off tokenizers as they are; texts are cut as the tokenizers library cuts them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pipelines.prepare.options.config import Side, Truncation
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from pipelines.prepare.tokenize.special_tokens import Template, assemble, kept_lengths, probe
from tests.support.tokenizers_zoo import Zoo

UINT16 = np.dtype(np.uint16)
BERT = Template(
    prefix=(2,),
    middle=(3,),
    suffix=(3,),
    prefix_types=(0,),
    middle_types=(0,),
    suffix_types=(1,),
    first_type=0,
    second_type=1,
)

# kind: (prefix, middle, suffix) of a pair, as tokens and type ids, and the type ids of both texts.
PAIRS: dict[str, tuple[str, str, str, int, int]] = {
    "wordpiece_cased": ("[CLS]:0", "[SEP]:0", "[SEP]:1", 0, 1),
    "byte_bpe": ("", "", "", 0, 1),
    "byte_bpe_bos": ("<|begin_of_text|>:0", "<|begin_of_text|>:1", "", 0, 1),
    "byte_bpe_roberta": ("<s>:0", "</s>:0 </s>:0", "</s>:0", 0, 0),
    "bpe_fallback": ("<s>:0", "<s>:1", "", 0, 1),
    "unigram": ("", "</s>:0", "</s>:0", 0, 0),
    "unigram_left": ("", "<sep>:0", "<sep>:1 <cls>:2", 0, 1),
}


def _piece(backend: Any, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    parts = [part.rpartition(":") for part in text.split()]
    return tuple(backend.token_to_id(token) for token, _, _ in parts), tuple(int(kind) for _, _, kind in parts)


@pytest.mark.parametrize("kind", PAIRS)
def test_the_template_of_a_pair_is_what_the_tokenizer_adds(zoo: Zoo, kind: str) -> None:
    backend = zoo.tokenizer(kind).backend_tokenizer
    prefix, middle, suffix, first_type, second_type = PAIRS[kind]
    template = probe(backend, pair=True)
    assert template is not None
    assert (template.prefix, template.prefix_types) == _piece(backend, prefix)
    assert (template.middle, template.middle_types) == _piece(backend, middle)
    assert (template.suffix, template.suffix_types) == _piece(backend, suffix)
    assert (template.first_type, template.second_type) == (first_type, second_type)


def _words(*, template: str = "$A", pair: str = "$A $B:1") -> Tokenizer:
    """A tokenizer with one token for each of the words a to d, and S as its special token."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "d": 3, "S": 4}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=[("S", 4)])
    return tokenizer


@pytest.mark.parametrize("pair", ["S $B:1 S $A:0", "S $A $A $B:1", "$A:0 S $A:1 S $B:1"])
def test_what_a_post_processor_does_otherwise_with_a_pair_is_no_template(pair: str) -> None:
    assert probe(_words(pair=pair), pair=True) is None


@pytest.mark.parametrize("types", [[0, 1, 2, 2], [0, 0, 1, 2]])
def test_a_text_whose_tokens_have_several_type_ids_is_no_template(types: list[int]) -> None:
    """No post-processor of the tokenizers library does it, so the backend is one of this test."""

    class Backend:
        def encode(self, *texts: str, add_special_tokens: bool = True) -> Any:
            ids = [ord(word) for text in texts for word in text.split()]
            return types_of(ids, types if len(texts) == 2 else [0] * len(ids))

    assert probe(Backend(), pair=True) is None
    types[:] = [0, 0, 1, 1]
    template = probe(Backend(), pair=True)
    assert template is not None
    assert (template.first_type, template.second_type) == (0, 1)


def types_of(ids: list[int], types: list[int]) -> SimpleNamespace:
    return SimpleNamespace(ids=ids, type_ids=types, special_tokens_mask=[0] * len(ids))


def test_a_tokenizer_that_finds_nothing_in_the_probing_text_has_no_template() -> None:
    assert probe(Tokenizer(models.BPE(vocab={"S": 0}, merges=[])), pair=False) is None


def test_a_template_may_have_special_tokens_on_one_end_only() -> None:
    template = probe(_words(template="$A:2 S:5 S:6"), pair=False)
    assert template is not None
    assert (template.prefix, template.suffix, template.suffix_types) == ((), (4, 4), (5, 6))
    assert template.first_type == 2


# --- how much stays -------------------------------------------------------------------------------------------------


def _library_lengths(first: int, second: int | None, *, room: int, truncation: Truncation) -> tuple[int, int] | None:
    """What the tokenizers library keeps of texts of so many tokens, or None where it fails."""
    backend = _words()
    backend.enable_truncation(room, strategy=truncation)
    try:
        encoding = backend.encode("a " * first, None if second is None else "b " * second)
    except Exception:
        return None
    return encoding.ids.count(0), encoding.ids.count(1)


def _kept(first: int, second: int | None, *, room: int, truncation: Truncation) -> tuple[int, int] | None:
    lengths = [np.array([length], np.int64) for length in (first, second) if length is not None]
    kept, impossible = kept_lengths(lengths, room=room, truncation=truncation)
    if impossible[0]:
        assert all(length[0] == 0 for length in kept)
        return None
    return int(kept[0][0]), int(kept[1][0]) if second is not None else 0


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
@settings(deadline=None, max_examples=100)
@given(first=st.integers(0, 60), second=st.integers(0, 60), room=st.integers(1, 50))
def test_pairs_are_cut_to_the_lengths_of_the_tokenizers_library(
    truncation: Truncation, first: int, second: int, room: int
) -> None:
    expected = _library_lengths(first, second, room=room, truncation=truncation)
    assert _kept(first, second, room=room, truncation=truncation) == expected


@pytest.mark.parametrize("truncation", ["longest_first", "only_first"])
@settings(deadline=None, max_examples=50)
@given(first=st.integers(0, 60), room=st.integers(1, 50))
def test_single_texts_are_cut_to_the_lengths_of_the_tokenizers_library(
    truncation: Truncation, first: int, room: int
) -> None:
    expected = _library_lengths(first, None, room=room, truncation=truncation)
    assert _kept(first, None, room=room, truncation=truncation) == expected


def test_without_truncation_a_row_is_whole_or_impossible() -> None:
    lengths = [np.array([2, 3, 4]), np.array([3, 3, 0])]
    kept, impossible = kept_lengths(lengths, room=5, truncation="do_not_truncate")
    assert impossible.tolist() == [False, True, False]
    assert [length.tolist() for length in kept] == [[2, 0, 4], [3, 0, 0]]


# --- putting rows together ------------------------------------------------------------------------------------------


def _assemble(kept: list[list[int]], side: Side) -> tuple[list[list[int]], list[list[int]]]:
    texts = [from_lists([[10, 11, 12], []], dtype=UINT16), from_lists([[20, 21], [30]], dtype=UINT16)]
    rows, types = assemble(texts, [np.array(length) for length in kept], BERT, side=side)
    return _split(rows), _split(RaggedTokens(types, rows.offsets))


def _split(runs: RaggedTokens) -> list[list[int]]:
    return [part.tolist() for part in np.split(runs.ids, runs.offsets[1:-1])]


def test_whole_texts_stand_between_the_special_tokens() -> None:
    ids, types = _assemble([[3, 0], [2, 1]], "right")
    assert ids == [[2, 10, 11, 12, 3, 20, 21, 3], [2, 3, 30, 3]]
    assert types == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1]]


def test_a_text_cut_on_the_left_keeps_its_end() -> None:
    assert _assemble([[2, 0], [1, 1]], "left")[0] == [[2, 11, 12, 3, 21, 3], [2, 3, 30, 3]]
