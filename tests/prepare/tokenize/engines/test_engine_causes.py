"""Each cause for which an engine gave other tokens than the tokenizer: served rightly now, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers, processors

from pipelines.prepare.tokenize.engines.fastokens_engine import make_fastokens, open_fastokens
from pipelines.prepare.tokenize.engines.gigatoken_engine import make_gigatoken, open_gigatoken
from pipelines.prepare.tokenize.engines.qualified import NotQualified
from pipelines.prepare.tokenize.engines.unigram.encoder import open_unigram
from tests.prepare.tokenize.engines.unigram_engines import altered_kind
from tests.prepare.tokenize.odd_tokenizers import (
    BYTES,
    INT32,
    byte_level,
    differing,
    odd_byte_level,
    odd_marked,
    sentencepiece,
    wrapped,
)
from tests.qualifying.unigram_kinds import metaspace
from tests.support.charsmaps import charsmap
from tests.support.tokenizers_zoo import Zoo


def _reason(make: Any, tokenizer: Any, *, dtype: np.dtype = INT32) -> str:
    with pytest.raises(NotQualified) as refused:
        make(tokenizer, dtype=dtype)
    return refused.value.reason


def _raw(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, normalized=False, **flags)


def _plain(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, normalized=True, **flags)


class TestFastokens:
    """Byte-level BPE."""

    @pytest.mark.parametrize(
        ("added", "text"),
        [
            ([_raw("<mask>", lstrip=True), _plain("  ")], "over   <mask>"),
            ([_raw("<|im_start|>"), _plain("<|im_start|>user")], "<|im_start|>user"),
            ([_raw("12", rstrip=True), _plain("\n")], "12\n"),
            ([_plain("12", rstrip=True), _raw("\n")], "12\n"),
        ],
        ids=repr,
    )
    def test_added_tokens_of_both_kinds_are_looked_for_in_two_passes(self, added: list[AddedToken], text: str) -> None:
        tokenizer = wrapped(byte_level(added))
        engine = make_fastokens(tokenizer, dtype=INT32)
        assert differing(engine, tokenizer, [text, f"a{text}b", text * 3, "12 ", "user <|im_start|> u"]) == []

    def test_a_normalizer_without_steps_is_none(self) -> None:
        added = [_raw("<mask>", lstrip=True), _plain("  "), _plain("e\u0301")]
        tokenizer = wrapped(byte_level(added, normalizer=normalizers.Sequence([])))
        engine = make_fastokens(tokenizer, dtype=INT32)
        assert differing(engine, tokenizer, ["over   <mask>", "  a", "é e\u0301"]) == []

    @pytest.mark.parametrize("normalized", [False, True])
    @pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["none", "nfc"])
    def test_an_added_token_that_begins_in_white_space_that_another_one_took(
        self, normalized: bool, normalizer: Any
    ) -> None:
        flags = {"lstrip": True, "rstrip": True, "normalized": normalized}
        tokenizer = wrapped(byte_level([AddedToken("\n", **flags)], normalizer=normalizer))
        engine = make_fastokens(tokenizer, dtype=INT32)
        assert differing(engine, tokenizer, ["aa\n  \nb", "\n\n", "a \n b", "no line end"]) == []

    def test_such_a_token_that_normalization_can_bring_about_is_refused(self) -> None:
        added = [_plain("K", rstrip=True), _raw("\n", lstrip=True, rstrip=False)]
        assert "'K' takes white space" in _reason(
            make_fastokens, wrapped(byte_level(added, normalizer=normalizers.NFC()))
        )

    def test_ids_with_holes_are_refused(self) -> None:
        vocabulary = {entry: 2 * number for entry, number in byte_level().get_vocab().items()}
        assert "holes" in _reason(make_fastokens, wrapped(byte_level(vocabulary=vocabulary)))

    def test_an_entry_that_would_take_hours_to_open_is_refused(self) -> None:
        vocabulary = {**byte_level().get_vocab(), "a" * 50_000: 256}
        assert "very long" in _reason(make_fastokens, wrapped(byte_level(vocabulary=vocabulary)))

    @pytest.mark.parametrize("seed", range(12))
    def test_odd_tokenizers(self, seed: int) -> None:
        tokenizer, texts = odd_byte_level(seed)
        engine = open_fastokens(tokenizer, dtype=INT32)
        if engine is None:
            assert "takes white space" in _reason(make_fastokens, tokenizer)
        else:
            assert differing(engine, tokenizer, texts) == []


class TestGigatoken:
    """SentencePiece's BPE."""

    @pytest.mark.parametrize(
        ("pieces", "merges"),
        [
            (["<0x0", "A>"], [("<0x0", "A>")]),
            (["<0x0A>>", ">"], [("<0x0A>", ">")]),
            (["a", "a<0x0A>"], [("a", "<0x0A>")]),
        ],
        ids=["makes", "begins with", "ends in"],
    )
    def test_merges_that_make_or_use_an_entry_for_a_byte_are_refused(
        self, pieces: list[str], merges: list[tuple[str, str]]
    ) -> None:
        tokenizer = wrapped(sentencepiece(pieces, merges))
        assert "an entry for a byte" in _reason(make_gigatoken, tokenizer)

    @pytest.mark.parametrize("entry", ["<0x0a>", "<0x+A>"])
    def test_an_entry_that_the_package_takes_for_a_byte_is_refused(self, entry: str) -> None:
        assert repr(entry) in _reason(make_gigatoken, wrapped(sentencepiece([entry])))

    def test_the_spelling_of_a_byte_as_text_is_text(self) -> None:
        tokenizer = wrapped(sentencepiece(["<", "0", "x", "A", ">", "<0"], [("<", "0")]))
        assert differing(make_gigatoken(tokenizer, dtype=INT32), tokenizer, ["<0x0A>", "\n", *BYTES]) == []

    @pytest.mark.parametrize("seed", range(12))
    def test_odd_tokenizers(self, seed: int) -> None:
        tokenizer, texts = odd_marked(seed)
        assert differing(make_gigatoken(tokenizer, dtype=INT32), tokenizer, texts) == []


