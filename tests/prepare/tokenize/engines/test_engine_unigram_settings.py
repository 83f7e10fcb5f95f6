"""The Unigram engine takes the paths that the reference takes, and opens for the settings that it knows."""

from __future__ import annotations

import base64
import json
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from pipelines.prepare.tokenize.engines.unigram.encoder import open_unigram
from tests.prepare.tokenize.engines.unigram_engines import INT32, altered_kind, check, state_of
from tests.qualifying.unigram_kinds import altered, metaspace, white_split
from tests.support import texts
from tests.support.charsmaps import charsmap
from tests.support.tokenizers_zoo import Zoo

TEXTS = [*texts.HOSTILE, *texts.sentences(20, seed=3)]
JUST_MARK = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}


class TestPaths:
    """The best path through a word is the reference's, ties and unknown pieces too."""

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.dictionaries(
            st.text("ab▁é中", min_size=1, max_size=5), st.sampled_from([-3.0, -2.0, -1.0, -0.1, 0.0, 0.1, 7.0, 30.0])
        ),
        st.lists(st.text("abé中x ", max_size=30), min_size=1),
        st.booleans(),
    )
    def test_of_any_vocabulary(
        self, zoo: Zoo, pieces: dict[str, float], given_texts: list[str], byte_fallback: bool
    ) -> None:
        state = state_of(zoo)
        vocabulary = [["<unk>", 0.0], *([piece, score] for piece, score in pieces.items())]
        tokenizer = altered(
            {**state, "added_tokens": [], "model": {**state["model"], "vocab": vocabulary, "unk_id": 0}},
            normalizer=None,
            pre_tokenizer=metaspace(),
            byte_fallback=byte_fallback,
        )
        check(tokenizer, given_texts)

    def test_unknown_pieces_that_together_spell_an_entry_are_that_entry(self, zoo: Zoo) -> None:
        vocabulary = [
            ["<unk>", 20.0],
            ["xyz", 20.0],
            ["▁", 20.0],
            ["<pad>", 20.0],
            ["</s>", 20.0],
            ["<extra_id_0>", 20.0],
        ]
        tokenizer = altered_kind(zoo, byte_fallback=False, vocab=vocabulary, unk_id=0)
        engine = check(tokenizer, ["xyz", "xyzx", "xyz xy", "zyx xyz"])
        assert engine.encode(pa.array(["xyz"])).ids.tolist() == [2, 1]

    def test_of_equal_entries_the_last_one_counts(self, zoo: Zoo) -> None:
        more = [["▁the", -9.0], ["e", -1.0], ["▁the", -1.0], ["", 3.0]]
        check(altered_kind(zoo, vocab=[*state_of(zoo)["model"]["vocab"], *more]), TEXTS)

    def test_bytes_stand_for_a_character_only_if_all_of_them_are_known(self, zoo: Zoo) -> None:
        vocabulary = [*state_of(zoo)["model"]["vocab"], *([f"<0x{byte:02X}>", -9.0] for byte in range(0x80, 0xE6))]
        engine = check(altered_kind(zoo, vocab=vocabulary), ["龘", "𐍈", "龘𐍈", "龘 𐍈", "a龘a"])
        assert len(engine.encode(pa.array(["龘"])).ids) == 1 + 1
        assert len(engine.encode(pa.array(["䷿"])).ids) == 1 + 3

    @pytest.mark.slow
    def test_of_long_words(self, zoo: Zoo) -> None:
        words = [texts.ONE_MB_WORD[:200_000], "é" * 100_000, "中文" * 50_000, "\ufdfa" * 5_000, " " * 20_000]
        check(altered_kind(zoo, "pegasus"), words)
        check(altered_kind(zoo, "charsmap never"), words)


