"""The special tokens around each document of the layouts `concat` and `pack`."""

from __future__ import annotations

import pytest

from pipelines.prepare.tokenize.document_frames import DocumentFrame, left_out_bos, open_frame
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import TokenizerError


@pytest.mark.parametrize(("kind", "token"), [("unigram", "</s>"), ("wordpiece_cased", "[SEP]")])
def test_documents_end_in_eos_or_else_in_the_separator_token(zoo: Zoo, kind: str, token: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    assert open_frame(tokenizer, "eos") == DocumentFrame(after=(tokenizer.convert_tokens_to_ids(token),))


@pytest.mark.parametrize("special_tokens", ["eos", "bos-eos"])
def test_a_tokenizer_without_such_tokens_is_refused_with_what_it_can_do(zoo: Zoo, special_tokens: str) -> None:
    with pytest.raises(TokenizerError, match=r"(neither an EOS nor a separator|none).*give --special-tokens"):
        open_frame(zoo.tokenizer("slow_ctrl"), special_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["wordpiece_cased", "byte_bpe_roberta", "byte_bpe_bos", "unigram_left", "slow_byt5"])
def test_the_tokenizers_own_frame_is_what_it_puts_around_a_text(zoo: Zoo, kind: str) -> None:
    tokenizer = zoo.tokenizer(kind)
    frame = open_frame(tokenizer, "tokenizer")
    own = tokenizer("the small house", add_special_tokens=False)["input_ids"]
    assert [*frame.before, *own, *frame.after] == tokenizer("the small house")["input_ids"]


def test_a_tokenizer_that_adds_tokens_by_the_text_has_no_frame(zoo: Zoo) -> None:
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
    assert left_out_bos(zoo.tokenizer(kind), special_tokens) == bos  # type: ignore[arg-type]
