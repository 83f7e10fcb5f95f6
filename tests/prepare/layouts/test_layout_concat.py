"""Layout `concat` through the command line: against the arithmetic of `group_texts`, and what it says about BOS."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.prepare.audit.decode import load_tokenizer
from tests import building
from tests.building import REVIEWS, built, read_rows
from tests.support.tokenizers_zoo import Zoo

LENGTH = 32
ROWS = [json.loads(line)["text"] for line in (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()]


def group_texts(documents: list[list[int]], *, block_size: int) -> list[list[int]]:
    """Blocks of the examples for language modelling that come with `transformers`: join, drop the rest, cut."""
    joined = [token for document in documents for token in document]
    total = len(joined) // block_size * block_size
    return [joined[start : start + block_size] for start in range(0, total, block_size)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wordpiece_cased", "byte_bpe_roberta", "unigram_left"])
def test_blocks_of_a_shard_in_order_are_those_of_group_texts(zoo: Zoo, kind: str) -> None:
    root = built(
        REVIEWS,
        layout="concat",
        split="train",
        tokenizer=zoo.path(kind),
        max_length=LENGTH,
        special_tokens="tokenizer",
        remainder="drop",
        no_shuffle=True,
        shard_size="1MB",
    )
    documents = load_tokenizer(str(root))(ROWS)["input_ids"]
    assert read_rows(root, "train")["input_ids"].tolist() == group_texts(documents, block_size=LENGTH)


@pytest.mark.parametrize("layout", ["concat", "pack"])
def test_documents_without_any_token_are_used_and_leave_no_trace(tmp_path: Path, layout: str) -> None:
    texts = ["", "the film was good", " ", "never again", ""]
    data = building.source(tmp_path / "data", train=[{"text": text} for text in texts])
    root = built(data, layout=layout, special_tokens="none", max_length=16, no_shuffle=True)
    ids = load_tokenizer(str(root))(texts, add_special_tokens=False)["input_ids"]
    rows = read_rows(root, "train")
    real = np.arange(16) < rows["num_tokens"][:, None] if layout == "concat" else rows["segment_ids"] > 0
    assert rows["input_ids"][real].tolist() == [token for document in ids for token in document]
    assert building.read_manifest(root).splits["train"].ledger.rows_used == len(texts)
    traced = building.command("trace", root, "--split", "train", "--shard", 0, "--record", 0, "--json")
    assert [row["row"] for row in json.loads(traced.out)["rows"]] == [1, 3]


@pytest.mark.parametrize("layout", ["concat", "pack"])
def test_a_build_warns_that_documents_go_without_the_bos_that_the_tokenizer_adds(zoo: Zoo, layout: str) -> None:
    plan = ("plan", REVIEWS, "--layout", layout, "--tokenizer", zoo.path("byte_bpe_bos"), "--max-length", 64)
    said = "begins every text with <|begin_of_text|>, but --special-tokens eos leaves it out"
    assert said in building.command(*plan).err
    assert said not in building.command(*plan, "--special-tokens", "tokenizer").err
