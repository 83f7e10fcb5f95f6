"""A tokenizer is loaded by a class that gives what AutoTokenizer gives, which is imported only where it must choose."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pipelines.prepare.tokenize.tokenization import class_for
from tests.support.tokenizers_zoo import FAST_KINDS, Zoo


def _copy(zoo: Zoo, folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A copy of a tokenizer of the generic class, with these keys added to its tokenizer_config.json."""
    shutil.copytree(zoo.path("byte_bpe"), folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    return folder


def _saved(tokenizer: Any, folder: Path) -> dict[str, bytes]:
    tokenizer.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", FAST_KINDS)
def test_its_tokenizer_is_the_one_that_auto_tokenizer_loads(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    name = str(zoo.path(kind))
    found = class_for(name).from_pretrained(name, revision="main", trust_remote_code=False, local_files_only=True)
    expected = AutoTokenizer.from_pretrained(name, revision="main", trust_remote_code=False, local_files_only=True)
    assert type(found) is type(expected)
    assert str(found.init_kwargs) == str(expected.init_kwargs)
    assert _saved(found, tmp_path / "found") == _saved(expected, tmp_path / "expected")


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", PreTrainedTokenizerFast.__name__])
def test_the_generic_class_is_used_by_each_of_its_names(zoo: Zoo, tmp_path: Path, name: str) -> None:
    assert class_for(str(_copy(zoo, tmp_path / "generic", {"tokenizer_class": name}))) is PreTrainedTokenizerFast


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "GPT2Tokenizer"},
        {"tokenizer_class": None},
        {"tokenizer_class": ["PreTrainedTokenizerFast"]},
        {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}},
    ],
)
def test_another_class_is_chosen_by_auto_tokenizer(zoo: Zoo, tmp_path: Path, config: dict[str, Any]) -> None:
    assert class_for(str(_copy(zoo, tmp_path / "other", config))) is AutoTokenizer


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("tokenizer_config.json", None), ("config.json", b'{"model_type": "gpt2"}')]
    + [("tokenizer_config.json", content) for content in (b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff")],
    ids=repr,
)
def test_a_folder_that_does_not_name_the_class_soundly_is_left_to_auto_tokenizer(
    zoo: Zoo, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = _copy(zoo, tmp_path / "other")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    assert class_for(str(folder)) is AutoTokenizer
    assert class_for("google-bert/bert-base-uncased") is AutoTokenizer


def test_loading_a_generic_tokenizer_does_not_import_the_models(zoo: Zoo) -> None:
    code = (
        "import sys\n"
        "from pipelines.prepare.options.config import TokenizerConfig\n"
        "from pipelines.prepare.tokenize import tokenization\n"
        "config = TokenizerConfig(name=sys.argv[1])\n"
        "tokenization.import_libraries(config)\n"
        "tokenization.resolve(config)\n"
        "print('transformers.models' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(zoo.path("wordpiece_cased"))]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "False"
