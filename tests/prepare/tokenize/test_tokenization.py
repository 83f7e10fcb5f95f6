"""A tokenizer is resolved once and saved; the saved copy is the same tokenizer wherever it came from."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sentencepiece
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.options.config import LayoutConfig, Side, TokenizerConfig
from pipelines.prepare.tokenize import tokenization
from pipelines.prepare.tokenize.deterministic_tokenizers import require_deterministic
from tests.support import texts
from tests.support.tokenizers_zoo import KINDS, Zoo
from tfrecord_io.errors import TokenizerError

TEXTS = [*texts.HOSTILE, *texts.sentences(10, seed=5), *texts.mutated(10, seed=6)]
# Loading it takes seconds: there is an object for each of the 1.1 million code points.
LIGHT_KINDS = [kind for kind in KINDS if kind != "slow_canine"]
BYT5_WARNS = pytest.mark.filterwarnings("ignore:This sequence already has </s>:UserWarning")


def _resolve(path: Path | str, **options: Any) -> tuple[Any, tokenization.Files]:
    return tokenization.resolve(TokenizerConfig(name=str(path), **options))


def _copy(zoo: Zoo, kind: str, folder: Path, **changes: Any) -> Path:
    """A copy of a kind's folder; `changes` go into its tokenizer_config.json, None takes a key out."""
    shutil.copytree(zoo.path(kind), folder)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


# --- the saved copy -------------------------------------------------------------------------------------------------


@BYT5_WARNS
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "wordpiece_cased" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in [*LIGHT_KINDS, "slow_canine"]
    ],
)
def test_the_saved_copy_gives_the_rows_of_the_original(zoo: Zoo, kind: str) -> None:
    original = zoo.tokenizer(kind)
    resolved, files = _resolve(zoo.path(kind))
    options = {"verbose": False, "truncation": True, "max_length": 64}
    expected = original(TEXTS, TEXTS[::-1], **options)
    assert resolved(TEXTS, TEXTS[::-1], **options) == expected
    assert tokenization.load(files)(TEXTS, TEXTS[::-1], **options) == expected


