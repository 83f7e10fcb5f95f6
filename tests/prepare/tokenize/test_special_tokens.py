"""Special tokens are read off tokenizers as they are; texts are cut as the tokenizers library cuts them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pipelines.prepare.options.config import Truncation
from pipelines.prepare.tokenize.special_tokens import (
    DocumentFrame,
    RowTemplate,
    kept_lengths,
    left_out_bos,
    open_frame,
    probe,
)
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import TokenizerError

# kind: tokens added before, between and after the texts of a pair, with type ids; and the type ids of both texts.
PAIRS: dict[str, tuple[tuple[str, str, str], tuple[int, int]]] = {
    "wordpiece_cased": (("[CLS]:0", "[SEP]:0", "[SEP]:1"), (0, 1)),
    "byte_bpe": (("", "", ""), (0, 1)),
    "byte_bpe_bos": (("<|begin_of_text|>:0", "<|begin_of_text|>:1", ""), (0, 1)),
    "byte_bpe_roberta": (("<s>:0", "</s>:0 </s>:0", "</s>:0"), (0, 0)),
    "bpe_fallback": (("<s>:0", "<s>:1", ""), (0, 1)),
    "unigram": (("", "</s>:0", "</s>:0"), (0, 0)),
    "unigram_left": (("", "<sep>:0", "<sep>:1 <cls>:2"), (0, 1)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_the_template_of_a_pair_is_what_the_tokenizer_adds(zoo: Zoo, kind: str) -> None:
    backend = zoo.tokenizer(kind).backend_tokenizer
    pieces, text_types = PAIRS[kind]
    parts = [[part.rpartition(":") for part in piece.split()] for piece in pieces]
    assert probe(backend, pair=True) == RowTemplate(
        added=tuple(tuple(backend.token_to_id(token) for token, _, _ in piece) for piece in parts),
        added_types=tuple(tuple(int(kind) for _, _, kind in piece) for piece in parts),
        text_types=text_types,
    )


def _words(*, template: str = "$A", pair: str = "$A $B:1") -> Tokenizer:
    """A tokenizer with one token for each of the words a to d, and S as its special token."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "d": 3, "S": 4}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=[("S", 4)])
    return tokenizer


@pytest.mark.parametrize("pair", ["S $B:1 S $A:0", "S $A $A $B:1", "$A:0 S $A:1 S $B:1"])
def test_what_a_post_processor_does_otherwise_with_a_pair_is_no_template(pair: str) -> None:
    assert probe(_words(pair=pair), pair=True) is None


def test_a_tokenizer_that_finds_nothing_in_the_probing_text_has_no_template() -> None:
    assert probe(Tokenizer(models.BPE(vocab={"S": 0}, merges=[])), pair=False) is None


def _library_lengths(first: int, second: int | None, *, room: int, truncation: Truncation) -> tuple[int, int] | None:
    """Return the lengths that the tokenizers library keeps of texts of these lengths, None if it fails."""
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
        return None
    return int(kept[0][0]), int(kept[1][0]) if second is not None else 0


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
@given(first=st.integers(0, 60), second=st.none() | st.integers(0, 60), room=st.integers(1, 50))
def test_texts_are_cut_to_the_lengths_of_the_tokenizers_library(
    truncation: Truncation, first: int, second: int | None, room: int
) -> None:
    assume(second is not None or truncation != "only_second")
    expected = _library_lengths(first, second, room=room, truncation=truncation)
    assert _kept(first, second, room=room, truncation=truncation) == expected


@pytest.mark.parametrize(("kind", "token"), [("unigram", "</s>"), ("wordpiece_cased", "[SEP]")])
def test_documents_end_in_eos_or_else_in_the_separator_token(zoo: Zoo, kind: str, token: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    assert open_frame(tokenizer, "eos") == DocumentFrame(after=(tokenizer.convert_tokens_to_ids(token),))


@pytest.mark.parametrize("special_tokens", ["eos", "bos-eos"])
def test_a_tokenizer_without_such_tokens_is_refused_with_what_it_can_do(zoo: Zoo, special_tokens: str) -> None:
    with pytest.raises(TokenizerError, match=r"(neither an EOS nor a separator|none).*give --special-tokens"):
        open_frame(zoo.tokenizer("slow_ctrl"), special_tokens)  # type: ignore[arg-type]


def test_the_tokenizers_own_frame_is_what_it_puts_around_a_text(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("unigram_left")
    sep, cls = tokenizer.convert_tokens_to_ids(["<sep>", "<cls>"])
    assert open_frame(tokenizer, "tokenizer") == DocumentFrame(after=(sep, cls))


def test_a_tokenizer_that_adds_tokens_by_the_text_has_no_frame() -> None:
    class Moody:
        """Adds a token to long texts only."""

        def __call__(self, text: str, **options: bool) -> dict[str, list[int]]:
            own = list(range(10, 10 + len(text)))
            added = [1] * (options.get("add_special_tokens", True) and len(text) > 5)
            return {"input_ids": [*added, *own], "special_tokens_mask": [1] * len(added) + [0] * len(own)}

    with pytest.raises(TokenizerError, match=r"not put the same tokens around every text.*--special-tokens eos"):
        open_frame(Moody(), "tokenizer")


@pytest.mark.parametrize(
    ("kind", "special_tokens", "bos"),
    [
        ("byte_bpe_bos", "eos", "<|begin_of_text|>"),
        ("byte_bpe_bos", "none", "<|begin_of_text|>"),
        ("byte_bpe_bos", "bos-eos", None),
        ("byte_bpe_bos", "tokenizer", None),
        ("wordpiece_cased", "eos", None),
        ("unigram", "eos", None),
    ],
)
def test_bos_is_missed_only_where_the_tokenizer_adds_it_and_documents_go_without(
    zoo: Zoo, kind: str, special_tokens: str, bos: str | None
) -> None:
    tokenizer = zoo.tokenizer(kind)
    expected = None if bos is None else tokenizer.convert_tokens_to_ids(bos)
    assert left_out_bos(tokenizer, special_tokens) == expected  # type: ignore[arg-type]
