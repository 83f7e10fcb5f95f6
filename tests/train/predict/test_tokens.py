"""Predictions of labels of words."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import building
from tests.train.finished import command, finished

pytestmark = pytest.mark.slow

TAGS = building.REPOSITORY / "examples" / "tags"


def test_every_word_that_fits_has_its_label(tmp_path: Path) -> None:
    data = building.built(TAGS, layout="tokens", max_length=64)
    given = {"model": finished("tokens", "bert-tiny", data=data), "data": data, "split": "train", "tpu": "none"}
    outcome = command("predict", output=tmp_path / "p.parquet", **given)
    assert outcome.status == 0, outcome.err
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    with open(TAGS / "train.jsonl", encoding="utf-8") as file:
        source = [json.loads(line) for line in file]
    assert [row["row"] for row in rows] == list(range(len(source)))
    spelt = 0
    for row, expected in zip(rows, source, strict=True):
        assert row["labels"] == expected["tags"]
        assert len(row["words"]) == len(row["predictions"]) == len(row["scores"]) == len(expected["tokens"])
        # The tokenizer knows few of these words, and writes them in lower case; [UNK] is what it makes of others.
        spelt += sum(word == token.lower() for word, token in zip(row["words"], expected["tokens"], strict=True))
    assert spelt > 0.5 * sum(len(row["words"]) for row in rows)