def test_named_chat_templates_are_in_the_saved_copy_wherever_they_were_kept(zoo: Zoo, tmp_path: Path) -> None:
    templates = {"default": "{{ messages }}", "tool_use": "{{ tools }}", "rag": "{{ documents }}"}
    listed = [{"name": name, "template": template} for name, template in templates.items()]
    in_config = _copy(zoo, "byte_bpe", tmp_path / "config", chat_template=listed)
    in_files = _copy(zoo, "byte_bpe", tmp_path / "files")
    (in_files / "chat_template.jinja").write_text(templates["default"])
    (in_files / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        (in_files / "additional_chat_templates" / f"{name}.jinja").write_text(templates[name])
    _, files = _resolve(in_config)
    assert {"additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja"} <= files.keys()
    assert tokenization.load(files).chat_template == templates
    assert _resolve(in_files)[1] == files


def test_no_saved_file_is_written_beside_the_folder() -> None:
    with pytest.raises(TokenizerError, match="would be outside of its folder"):
        tokenization.load({"additional_chat_templates/../../x": b""})


@pytest.mark.parametrize("kind", ["wordpiece_cased", "unigram", "slow_ctrl"])
def test_where_a_tokenizer_lies_is_not_in_its_files(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    _, files = _resolve(zoo.path(kind))
    _, elsewhere = _resolve(_copy(zoo, kind, tmp_path / "a" / "folder with another name"))
    assert files == elsewhere
    assert not any(str(zoo.path(kind).parent).encode() in content for content in files.values())


def _into_the_hub_cache(folder: Path, *, repository: str) -> None:
    """Puts a folder where the hub's client looks for a repository's files before it asks the network."""
    owner, _, name = repository.partition("/")
    cached = Path(os.environ["HF_HUB_CACHE"], f"models--{owner}--{name}")
    revision = "0123456789abcdef" * 2 + "01234567"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(revision)
    shutil.copytree(folder, cached / "snapshots" / revision)
    # A model's repository has one, and it is asked for first.
    (cached / "snapshots" / revision / "config.json").write_text(json.dumps({"model_type": "bert"}))


def test_a_tokenizer_of_the_hub_and_the_same_one_in_a_folder_have_the_same_files(zoo: Zoo) -> None:
    _into_the_hub_cache(zoo.path("wordpiece_uncased"), repository="tests/same-files")
    from_hub, files = _resolve("tests/same-files")
    assert from_hub(["a b"])["input_ids"] == zoo.tokenizer("wordpiece_uncased")(["a b"])["input_ids"]
    assert files == _resolve(zoo.path("wordpiece_uncased"))[1]


def test_a_token_of_the_hub_is_in_no_file(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_thisIsSecret")
    _into_the_hub_cache(zoo.path("wordpiece_uncased"), repository="tests/private")
    for name in ("tests/private", str(zoo.path("unigram"))):
        assert not any(b"thisIsSecret" in content for content in _resolve(name)[1].values())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["wordpiece_cased", "unigram_left", "slow_byt5"])
def test_sides_that_the_user_chose_are_in_the_saved_copy(zoo: Zoo, kind: str, side: Side) -> None:
    other: Side = "right" if side == "left" else "left"
    resolved, files = _resolve(zoo.path(kind), truncation_side=side, padding_side=other)
    for tokenizer in (resolved, tokenization.load(files)):
        assert (tokenizer.truncation_side, tokenizer.padding_side) == (side, other)


# --- tokenizers of which no dataset is made -------------------------------------------------------------------------


def _refused(folder: Path, state: dict[str, Any], **config: Any) -> TokenizerError:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    with pytest.raises(TokenizerError) as refused:
        _resolve(folder)
    assert refused.value.remedy
    return refused.value


def _state(zoo: Zoo, kind: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((zoo.path(kind) / "tokenizer.json").read_text(encoding="utf-8"))
    return state


def test_a_tokenizer_that_leaves_out_merges_by_chance_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    state = _state(zoo, "byte_bpe")
    state["model"]["dropout"] = 0.1
    assert "BPE dropout 0.1" in _refused(tmp_path / "dropout", state).cause
    state["model"]["dropout"] = 0.0
    shutil.copytree(zoo.path("byte_bpe"), tmp_path / "none")
    (tmp_path / "none" / "tokenizer.json").write_text(json.dumps(state))
    assert _resolve(tmp_path / "none")


def test_two_added_tokens_that_are_one_text_when_it_is_normalized_are_refused(zoo: Zoo, tmp_path: Path) -> None:
    state = _state(zoo, "unigram")
    state["normalizer"] = {"type": "Lowercase"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    state["added_tokens"] += [
        {"id": 9000 + index, "content": text, **flags} for index, text in enumerate(("Tag", "TAG"))
    ]
    assert "'TAG' and 'Tag' are the same text, 'tag'" in _refused(tmp_path / "same", state).cause


def test_two_entries_with_one_id_are_refused(zoo: Zoo, tmp_path: Path) -> None:
    state = _state(zoo, "wordpiece_cased")
    state["model"]["vocab"]["brandnew"] = state["model"]["vocab"]["the"]
    assert "'brandnew' and 'the' of its vocabulary have the same id" in _refused(tmp_path / "same", state).cause


def test_an_id_for_which_a_list_of_all_others_would_be_made_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    state = _state(zoo, "wordpiece_cased")
    state["model"]["vocab"]["far"] = 20_000_000
    assert "the id 20000000" in _refused(tmp_path / "far", state).cause


def test_a_tokenizer_in_python_that_samples_is_refused() -> None:
    class Sampling:
        is_fast = False
        sp_model_kwargs: ClassVar = {"enable_sampling": True, "alpha": 0.1}

    with pytest.raises(TokenizerError, match="samples among segmentations"):
        require_deterministic(Sampling(), "mine")


# --- the pad token --------------------------------------------------------------------------------------------------


def test_without_a_pad_token_eos_is_borrowed_with_a_warning(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    assert zoo.tokenizer("byte_bpe").pad_token_id is None
    with caplog.at_level(logging.WARNING):
        resolved, files = _resolve(zoo.path("byte_bpe"))
    assert "no pad token; rows are padded with its EOS token <|endoftext|>" in caplog.text
    saved = tokenization.load(files)
    assert resolved.pad_token_id == saved.pad_token_id == saved.eos_token_id


def test_with_neither_a_pad_nor_an_eos_token_there_is_nothing_to_pad_with(zoo: Zoo, tmp_path: Path) -> None:
    folder = _copy(zoo, "byte_bpe", tmp_path / "bare", eos_token=None)
    with pytest.raises(TokenizerError, match=r"neither a pad token nor an EOS token.*set pad_token in its"):
        _resolve(folder)


# --- what cannot be loaded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/no/such/folder", "./no/such/folder", "no/such/folder", "../no"])
def test_a_path_to_nothing_is_said_to_be_one(name: str) -> None:
    with pytest.raises(TokenizerError, match=r"no such folder; check the path"):
        _resolve(name)


@pytest.mark.parametrize("name", ["nobody/no-such-tokenizer", "no-such-tokenizer"])
def test_a_name_that_the_hub_does_not_give_comes_with_what_to_check(name: str) -> None:
    with pytest.raises(TokenizerError, match=rf"'{name}' cannot be loaded: .*HF_HUB_OFFLINE.*HF_TOKEN"):
        _resolve(name)


def test_a_folder_without_files_comes_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"the folder holds nothing, expected tokenizer.json or the files of a vocabulary"
    ):
        _resolve(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.0", "model": {"type": "NoSuchModel"}}'])
def test_a_broken_tokenizer_file_is_an_error_of_the_tree(zoo: Zoo, tmp_path: Path, content: str) -> None:
    folder = _copy(zoo, "wordpiece_cased", tmp_path / "broken")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        _resolve(folder)


def test_code_that_comes_with_a_tokenizer_is_not_run(zoo: Zoo, tmp_path: Path) -> None:
    auto_map = {"AutoTokenizer": ["evil.Evil", None]}
    folder = _copy(zoo, "wordpiece_cased", tmp_path / "evil", tokenizer_class="Evil", auto_map=auto_map)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        _resolve(folder)
    assert not (tmp_path / "ran").exists()


# --- SentencePiece's own files --------------------------------------------------------------------------------------

_SENTENCES = ["the old house by the river", "a cat sat on the mat", "five dozen jugs of liquor, quickly boxed"]


def _sentence_piece(
    folder: Path, *, kind: str, name: str, tokenizer_class: str
) -> sentencepiece.SentencePieceProcessor:
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_SENTENCES * 20),
        model_prefix=str(folder / Path(name).stem),
        model_type=kind,
        vocab_size=300 if kind == "bpe" else 32,
        byte_fallback=kind == "bpe",
        minloglevel=2,
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class, "eos_token": "</s>"}))
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


@pytest.mark.parametrize(
    ("kind", "name", "tokenizer_class"),
    [("unigram", "spiece.model", "T5Tokenizer"), ("bpe", "tokenizer.model", "LlamaTokenizer")],
)
def test_a_folder_with_nothing_but_sentence_pieces_file_is_opened(
    tmp_path: Path, kind: str, name: str, tokenizer_class: str
) -> None:
    theirs = _sentence_piece(tmp_path / "spm", kind=kind, name=name, tokenizer_class=tokenizer_class)
    tokenizer, _ = _resolve(tmp_path / "spm")
    for text in _SENTENCES:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == theirs.encode(text)


def test_without_the_library_for_it_the_remedy_is_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sentence_piece(tmp_path / "spm", kind="bpe", name="tokenizer.model", tokenizer_class="LlamaTokenizer")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(TokenizerError, match=r"cannot be loaded: .*pip install 'sentencepiece<0\.2\.3'"):
        _resolve(tmp_path / "spm")


# --- facts ----------------------------------------------------------------------------------------------------------


def test_the_size_of_a_vocabulary_with_gaps_is_that_of_its_largest_id() -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 7}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]")
    assert tokenization.facts(tokenizer, name="gaps", files={}).vocab_size == 8


