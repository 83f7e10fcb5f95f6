"""Unigram only: normalizers and words of every kind, paths, and texts left to the reference."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine
from pipelines.prepare.tokenize.engines.unigram.kernels import MEMORY_WORDS
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.prepare.tokenize.odd_tokenizers import altered_kind, check, state_of
from tests.qualifying import comparing
from tests.qualifying.kinds import NORMALIZERS, altered, metaspace, white_split
from tests.support import texts
from tests.support.charsmaps import charsmap
from tests.support.tokenizers_zoo import Zoo

pytestmark = pytest.mark.engines

TEXTS = [*texts.HOSTILE, *texts.sentences(20, seed=3)]
# Spaces that a normalizer makes, or merges, or that vanish; and what stands between them.
SPACES = (
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u200b", "\u3000", "\x01", "\u200d", "\ufeff"),
    *("▁", "\x85"),
)
LETTERS = (
    *("a", "é", "e\u0301", "中", "ﬁ", "ﬁ\u0301", "각", "\u1100\u1161", "\u0600", "ا\u064e", "☃\ufe0f", "©\ufe0f"),
    *("🇩🇪", "\u0301"),
)


def left_to_the_reference(engine: Engine, samples: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    left: list[str] = []
    put_into = HuggingFaceEngine.put_into

    def watched(self: HuggingFaceEngine, runs: RaggedTokens, column: pa.Array, indices: np.ndarray) -> RaggedTokens:
        left.extend(column.take(pa.array(indices)).to_pylist())
        return put_into(self, runs, column, indices)

    monkeypatch.setattr(HuggingFaceEngine, "put_into", watched)
    engine.encode(pa.array(samples, pa.string()))
    return left


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_every_kind_of_normalizer_and_words(zoo: Zoo, kind: str) -> None:
    rng = random.Random(kind)
    mixed = ["".join(rng.choice((*SPACES, *LETTERS, *SPACES[:2])) for _ in range(8)) for _ in range(400)]
    edges = [f"{space}a{space}{space}b{space}" for space in SPACES] + [space * 3 for space in SPACES]
    check("unigram", altered_kind(zoo, kind), [*TEXTS, *mixed, *edges])


@pytest.mark.parametrize("kind", ["t5", "t5 converted", "albert", "rembert"])
def test_an_added_token_that_the_normalizer_brings_about_is_found(zoo: Zoo, kind: str) -> None:
    added = [AddedToken("<mask>", lstrip=True, normalized=True), AddedToken("fin", normalized=True)]
    masks = ["<mask>", "＜mask＞", "<MASK>", "<ma\x01sk>", "a <mask> b", "<mas k>", "＜mask＞ fi n"]
    spelled = [*masks, "ﬁn", "xﬁn", "fin "]
    check("unigram", altered_kind(zoo, kind, added=added), [*spelled, *spelled, *TEXTS])


def test_what_is_remembered_of_a_normalized_word_is_not_taken_for_an_added_token(zoo: Zoo) -> None:
    tokenizer = altered_kind(zoo, "t5", added=[AddedToken("<s>", normalized=False)])
    check("unigram", tokenizer, ["＜s＞ ＜s＞ x", "<s> x", "＜s＞ <s> x, and more than sixteen bytes"])


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
    zoo: Zoo, step: dict[str, Any], first: str
) -> None:
    tokenizer = altered_kind(zoo, normalizer=step, pre_tokenizer=metaspace("first"))
    forms = ["{}", "{}film", "{}{}film film", " {}film", "film{}", "{} film", "film"]
    check("unigram", tokenizer, [form.replace("{}", first) for form in forms])


def test_only_accents_apart_and_what_joins_are_left_to_the_reference(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    easy = ["naïve", "हिन्दी में", "ภาษาไทย", "שָׁלוֹם", "한국어", "👩‍👩‍👧 👍🏽", "1️⃣", "a\r\nb", "“quoted” – dash"]
    hard = ["e\u0301", "ﬁ\u0301", "\u0600a"]
    engine = comparing.opened("unigram", altered_kind(zoo, "t5"))
    assert left_to_the_reference(engine, [*easy, *hard], monkeypatch) == hard
    # One for each way of treating spaces, and one for each step that looks at neighbours.
    for kind in ("t5", "t5 converted", "rembert", "nmt nfkc", "nfd", "albert", "none"):
        engine = comparing.opened("unigram", altered_kind(zoo, kind))
        assert left_to_the_reference(engine, texts.sentences(20, seed=5), monkeypatch) == []


def test_more_ids_than_bytes(zoo: Zoo) -> None:
    markless = [entry for entry in state_of(zoo)["model"]["vocab"] if "▁" not in entry[0]]
    check("unigram", altered_kind(zoo, vocab=markless), ["\ufdfa" * 900, "a b " * 900])
    check("unigram", altered_kind(zoo, "pegasus"), ["㍿ﷲ" * 3_000, "a " * 9_000, "龘 " * 3_000])


@pytest.mark.slow
def test_more_words_than_can_be_remembered_change_nothing(zoo: Zoo) -> None:
    words = [np.base_repr(number, 36) for number in range(MEMORY_WORDS // 4)]
    samples = [" ".join(words[start::50]) for start in range(50)]
    engine = check("unigram", altered_kind(zoo, "t5"), samples)
    assert len(engine.encode(pa.array(samples)).ids) > 2 * len(words)


def test_tables_of_any_rules_are_followed(zoo: Zoo) -> None:
    """Entries that share a first letter, end in one another, or begin with a carriage return."""
    rules = {"a": "bb", "é": "", "e\u0301": "é", "\r": "r", "\n": " ", "ch": "k", "中\u0301": "x", "\u0301": ""}
    rules |= {"ß": "s s", "\t": "\u2581"}
    step = {"type": "Precompiled", "precompiled_charsmap": charsmap(rules)}
    rng = random.Random(0)
    samples = ["".join(rng.choice([*rules, " ", "h", "c", "\u0301"]) for _ in range(7)) for _ in range(2_000)]
    for pre_tokenizer in (metaspace(), white_split()):
        check("unigram", altered_kind(zoo, normalizer=step, pre_tokenizer=pre_tokenizer), samples)


class TestPaths:
    """The best path through a word is the reference's, ties and unknown pieces too."""

    @pytest.mark.slow
    @given(
        st.dictionaries(
            st.text("ab▁é中", min_size=1, max_size=5), st.sampled_from([-3.0, -2.0, -1.0, -0.1, 0.0, 0.1, 7.0, 30.0])
        ),
        st.lists(st.text("abé中x ", max_size=30), min_size=1),
        st.booleans(),
    )
    def test_of_any_vocabulary(
        self, zoo: Zoo, pieces: dict[str, float], samples: list[str], byte_fallback: bool
    ) -> None:
        state = state_of(zoo)
        vocabulary = [["<unk>", 0.0], *([piece, score] for piece, score in pieces.items())]
        state = {**state, "added_tokens": [], "model": {**state["model"], "vocab": vocabulary, "unk_id": 0}}
        tokenizer = altered(state, normalizer=None, pre_tokenizer=metaspace(), byte_fallback=byte_fallback)
        check("unigram", tokenizer, samples)

    def test_of_two_paths_with_one_score_the_same_is_taken_and_what_is_unknown_costs_10(self, zoo: Zoo) -> None:
        """`ab` and `a`, `b` have equal scores; `aé` scores less than `a` plus the worst score, and `é` is unknown."""
        vocabulary = [["<unk>", 0.0], ["▁", -1.0], ["a", 0.5], ["b", -2.5], ["ab", -2.0], ["aé", -9.0], ["bb", -5.0]]
        tokenizer = altered_kind(zoo, byte_fallback=False, vocab=vocabulary, unk_id=0)
        check("unigram", tokenizer, ["ab", "aé", "abab", "aéb", "bb", "abb aab éa", "ab aé"])

    def test_unknown_pieces_that_together_spell_an_entry_are_that_entry(self, zoo: Zoo) -> None:
        vocabulary = [[piece, 20.0] for piece in ("<unk>", "xyz", "▁", "<pad>", "</s>", "<extra_id_0>")]
        tokenizer = altered_kind(zoo, byte_fallback=False, vocab=vocabulary, unk_id=0)
        engine = check("unigram", tokenizer, ["xyz", "xyzx", "xyz xy", "zyx xyz"])
        assert engine.encode(pa.array(["xyz"])).ids.tolist() == [2, 1]

    def test_of_equal_entries_the_last_one_counts(self, zoo: Zoo) -> None:
        more = [["▁the", -9.0], ["e", -1.0], ["▁the", -1.0], ["", 3.0]]
        check("unigram", altered_kind(zoo, vocab=[*state_of(zoo)["model"]["vocab"], *more]), TEXTS)

    def test_bytes_stand_for_a_character_only_if_all_of_them_are_known(self, zoo: Zoo) -> None:
        vocabulary = [*state_of(zoo)["model"]["vocab"], *([f"<0x{byte:02X}>", -9.0] for byte in range(0x80, 0xE6))]
        engine = check("unigram", altered_kind(zoo, vocab=vocabulary), ["龘", "𐍈", "龘𐍈", "龘 𐍈", "a龘a"])
        assert len(engine.encode(pa.array(["龘"])).ids) == 1 + 1
        assert len(engine.encode(pa.array(["䷿"])).ids) == 1 + 3

    @pytest.mark.slow
    def test_of_long_words(self, zoo: Zoo) -> None:
        words = [texts.ONE_MB_WORD[:100_000], "é" * 300_000, "中文" * 25_000, "\ufdfa" * 5_000, " " * 20_000]
        check("unigram", altered_kind(zoo, "pegasus"), words)
        check("unigram", altered_kind(zoo, "charsmap never"), words)
