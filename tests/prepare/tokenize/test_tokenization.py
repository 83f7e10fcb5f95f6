"""A tokenizer is resolved once and saved; the saved copy is the same tokenizer wherever it came from."""

import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pipelines.prepare.options.config import LayoutConfig, Side, TokenizerConfig
from pipelines.prepare.tokenize import saved_copy, tokenization
from pipelines.prepare.tokenize.tokenization import require_deterministic
from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, KINDS, Zoo
from tfrecord_io.errors import TokenizerError

TEXTS = [*texts.HOSTILE, *texts.sentences(10, seed=5), *texts.mutated(10, seed=6)]
BYT5_WARNS = pytest.mark.filterwarnings("ignore:This sequence already has </s>:UserWarning")


def _resolve(path: Path | str, **options: Any) -> tuple[Any, saved_copy.Files]:
    return tokenization.resolve(TokenizerConfig(name=str(path), **options))


def _copy(zoo: Zoo, kind: str, folder: Path, **changes: Any) -> Path:
    """A copy of a kind's folder; `changes` go into its tokenizer_config.json, None takes a key out."""
    shutil.copytree(zoo.path(kind), folder)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@BYT5_WARNS
@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_copy_gives_the_rows_of_the_original(zoo: Zoo, kind: str) -> None:
    original = zoo.tokenizer(kind)
    resolved, files = _resolve(zoo.path(kind))
    options = {"verbose": False, "truncation": True, "max_length": 64}
    expected = original(TEXTS, TEXTS[::-1], **options)
    assert resolved(TEXTS, TEXTS[::-1], **options) == expected
    assert saved_copy.load(files)(TEXTS, TEXTS[::-1], **options) == expected


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
    assert saved_copy.load(files).chat_template == templates
    assert _resolve(in_files)[1] == files


def test_no_saved_file_is_written_beside_the_folder() -> None:
    with pytest.raises(TokenizerError, match="would be outside of its folder"):
        saved_copy.load({"additional_chat_templates/../../x": b""})


def test_the_files_of_a_tokenizer_of_the_hub_are_those_of_the_folder_and_hold_no_token(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_thisIsSecret")
    cached, revision = Path(os.environ["HF_HUB_CACHE"], "models--tests--same-files"), "0123456789abcdef0123" * 2
    shutil.copytree(zoo.path("wordpiece_uncased"), cached / "snapshots" / revision)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(revision)
    # A model's repository has one, and it is asked for first.
    (cached / "snapshots" / revision / "config.json").write_text(json.dumps({"model_type": "bert"}))
    from_hub, files = _resolve("tests/same-files")
    assert from_hub(["a b"])["input_ids"] == zoo.tokenizer("wordpiece_uncased")(["a b"])["input_ids"]
    assert files == _resolve(zoo.path("wordpiece_uncased"))[1]
    assert not any(b"thisIsSecret" in content for content in files.values())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["wordpiece_cased", "unigram_left", "slow_byt5"])
def test_sides_that_the_user_chose_are_in_the_saved_copy(zoo: Zoo, kind: str, side: Side) -> None:
    other: Side = "right" if side == "left" else "left"
    resolved, files = _resolve(zoo.path(kind), truncation_side=side, padding_side=other)
    for tokenizer in (resolved, saved_copy.load(files)):
        assert (tokenizer.truncation_side, tokenizer.padding_side) == (side, other)


def test_a_tokenizer_in_python_that_samples_is_refused() -> None:
    sampling = SimpleNamespace(is_fast=False, sp_model_kwargs={"enable_sampling": True, "alpha": 0.1})
    with pytest.raises(TokenizerError, match="splits texts at random"):
        require_deterministic(sampling, "mine")