class TestRefusals:
    """`open_unigram` says None rather than guess."""

    @pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece_cased", "bpe_fallback", "slow_byt5"])
    def test_of_tokenizers_of_another_kind(self, zoo: Zoo, kind: str) -> None:
        assert open_unigram(zoo.tokenizer(kind), dtype=INT32) is None

    @pytest.mark.parametrize(
        "pre_tokenizer",
        [
            {"type": "Whitespace"},
            {"type": "WhitespaceSplit"},
            metaspace(split=False),
            {**metaspace(), "replacement": "_"},
            white_split("first"),
            {"type": "Sequence", "pretokenizers": [metaspace(), metaspace()]},
            {"type": "Sequence", "pretokenizers": [{"type": "Punctuation", "behavior": "Isolated"}, metaspace()]},
            {"type": "Sequence", "pretokenizers": []},
        ],
        ids=str,
    )
    def test_of_other_words(self, zoo: Zoo, pre_tokenizer: dict[str, Any]) -> None:
        assert open_unigram(altered_kind(zoo, pre_tokenizer=pre_tokenizer), dtype=INT32) is None

    @pytest.mark.parametrize(
        "steps",
        [
            [{"type": "Prepend", "prepend": "▁"}],
            [{"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}],
            [{"type": "Replace", "pattern": {"String": ""}, "content": "x"}],
            [{"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}],
            [{"type": "Replace", "pattern": {"String": " "}, "content": "_"}],
            [JUST_MARK, {"type": "Strip", "strip_left": True, "strip_right": True}],
            [{"type": "NFC"}, {"type": "NFKC"}],
            [{"type": "ByteLevel"}],
            [{"type": "BertNormalizer"}],
        ],
        ids=str,
    )
    def test_of_other_normalizers(self, zoo: Zoo, steps: list[dict[str, Any]]) -> None:
        defaults = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
        given_steps = [{**step, **(defaults if step["type"] == "BertNormalizer" else {})} for step in steps]
        chain = {"type": "Sequence", "normalizers": given_steps}
        assert open_unigram(altered_kind(zoo, normalizer=chain), dtype=INT32) is None

    def test_of_a_mark_for_spaces_where_white_space_splits(self, zoo: Zoo) -> None:
        assert open_unigram(altered_kind(zoo, normalizer=JUST_MARK, pre_tokenizer=white_split()), dtype=INT32) is None

    @pytest.mark.parametrize("content", ["two words", "▁x", "\u200bx"], ids=ascii)
    def test_of_an_added_token_that_is_looked_for_over_words(self, zoo: Zoo, content: str) -> None:
        assert open_unigram(altered_kind(zoo, added=[AddedToken(content, normalized=True)]), dtype=INT32) is None

    def test_beside_a_reference_that_it_was_not_compared_with(self, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
        tokenizer = altered_kind(zoo)
        monkeypatch.setattr(metadata, "version", lambda package: "0.24.0")
        assert open_unigram(tokenizer, dtype=INT32) is None
        assert open_unigram(tokenizer, dtype=INT32, any_version=True) is not None

    def test_of_no_unknown_token(self, zoo: Zoo) -> None:
        assert open_unigram(altered_kind(zoo, unk_id=None), dtype=INT32) is None

    def test_of_ids_that_the_dtype_cannot_hold(self, zoo: Zoo) -> None:
        assert open_unigram(altered_kind(zoo), dtype=np.dtype(np.uint8)) is None

    def test_of_a_template_that_repeats_the_text(self, zoo: Zoo) -> None:
        tokenizer = altered_kind(zoo)
        twice = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        template = {"type": "TemplateProcessing", "single": twice, "pair": twice, "special_tokens": {}}
        assert (
            open_unigram(
                altered({**state, "post_processor": template}, normalizer=None, pre_tokenizer=metaspace()), dtype=INT32
            )
            is None
        )


def test_a_table_made_here_is_read_as_it_was_meant() -> None:
    rules = {"a": "b", "e\u0301": "é", "\t": "", "ﬁ": "fi", "一": "1"}
    made = normalizers.Precompiled(base64.b64decode(charsmap(rules)))
    assert [made.normalize_str(text) for text in rules] == list(rules.values())
    assert made.normalize_str("xyz\u0301 中") == "xyz\u0301 中"
