"""Texts with special tokens at their ends: joined documents and completions have them once.

Rows of `pad` and `seq2seq` have them twice, like `transformers`, and a message reports it.
"""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import processors

from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from tests import building
from tests.prepare.layouts import encoding
from tests.qualifying import kinds

pytestmark = pytest.mark.engines

# A tokenizer that each engine serves.
ENGINES = {"hf": "gpt2", "wordpiece": "zoo wordpiece_cased", "unigram": "unigram t5", "fastokens": "gpt2"}
ENGINES["gigatoken"] = "llama2"
LAYOUTS = ("concat", "pack", "pairs", "pad", "seq2seq")
BODY = "the house was good"


@functools.cache
def tokenizer(kind: str) -> Any:
    """With a BOS and an EOS, which it adds around each text."""
    opened = kinds.tokenizer(kind)
    opened.add_special_tokens({"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"})
    special = [("<|bos|>", opened.bos_token_id), ("<|eos|>", opened.eos_token_id)]
    opened.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|eos|>", pair="<|bos|> $A <|eos|> $B <|eos|>", special_tokens=special
    )
    return opened


def _encoder(engine: str, layout: str, special_tokens: str = "bos-eos") -> BatchEncoder:
    options: dict[str, Any] = {"special_tokens": special_tokens} if layout in ("concat", "pack") else {}
    name: Any = "chat" if layout == "pairs" else layout
    config = LayoutConfig(name=name, max_length=64, **options)
    pairs, texts = layout == "pairs", () if layout == "pairs" else ("text",)
    return encoding.open_encoder(
        tokenizer(ENGINES[engine]), config, ColumnPlan(texts=texts, joins_pairs=pairs), engine=engine
    )


def _rows(layout: str, texts: list[str]) -> Rows:
    """Each text; as pairs, its first half and its second."""
    column = pa.array(texts)
    if layout != "pairs":
        return Rows(texts=(column,), arrays={}, nested={"target": column} if layout == "seq2seq" else {})
    halves = [len(text) // 2 for text in texts]
    first = pa.array([text[:half] for text, half in zip(texts, halves, strict=True)])
    second = pa.array([text[half:] for text, half in zip(texts, halves, strict=True)])
    return Rows(texts=(), arrays={}, nested={"prompt": first, "completion": second})


def _documents(encoder: BatchEncoder, rows: Rows, layout: str) -> list[list[int]]:
    documents = []
    for at in range(len(rows)):
        columns = encoding.laid_out(encoder, rows.take(np.array([at])))
        marks = {"concat": lambda c: np.arange(64) < c["num_tokens"][0], "pack": lambda c: c["segment_ids"][0] > 0}
        real = marks.get(layout, lambda c: c["attention_mask"][0] == 1)(columns)
        documents.append(columns["input_ids"][0][real].tolist())
    return documents


@pytest.mark.parametrize(("engine", "layout"), [*itertools.product(ENGINES, LAYOUTS)])
def test_special_tokens_at_the_ends_of_texts(engine: str, layout: str) -> None:
    made = tokenizer(ENGINES[engine])
    texts = [f"{begin}{BODY}{end}" for begin in ("", "<|bos|>") for end in ("", "<|eos|>")]
    rows, encoder = _rows(layout, texts), _encoder(engine, layout)
    documents = _documents(encoder, rows, layout)
    own = made(texts, add_special_tokens=False)["input_ids"]
    if layout in ("pad", "seq2seq"):
        assert documents == made(texts)["input_ids"]
    else:
        bos, eos = made.bos_token_id, made.eos_token_id
        bare = [[token for token in ids if token not in (bos, eos)] for ids in own]
        assert documents == [[bos, *ids, eos] for ids in bare]
    assert len(encoder.notes_on(rows)) == 2
    assert encoder.notes_on(_rows(layout, [BODY, "", BODY])) == ()
    words = "the tokenizer adds another" if layout in ("pad", "seq2seq") else "no second one is added"
    assert all(words in note for note in encoder.notes_on(rows))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("special_tokens", ["eos", "bos-eos", "tokenizer", "none"])
def test_a_frame_is_put_around_documents_that_lack_it(engine: str, special_tokens: str) -> None:
    made = tokenizer(ENGINES[engine])
    bos, eos = made.bos_token_id, made.eos_token_id
    texts = ["<|eos|>", "<|bos|>", "<|bos|><|eos|>", "<|eos|><|eos|>", ""]
    inner = [[], [bos], [bos], [eos], []] if special_tokens == "eos" else [[], [], [], [eos], []]
    before, after = ([bos] * (special_tokens != "eos"), [eos])
    expected = [[*before, *ids, *after] for ids in inner]
    if special_tokens == "none":
        expected = [[eos], [bos], [bos, eos], [eos, eos], []]
    columns = encoding.laid_out(_encoder(engine, "concat", special_tokens), _rows("concat", texts))
    assert columns["input_ids"][0][: columns["num_tokens"][0]].tolist() == [id for ids in expected for id in ids]


@pytest.mark.parametrize("engine", ENGINES)
def test_advice_on_bos_looks_at_the_texts(engine: str) -> None:
    encoder = _encoder(engine, "pack", "eos")
    for texts, advice in (
        (["<|bos|>a", "<|bos|>b"], "so --special-tokens bos-eos is not needed"),
        (["a", "<|bos|>b"], "begins every text with <|bos|>, but --special-tokens eos leaves it out; --special-tokens"),
    ):
        (note,) = encoder.notes_on(_rows("pack", texts))
        assert advice in note
    assert _encoder(engine, "pack", "tokenizer").notes_on(_rows("pack", ["a", "b"])) == ()


@pytest.mark.slow
def test_completions_are_learned_with_one_eos_as_trl_joins_them(tmp_path: Path) -> None:
    """TRL 1.16: `prompt + completion`, with EOS unless the completion ends with it; the prompt's tokens are masked."""
    made = tokenizer("gpt2")
    made.save_pretrained(tmp_path / "tokenizer")
    pairs = [("The sky is", " blue."), ("The sun is", " high.<|eos|>"), ("<|bos|>A", " b"), ("A", "")]
    source = building.source(tmp_path / "d", train=[{"prompt": one, "completion": other} for one, other in pairs])
    chosen = {"layout": "chat", "max_length": 24, "no_shuffle": True, "tokenizer": tmp_path / "tokenizer"}
    for more in ({}, {"pack_rows": True}):
        outcome = building.command("build", source, *building.options(tmp_path / f"o{len(more)}", **chosen, **more))
        assert outcome.status == 0, outcome.err
        assert "; no second one is added" in outcome.err
    rows, bos, eos = building.read_rows(tmp_path / "o0", "train"), made.bos_token_id, made.eos_token_id
    for at, (prompt, completion) in enumerate(pairs):
        head, tail = (made(text, add_special_tokens=False)["input_ids"] for text in (prompt, completion))
        head, tail = [bos, *(id for id in head if id != bos)], [*(id for id in tail if id != eos), eos]
        real = rows["attention_mask"][at] == 1
        assert rows["input_ids"][at][real].tolist() == [*head, *tail]
        assert rows["loss_mask"][at][real].tolist() == [0] * len(head) + [1] * len(tail)
    packed = building.read_rows(tmp_path / "o1", "train")
    assert packed["loss_mask"].sum() == rows["loss_mask"].sum()
    assert building.command("verify", tmp_path / "o0").status == 0
    assert json.loads((tmp_path / "o0" / "manifest.json").read_text())["layout"]["name"] == "chat"
