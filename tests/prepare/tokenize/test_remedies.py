"""Each remedy in a message about a tokenizer is applied once, literally, and repairs the problem."""

import base64
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from pipelines.prepare.options import paths
from pipelines.prepare.options.config import LayoutConfig, TokenizerConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.columns.labels import LabelPlan
from pipelines.prepare.tokenize import tokenization
from pipelines.prepare.tokenize.engines import open_reference
from pipelines.prepare.tokenize.text_rows import joins_words
from tests.prepare.layouts import encoding
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import TokenizerError

INT32 = np.dtype(np.int32)
State = dict[str, Any]


def _resolve(folder: Path) -> Any:
    return tokenization.resolve(TokenizerConfig(name=str(folder)))[0]


def _edit(folder: Path, file: str, change: Callable[[State], Any]) -> None:
    state = json.loads((folder / file).read_text(encoding="utf-8"))
    change(state)
    (folder / file).write_text(json.dumps(state), encoding="utf-8")


def _token(content: str, number: int) -> State:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": number, "content": content, "normalized": True, **flags}


def _lowercase(state: State, *contents: str) -> None:
    state["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[A-Z\u0301]"}, "content": ""}
    state["added_tokens"] += [_token(content, 9000 + at) for at, content in enumerate(contents)]


def _renumber(state: State) -> None:
    vocabulary = state["model"]["vocab"]
    vocabulary |= {entry: number for number, entry in enumerate(vocabulary)}


def _not_normalized(state: State) -> None:
    for token in state["added_tokens"]:
        token["normalized"] = False


# By the file to edit: the kind, a fault, the message, and the edit that it suggests.
JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"
FILES: list[tuple[str, str, Callable[[State], Any], str, Callable[[State], Any]]] = [
    (
        *(JSON, "byte_bpe", lambda state: state["model"].update(dropout=0.1)),
        r"at random \(BPE dropout 0\.1\).*set \"dropout\" of the model to null in its tokenizer\.json",
        lambda state: state["model"].update(dropout=None),
    ),
    (
        *(JSON, "wordpiece_cased", lambda state: state["model"]["vocab"].update(far=20_000_000)),
        r"the id 20000000.*number the entries of the vocabulary in its tokenizer\.json from 0",
        _renumber,
    ),
    (
        *(JSON, "wordpiece_cased", lambda state: state["model"]["vocab"].update(one=9000, other=9000)),
        "'one' and 'other' of its vocabulary have the same id.*give each entry of the vocabulary a different id",
        _renumber,
    ),
    (
        *(JSON, "unigram", lambda state: _lowercase(state, "aX", "aY")),
        r"'aX' and 'aY' into the same text, 'a'.*take one of them out of \"added_tokens\" in its tokenizer\.json",
        lambda state: state["added_tokens"].pop(),
    ),
    (
        *(JSON, "unigram", lambda state: _lowercase(state, "\u0301")),
        'its normalizer removes all of the added token.*or set "normalized": false for it',
        _not_normalized,
    ),
    (
        *(CONFIG, "byte_bpe", lambda config: config.pop("eos_token")),
        r"neither a pad token nor an EOS token.*set pad_token in its tokenizer_config\.json",
        lambda config: config.update(pad_token="<|endoftext|>"),
    ),
]


@pytest.mark.engines
@pytest.mark.parametrize(("file", "kind", "fault", "message", "mend"), FILES, ids=[entry[3] for entry in FILES])
def test_an_edit_of_the_files(
    *, zoo: Zoo, tmp_path: Path, kind: str, file: str, fault: Callable[[State], Any], message: str, mend: Any
) -> None:
    if "the same id" in message and sys.version_info < (3, 11):
        pytest.skip("its newest transformers drops one entry itself")
    folder = shutil.copytree(zoo.path(kind), tmp_path / "mine")
    _edit(folder, file, fault)
    with pytest.raises(TokenizerError, match=message):
        _resolve(folder)
    _edit(folder, file, mend)
    assert _resolve(folder)("a b")["input_ids"]


@pytest.mark.parametrize("kind", ["byte_bpe", "byte_bpe_bos"])
def test_a_space_before_each_word(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    own = zoo.tokenizer(kind)([" It", " isn't", " 3.5"], add_special_tokens=False)["input_ids"]
    columns = ColumnPlan(texts=(), nested={"words": "words", "tags": "tags"}, tags=LabelPlan(column="tags", kind="int"))
    (note,) = encoding.open_encoder(
        encoding.tokenizer(zoo, kind), LayoutConfig(name="tokens", max_length=8), columns
    ).notes
    folder = shutil.copytree(zoo.path(kind), tmp_path / "copy")
    (normalizer,) = re.findall(r'"normalizer": (\{.*?\}) in', note)
    (name,) = re.findall(r'"tokenizer_class": "(\w+)"', note)
    _edit(folder, "tokenizer.json", lambda state: state.update(normalizer=json.loads(normalizer)))
    _edit(folder, "tokenizer_config.json", lambda config: config.update(tokenizer_class=name))
    mended = _resolve(folder)
    assert not joins_words(mended)
    words = mended([["It", "isn't", "3.5"]], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert words[0] == [token for word in own for token in word]


def test_an_unknown_token() -> None:
    def made(**unknown: str) -> Any:
        vocabulary = {entry: number for number, entry in enumerate(["[UNK]", "[PAD]", "a"])}
        backend = Tokenizer(models.WordLevel(vocabulary, **unknown))
        return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")

    with pytest.raises(TokenizerError, match="without an unknown token"):
        open_reference(made(unk_token="[MISSING]"), dtype=INT32)
    open_reference(made(unk_token="[UNK]"), dtype=INT32)


@pytest.mark.engines
def test_tekken_alone(tmp_path: Path) -> None:
    entries = [{"rank": rank, "token_bytes": base64.b64encode(bytes([rank])).decode()} for rank in range(256)]
    config = {"pattern": r"\p{L}+|\s+|.", "default_vocab_size": 259, "default_num_special_tokens": 3, "version": "v7"}
    names = enumerate(("<unk>", "<s>", "</s>"))
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in names]
    tekken = {"config": {**config, "num_vocab_tokens": 256}, "vocab": entries, "special_tokens": special}
    (tmp_path / "tekken.json").write_text(json.dumps(tekken))
    with pytest.raises(TokenizerError) as refused:
        paths.require_tokenizer(str(tmp_path))
    (command,) = re.findall("(AutoTokenizer.*)", refused.value.remedy)
    eval(command, {"AutoTokenizer": AutoTokenizer, "FOLDER": str(tmp_path), "NEW": str(tmp_path / "new")})
    with pytest.raises(TokenizerError, match=r"set pad_token in its tokenizer_config\.json"):
        _resolve(tmp_path / "new")
    _edit(tmp_path / "new", "tokenizer_config.json", lambda config: config.update(pad_token="</s>"))
    assert _resolve(tmp_path / "new")("ab")["input_ids"] == [3 + ord("a"), 3 + ord("b")]