def test_without_a_pad_token_eos_is_borrowed_with_a_warning(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    assert zoo.tokenizer("byte_bpe").pad_token_id is None
    with caplog.at_level(logging.WARNING):
        resolved, files = _resolve(zoo.path("byte_bpe"))
    assert "no pad token; rows are padded with its EOS token <|endoftext|>" in caplog.text
    saved = saved_copy.load(files)
    assert resolved.pad_token_id == saved.pad_token_id == saved.eos_token_id


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "no such folder; check the path") for name in ("/no/such/folder", "./no/such", "no/such/folder")),
        *((name, f"'{name}' cannot be loaded: .*HF_HUB_OFFLINE.*HF_TOKEN") for name in ("nobody/no-such", "no-such")),
        ("", r"the folder holds nothing, expected tokenizer.json or the files of a vocabulary"),
    ],
)
def test_a_name_of_nothing_comes_with_what_to_check(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        _resolve(name or tmp_path)


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


@pytest.mark.parametrize("kind", FAST_KINDS)
def test_the_class_gives_the_tokenizer_that_auto_tokenizer_loads(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    name, options = str(zoo.path(kind)), {"revision": "main", "trust_remote_code": False, "local_files_only": True}
    loaded = [opener.from_pretrained(name, **options) for opener in (saved_copy.class_for(name), AutoTokenizer)]
    for at, opened in enumerate(loaded):
        opened.save_pretrained(tmp_path / str(at))
    saved, expected = ({path.name: path.read_bytes() for path in (tmp_path / at).iterdir()} for at in ("0", "1"))
    assert saved == expected
    assert len({type(opened) for opened in loaded}) == len({str(opened.init_kwargs) for opened in loaded}) == 1


@pytest.mark.parametrize(
    ("file", "content", "is_generic"),
    [
        ("tokenizer_config.json", b'{"tokenizer_class": "PreTrainedTokenizerFast"}', True),
        ("tokenizer_config.json", f'{{"tokenizer_class": "{PreTrainedTokenizerFast.__name__}"}}'.encode(), True),
        *(
            ("tokenizer_config.json", content, False)
            for content in (
                *(b'{"tokenizer_class": "GPT2Tokenizer"}', b'{"tokenizer_class": null}', b"{", b"[]", b"\xff", None),
                *(b'{"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {}}', b"[" * 100_000),
            )
        ),
        ("tokenizer.json", None, False),
        ("config.json", b'{"model_type": "gpt2"}', False),
    ],
)
def test_the_generic_class_is_chosen_where_the_folder_soundly_names_it(
    zoo: Zoo, tmp_path: Path, file: str, content: bytes | None, is_generic: bool
) -> None:
    path = _copy(zoo, "byte_bpe", tmp_path / "copy") / file
    path.unlink() if content is None else path.write_bytes(content)
    assert saved_copy.class_for(str(path.parent)) is (PreTrainedTokenizerFast if is_generic else AutoTokenizer)


@pytest.mark.slow
def test_loading_a_generic_tokenizer_does_not_import_the_models(zoo: Zoo) -> None:
    code = (
        "import sys\nfrom pipelines.prepare.options.config import TokenizerConfig\n"
        "from pipelines.prepare.tokenize import tokenization\ntokenization.resolve(TokenizerConfig(name=sys.argv[1]))\n"
        "print('transformers.models' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(zoo.path("wordpiece_cased"))]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "False"


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


def test_the_size_of_a_vocabulary_with_gaps_is_that_of_its_largest_id() -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 7}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]")
    assert tokenization.facts(tokenizer, name="gaps", files={}).vocab_size == 8


def test_facts_are_the_tokenizers(zoo: Zoo, tmp_path: Path) -> None:
    resolved, files = _resolve(zoo.path("wordpiece_cased"))
    facts = tokenization.facts(resolved, name=str(tmp_path), files=files)
    assert (facts.name, facts.padding_side) == (tmp_path.name, "right")
    assert (facts.pad_id, facts.unk_id, facts.cls_id, facts.sep_id, facts.mask_id) == (0, 1, 2, 3, 4)
    assert (facts.bos_id, facts.eos_id) == (None, None)
    assert facts.special_ids == (0, 1, 2, 3, 4)
    assert facts.vocab_size == len(resolved)
    assert tokenization.facts(resolved, name="USER/NAME", files=files).name == "USER/NAME"


def test_sentinels_are_the_extra_ids_by_number(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("unigram")
    added = [f"<extra_id_{number}>" for number in (11, 2, 1, 10)]
    tokenizer.add_tokens([*added, "<extra_id_>", "a <extra_id_3>"], special_tokens=True)
    expected = tokenizer.convert_tokens_to_ids([f"<extra_id_{number}>" for number in (0, 1, 2, 10, 11)])
    assert tokenization.facts(tokenizer, name="t5", files={}).sentinel_ids == tuple(expected)


@pytest.mark.parametrize(("limit", "length"), [(None, 512), (100, 100), (512, 512), (4096, 512)])
def test_rows_are_as_long_as_the_model_takes_and_at_most_512(
    zoo: Zoo, tmp_path: Path, limit: int | None, length: int
) -> None:
    tokenizer, _ = _resolve(_copy(zoo, "wordpiece_cased", tmp_path / "limited", model_max_length=limit))
    assert tokenization.resolve_length(tokenizer, LayoutConfig()) == length


@pytest.mark.parametrize(("limit", "max_length", "warns"), [(100, 100, False), (100, 101, True), (None, 10**6, False)])
def test_a_length_above_the_limit_of_the_model_is_used_with_a_warning(
    zoo: Zoo, tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int | None, max_length: int, warns: bool
) -> None:
    tokenizer, _ = _resolve(_copy(zoo, "wordpiece_cased", tmp_path / "limited", model_max_length=limit))
    with caplog.at_level(logging.WARNING):
        assert tokenization.resolve_length(tokenizer, LayoutConfig(max_length=max_length)) == max_length
    assert (f"--max-length {max_length} is over the limit of 100 tokens" in caplog.text) == warns


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


def _classes() -> dict[str, Any]:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    classes = {name: tokenizer_class_from_name(name) for name in TOKENIZER_MAPPING_NAMES.values() if name}
    return {name: loaded for name, loaded in classes.items() if loaded is not None}


def _path_keys(tokenizer_class: Any) -> set[str]:
    """The arguments of a class that may be paths: its vocabulary files, and the text arguments that are no tokens."""
    arguments = inspect.signature(tokenizer_class.__init__).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    texts = {item.name for item in arguments if item.kind not in kinds and not isinstance(item.default, int | float)}
    tokens = {name for name in texts if re.search("_tokens?(_decoder)?$", name)}
    return {*getattr(tokenizer_class, "vocab_files_names", ()), *texts} - {"self", "chat_template"} - tokens


@pytest.mark.slow
def test_no_class_opens_a_file_outside_of_its_folder(tmp_path: Path, zoo: Zoo) -> None:
    secret = tmp_path / "private.txt"
    secret.write_text("line one\nline two\n")
    folder = _copy(zoo, "wordpiece_cased", tmp_path / "tokenizer")
    shown: dict[str, Any] = {
        "vocab": str(secret),
        "sp_model_kwargs": {"model_file": str(secret)},
        "init_inputs": [str(secret)],
    }
    named = {"fast_tokenizer_files": ["../private.txt"], "gguf_file": "../private.txt", "merges": str(secret)}
    keys = {(name, key) for name, tokenizer_class in _classes().items() for key in _path_keys(tokenizer_class)}
    assert len(keys) > 300
    assert {"vocab", "vocab_file", "merges_file", "source_spm", "entity_vocab_file"} <= {key for _, key in keys}
    cases = [{"tokenizer_class": name, key: str(secret)} for name, key in sorted(keys)]
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        before = (folder / file).read_text() if (folder / file).exists() else "{}"
        for case in [*cases, *({key: value} for key, value in {**shown, **named}.items())]:
            (folder / file).write_text(json.dumps({**json.loads(before), **case}))
            with pytest.raises(TokenizerError, match=r"names .*private\.txt, expected no file outside"):
                _resolve(folder)
        (folder / file).write_text(before)
    assert _resolve(folder)


def test_a_saved_tokenizer_opens_no_file_outside_of_its_folder(tmp_path: Path, zoo: Zoo) -> None:
    _, files = _resolve(zoo.path("wordpiece_cased"))
    (tmp_path / "private.txt").write_text("line one\n")
    config = {**json.loads(files["tokenizer_config.json"]), "vocab": str(tmp_path / "private.txt")}
    with pytest.raises(TokenizerError, match="expected no file outside"):
        saved_copy.load({**files, "tokenizer_config.json": json.dumps(config).encode()})


def test_a_pipe_among_a_tokenizers_files_is_refused(tmp_path: Path, zoo: Zoo) -> None:
    folder = _copy(zoo, "wordpiece_cased", tmp_path / "tokenizer")
    os.mkfifo(folder / "added_tokens.json")
    with pytest.raises(TokenizerError, match=r"added_tokens\.json is a pipe or a device, expected a file"):
        _resolve(folder)
