"""A tokenizer comes back from its saved files as it was, changed in memory or not, and transformers 4 can read them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pipelines import python_options
from pipelines.prepare.options.config import TokenizerConfig
from pipelines.prepare.tokenize import saved_copy, tokenization
from tests.support import seams, texts
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import TokenizerError

TEXTS = ["Hello World 2023", *texts.HOSTILE, *texts.MULTI_SCRIPT]
CLASSES = {"GPT2Tokenizer": "byte_bpe", "Qwen2Tokenizer": "byte_bpe", "BertTokenizer": "wordpiece_uncased"}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=True)


def _set(part: str, value: Any) -> Callable[[Any], None]:
    return lambda tokenizer: setattr(tokenizer.backend_tokenizer, part, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda tokenizer: None,
    "a normalizer": _set("normalizer", normalizers.Lowercase()),
    "no normalizer": _set("normalizer", None),
    "a pre-tokenizer": _set("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTES])),
    "add_prefix_space": _set("pre_tokenizer", BYTES),
    "an added token": lambda tokenizer: tokenizer.add_tokens(["World"]),
    "a special token": lambda tokenizer: tokenizer.add_special_tokens({"additional_special_tokens": ["<a>"]}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", CLASSES)
def test_an_object_gives_its_own_tokens_however_it_was_changed(
    zoo: Zoo, tmp_path: Path, kind: str, change: str
) -> None:
    original = getattr(transformers, kind).from_pretrained(zoo.path(CLASSES[kind]))
    CHANGES[change](original)
    expected = original(TEXTS)
    resolved, files = tokenization.resolve(TokenizerConfig(name=python_options._save(original, str(tmp_path))))
    assert resolved(TEXTS) == expected
    assert saved_copy.load(files)(TEXTS) == expected


@pytest.mark.parametrize("attribute", ["padding_side", "truncation_side", "model_input_names", "split_special_tokens"])
def test_attributes_that_were_set_are_kept(zoo: Zoo, attribute: str) -> None:
    tokenizer = zoo.tokenizer("wordpiece_cased")
    values = {"model_input_names": ["input_ids"], "split_special_tokens": True}
    setattr(tokenizer, attribute, value := values.get(attribute, "left"))
    copy, files = saved_copy.save(tokenizer, "mine")
    assert getattr(copy, attribute) == value
    assert json.loads(files["tokenizer_config.json"])[attribute] == value


def test_what_no_file_holds_is_refused(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("slow_byt5")
    tokenizer._tokenize = lambda text: list(text.lower())
    with pytest.raises(TokenizerError, match="gives other tokens once it is saved and loaded again"):
        saved_copy.save(tokenizer, "mine")


def test_the_files_name_what_transformers_4_knows(zoo: Zoo) -> None:
    tokenizer = zoo.tokenizer("wordpiece_cased")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<a>", "<b>"]})
    copy, files = saved_copy.save(tokenizer, "mine")
    config = json.loads(files["tokenizer_config.json"])
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["additional_special_tokens"] == ["<a>", "<b>"]
    assert "extra_special_tokens" not in config
    assert copy.extra_special_tokens == ["<a>", "<b>"]


class OfMistral(PreTrainedTokenizerBase):
    """As transformers' MistralCommonBackend: one of its tokenizers that has no `is_fast`."""

    def __init__(self) -> None:
        pass


def test_mistrals_own_class_is_not_asked_for(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = AutoTokenizer.from_pretrained

    def with_mistral_common(name: str, *, mistral_format: bool | None = None, **options: Any) -> Any:
        return load(name, **options) if mistral_format is False else OfMistral()

    folder = tmp_path / "mistral"
    zoo.tokenizer("byte_bpe").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    (folder / "tekken.json").write_text("{}")
    expected = load(folder)(TEXTS)["input_ids"]
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", with_mistral_common)
    resolved, _ = tokenization.resolve(TokenizerConfig(name=str(folder)))
    assert resolved(TEXTS)["input_ids"] == expected


@pytest.mark.parametrize("other", [OfMistral(), False, object()], ids=["mistral", "bool", "object"])
def test_another_kind_of_object_is_refused(zoo: Zoo, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, fetch_tokenizer=lambda config: other)
    with pytest.raises(TokenizerError, match=r"expected one with a tokenizer.json.*mistral_format=False"):
        tokenization.resolve(TokenizerConfig(name=str(zoo.path("byte_bpe"))))


def _name_class(folder: Path, name: str) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": name}))


def test_a_file_that_its_class_ignores_is_warned_of_and_both_remedies_hold(
    zoo: Zoo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, tokenizer = tmp_path / "one", zoo.tokenizer("byte_bpe")
    tokenizer.backend_tokenizer.pre_tokenizer = BYTES
    tokenizer.save_pretrained(folder)
    _name_class(folder, "GPT2Tokenizer")  # ignores the pre-tokenizer of tokenizer.json
    of_file = PreTrainedTokenizerFast.from_pretrained(folder)(TEXTS)["input_ids"]
    resolved, files = tokenization.resolve(TokenizerConfig(name=str(folder)))
    assert "GPT2Tokenizer, ignores parts of its tokenizer.json" in caplog.text
    shards = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    assert resolved(TEXTS)["input_ids"] == shards != of_file
    saved_copy.write(files, str(tmp_path / "out"))
    assert PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "out/tokenizer.json"))(TEXTS)["input_ids"] == shards
    caplog.clear()
    _name_class(folder, "PreTrainedTokenizerFast")
    assert tokenization.resolve(TokenizerConfig(name=str(folder)))[0](TEXTS)["input_ids"] == of_file
    assert "ignores parts" not in caplog.text


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece_uncased", "unigram"])
def test_a_file_that_its_class_takes_is_not_warned_of(zoo: Zoo, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenization.resolve(TokenizerConfig(name=str(zoo.path(kind))))
    assert "ignores parts" not in caplog.text