class TestUnigram:
    """SentencePiece's Unigram."""

    @pytest.mark.parametrize(
        ("step", "first"),
        [
            ({"type": "Nmt"}, "\x0b"),
            ({"type": "StripAccents"}, "\u0301"),
            ({"type": "Strip", "strip_left": True, "strip_right": False}, "\u3000"),
            ({"type": "Replace", "pattern": {"String": "x"}, "content": ""}, "x"),
            ({"type": "Precompiled", "precompiled_charsmap": charsmap({"\x0b": ""})}, "\x0b"),
        ],
        ids=lambda value: value["type"] if isinstance(value, dict) else ascii(value),
    )
    def test_a_text_whose_first_code_point_is_taken_away_where_only_the_first_word_has_a_mark(
        self, zoo: Zoo, step: dict[str, Any], first: str
    ) -> None:
        tokenizer = altered_kind(zoo, normalizer=step, pre_tokenizer=metaspace("first"))
        engine = open_unigram(tokenizer, dtype=INT32)
        assert engine is not None
        texts = [
            first,
            f"{first}film",
            f"{first}{first}film film",
            f" {first}film",
            f"film{first}",
            f"{first} film",
            "film",
        ]
        assert differing(engine, tokenizer, texts) == []


@pytest.mark.parametrize(
    ("make", "backend"),
    [(open_fastokens, byte_level), (open_gigatoken, lambda: sentencepiece(["a"]))],
    ids=["fast", "giga"],
)
def test_a_template_that_repeats_the_text_is_refused(make: Any, backend: Any) -> None:
    made = backend()
    assert make(wrapped(made), dtype=INT32) is not None
    made.post_processor = processors.TemplateProcessing(single="$A $A", pair="$A $B", special_tokens=[])
    assert make(wrapped(made), dtype=INT32) is None