def test_facts_are_the_tokenizers(zoo: Zoo) -> None:
    resolved, files = _resolve(zoo.path("wordpiece_cased"))
    facts = tokenization.facts(resolved, name=str(zoo.path("wordpiece_cased")), files=files)
    assert (facts.name, facts.padding_side) == ("wordpiece_cased", "right")
    assert (facts.pad_id, facts.unk_id, facts.cls_id, facts.sep_id, facts.mask_id) == (0, 1, 2, 3, 4)
    assert (facts.bos_id, facts.eos_id) == (None, None)
    assert facts.special_ids == (0, 1, 2, 3, 4)
    assert facts.vocab_size == len(resolved)


def test_sentinels_are_the_extra_ids_by_number(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("unigram")
    added = [f"<extra_id_{number}>" for number in (11, 2, 1, 10)]
    tokenizer.add_tokens([*added, "<extra_id_>", "a <extra_id_3>"], special_tokens=True)
    expected = tokenizer.convert_tokens_to_ids([f"<extra_id_{number}>" for number in (0, 1, 2, 10, 11)])
    assert tokenization.facts(tokenizer, name="t5", files={}).sentinel_ids == tuple(expected)


@BYT5_WARNS
@pytest.mark.parametrize("kind", LIGHT_KINDS)
def test_every_id_that_a_tokenizer_gives_is_below_its_vocabulary_size(zoo: Zoo, kind: str) -> None:
    resolved, files = _resolve(zoo.path(kind))
    vocab_size = tokenization.facts(resolved, name="tokenizer", files=files).vocab_size
    assert max(max(ids, default=0) for ids in resolved(TEXTS, verbose=False)["input_ids"]) < vocab_size
    assert resolved.pad_token_id < vocab_size


def test_the_content_digest_changes_with_the_content_and_with_the_sides(zoo: Zoo) -> None:
    digests = {
        tokenization.facts(tokenizer, name="tokenizer", files=files).content_sha256
        for tokenizer, files in (
            _resolve(zoo.path("wordpiece_cased")),
            _resolve(zoo.path("wordpiece_uncased")),
            _resolve(zoo.path("wordpiece_cased"), padding_side="left"),
            _resolve(zoo.path("wordpiece_cased"), truncation_side="left"),
        )
    }
    assert len(digests) == 4


def test_a_hub_name_stays_and_of_a_folder_only_its_last_part_is_told(zoo: Zoo, tmp_path: Path) -> None:
    resolved, files = _resolve(zoo.path("wordpiece_cased"))
    assert tokenization.facts(resolved, name="USER/NAME", files=files).name == "USER/NAME"
    assert tokenization.facts(resolved, name=str(tmp_path), files=files).name == tmp_path.name


# --- the length of rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "length"), [(None, 512), (100, 100), (512, 512), (4096, 512)])
def test_rows_are_as_long_as_the_model_takes_and_at_most_512(
    zoo: Zoo, tmp_path: Path, limit: int | None, length: int
) -> None:
    tokenizer, _ = _resolve(_copy(zoo, "wordpiece_cased", tmp_path / "limited", model_max_length=limit))
    assert tokenization.resolve_length(tokenizer, LayoutConfig()) == length


@pytest.mark.parametrize(("limit", "asked", "warns"), [(100, 100, False), (100, 101, True), (None, 10**6, False)])
def test_a_length_above_the_limit_of_the_model_is_used_with_a_warning(
    zoo: Zoo, tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int | None, asked: int, warns: bool
) -> None:
    tokenizer, _ = _resolve(_copy(zoo, "wordpiece_cased", tmp_path / "limited", model_max_length=limit))
    with caplog.at_level(logging.WARNING):
        assert tokenization.resolve_length(tokenizer, LayoutConfig(max_length=asked)) == asked
    assert (f"--max-length {asked} is over the limit of 100 tokens" in caplog.text) == warns


def test_an_added_token_of_which_normalizing_leaves_nothing_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    """`tokenizers` would look for it without end."""
    folder = _copy(zoo, "wordpiece_uncased", tmp_path / "endless")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "\u0301"}, "content": ""}
    content["added_tokens"].append(
        {"id": 29_999, "content": "\u0301", "normalized": True, "special": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    )
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"nothing is left of its added token .* once it is normalized") as caught:
        _resolve(folder)
    assert "added_tokens" in caught.value.remedy


@pytest.mark.parametrize("name", ["chat_template.jinja", "vocab.txt", "additional_chat_templates/x.jinja"])
def test_a_link_out_of_a_tokenizers_folder_is_refused(tmp_path: Path, zoo: Zoo, name: str) -> None:
    (tmp_path / "secret").write_text("mine")
    folder = Path(shutil.copytree(zoo.path("wordpiece_cased"), tmp_path / "tokenizer"))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(TokenizerError, match=f"{name} leads out of the folder, to .*secret") as caught:
        tokenization.resolve(TokenizerConfig(name=str(folder)))
    assert "cp -rL" in caught.value.remedy


def test_a_snapshot_in_the_hubs_cache_and_links_of_other_files_are_taken(tmp_path: Path, zoo: Zoo) -> None:
    blobs, snapshot = tmp_path / "models--me--x" / "blobs", tmp_path / "models--me--x" / "snapshots" / "abc"
    shutil.copytree(zoo.path("wordpiece_cased"), blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", path.name))
    (snapshot / "model.safetensors").symlink_to(tmp_path)
    _, files = tokenization.resolve(TokenizerConfig(name=str(snapshot)))
    assert "tokenizer.json" in files
