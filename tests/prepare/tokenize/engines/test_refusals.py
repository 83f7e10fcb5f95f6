"""Tokenizers with settings that an engine cannot follow: refused with a reason, or served rightly all the same."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, processors

from pipelines.prepare.tokenize.engines import NotQualified
from tests.prepare.tokenize.odd_tokenizers import BYTES, altered_kind, bert, byte_level, check, sentencepiece, wrapped
from tests.qualifying import comparing, kinds, strings
from tests.qualifying.kinds import metaspace, white_split
from tests.support.tokenizers_zoo import Zoo

pytestmark = pytest.mark.engines

JUST_MARK = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
BERTS = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}


def reason(name: str, tokenizer: Any) -> str:
    with pytest.raises(NotQualified) as refused:
        comparing.opened(name, tokenizer)
    return str(refused.value)


def raw(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, normalized=False, **flags)


def plain(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, normalized=True, **flags)


class TestFastokens:
    @pytest.mark.parametrize(
        ("added", "text"),
        [
            ([raw("<mask>", lstrip=True), plain("  ")], "over   <mask>"),
            ([raw("<|im_start|>"), plain("<|im_start|>user")], "<|im_start|>user"),
        ],
        ids=repr,
    )
    def test_added_tokens_of_both_kinds_are_looked_for_in_two_passes(self, added: list[AddedToken], text: str) -> None:
        texts = [text, f"a{text}b", text * 3, "12 ", "user <|im_start|> u"]
        check("fastokens", wrapped(byte_level(added)), texts)
        check("fastokens", wrapped(byte_level(added, normalizer=normalizers.Sequence([]))), texts)

    @pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["none", "nfc"])
    def test_an_added_token_that_begins_in_white_space_that_another_one_takes(self, normalizer: Any) -> None:
        added = [plain("K", rstrip=True), raw("\n", lstrip=True)]
        assert "takes white space" in reason("fastokens", wrapped(byte_level(added, normalizer=normalizer)))
        check("fastokens", wrapped(byte_level(added[:1], normalizer=normalizer)), ["K  \n x", "aK", "\u212a \n"])

    def test_a_vocabulary_with_holes(self) -> None:
        holes = {piece: 2 * at for piece, at in byte_level().get_vocab().items()}
        added = [plain(" 0"), raw(" 1", lstrip=True)]  # the names of the entries that fill the first holes
        texts = ["Hello 01", " 0 1 2 3", "\u01202", "é\t 255", "0" * 300]
        check("fastokens", wrapped(byte_level(vocabulary=holes)), texts)
        check("fastokens", wrapped(byte_level(added, vocabulary=holes)), texts)

    def test_an_id_far_behind_the_others(self) -> None:
        vocabulary = byte_level().get_vocab()
        assert "more than 10,000 gaps" in reason(
            "fastokens", wrapped(byte_level(vocabulary={**vocabulary, "far": 20_000}))
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["llama3", "o200k"])
    def test_a_split_that_removes_nothing(self, kind: str) -> None:
        state = json.loads(kinds.tokenizer(kind).backend_tokenizer.to_str())
        state["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
        texts = [*strings.written(), *next(strings.random_batches(600, seed=3, material=[]))]
        check("fastokens", wrapped(Tokenizer.from_str(json.dumps(state))), texts)


class TestGigatoken:
    @pytest.mark.parametrize(
        ("pieces", "merges"),
        [
            (["<0x0", "A>"], [("<0x0", "A>")]),
            (["<0x0A>>", ">"], [("<0x0A>", ">")]),
            (["a", "a<0x0A>"], [("a", "<0x0A>")]),
        ],
        ids=["makes", "begins with", "ends in"],
    )
    def test_merges_that_make_or_use_an_entry_for_a_byte(
        self, pieces: list[str], merges: list[tuple[str, str]]
    ) -> None:
        assert "an entry for a byte" in reason("gigatoken", wrapped(sentencepiece(pieces, merges)))

    @pytest.mark.parametrize(("byte", "character", "served"), [(9, "\t", True), (9, "", False), (0xC3, "é", False)])
    def test_a_vocabulary_without_a_byte(self, byte: int, character: str, served: bool) -> None:
        state = json.loads(sentencepiece([character or "x", "\t\t"]).to_str())
        state["model"]["vocab"]["filled"] = state["model"]["vocab"].pop(f"<0x{byte:02X}>")
        tokenizer = wrapped(Tokenizer.from_str(json.dumps(state)))
        if served:
            check("gigatoken", tokenizer, ["\t", "a\tb", "\t\t", " \t\n", "<0x09>", "é\u0009中", *BYTES])
        else:
            assert "no entry for some bytes" in reason("gigatoken", tokenizer)

    def test_marks_without_a_pre_tokenizer(self) -> None:
        backend = sentencepiece(["a", "▁a", "▁▁"], [("▁", "a"), ("▁", "▁")])
        backend.normalizer = normalizers.Replace(" ", "▁")
        check("gigatoken", wrapped(backend), ["a a", " a  a ", "▁a", "  ", "é a", ""])

    @pytest.mark.parametrize("entry", ["<0x0a>", "<0x+A>"])
    def test_an_entry_that_the_package_takes_for_a_byte(self, entry: str) -> None:
        assert repr(entry) in reason("gigatoken", wrapped(sentencepiece([entry])))

    def test_the_spelling_of_a_byte_as_text_is_text(self) -> None:
        tokenizer = wrapped(sentencepiece(["<", "0", "x", "A", ">", "<0"], [("<", "0")]))
        check("gigatoken", tokenizer, ["<0x0A>", "\n", *BYTES])


class TestUnigram:
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
    def test_other_words(self, zoo: Zoo, pre_tokenizer: dict[str, Any]) -> None:
        assert "not Metaspace that splits" in reason("unigram", altered_kind(zoo, pre_tokenizer=pre_tokenizer))

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
            [{"type": "BertNormalizer", **BERTS}],
        ],
        ids=str,
    )
    def test_other_normalizers(self, zoo: Zoo, steps: list[dict[str, Any]]) -> None:
        chain = {"type": "Sequence", "normalizers": steps}
        assert "its normalizer" in reason("unigram", altered_kind(zoo, normalizer=chain))

    def test_a_mark_for_spaces_where_white_space_splits(self, zoo: Zoo) -> None:
        tokenizer = altered_kind(zoo, normalizer=JUST_MARK, pre_tokenizer=white_split())
        assert "order of steps" in reason("unigram", tokenizer)

    @pytest.mark.parametrize("content", ["two words", "▁x", "\u200bx"], ids=ascii)
    def test_an_added_token_that_is_looked_for_over_words(self, zoo: Zoo, content: str) -> None:
        assert "contains a space" in reason("unigram", altered_kind(zoo, added=[plain(content)]))

    def test_no_unknown_token(self, zoo: Zoo) -> None:
        assert "no unknown token" in reason("unigram", altered_kind(zoo, unk_id=None))


class TestWordPiece:
    @pytest.mark.parametrize(
        ("change", "cause"),
        [
            ({"normalizer": {"type": "Lowercase"}}, "its normalizer is Lowercase"),
            ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre-tokenizer is Whitespace"),
            ({"normalizer": None}, "its normalizer is missing"),
            ({"pre_tokenizer": None}, "its pre-tokenizer is missing"),
            ({"added": [plain("new")]}, "'new' is searched for in normalized text"),
            ({"model": {"unk_token": "[NONE]"}}, "no entry for unknown text"),
        ],
        ids=str,
    )
    def test_another_part(self, zoo: Zoo, change: dict[str, Any], cause: str) -> None:
        assert cause in reason("wordpiece", bert(zoo, **change))


@pytest.mark.parametrize("name", comparing.ENGINES)
def test_a_template_that_repeats_the_text_is_refused(zoo: Zoo, name: str) -> None:
    made = {
        "wordpiece": lambda: bert(zoo),
        "unigram": lambda: altered_kind(zoo),
        "fastokens": lambda: wrapped(byte_level()),
        "gigatoken": lambda: wrapped(sentencepiece(["a"])),
    }[name]()
    comparing.opened(name, made)
    backend = Tokenizer.from_str(json.dumps(json.loads(made.backend_tokenizer.to_str())))
    backend.post_processor = processors.TemplateProcessing(single="$A $A", pair="$A $B", special_tokens=[])
    assert "post-processor" in reason(name, wrapped(backend))
