"""Predictions of words: their labels, answers to questions, and generated targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.train import model_files
from pipelines.train.predict import loading
from tests import building
from tests.train import training
from tests.train.finished import command, finished
from tfrecord_io import objectives, reader

pytestmark = pytest.mark.slow

TAGS = building.REPOSITORY / "examples" / "tags"


def predicted(tmp_path: Path, *, model: Path, data: Path, **options: object) -> list[dict[str, Any]]:
    output = tmp_path / "p.parquet"
    outcome = command("predict", model=model, data=data, split="train", output=output, tpu="none", **options)
    assert outcome.status == 0, outcome.err
    rows: list[dict[str, Any]] = pq.read_table(output).to_pylist()
    return rows


def test_each_question_has_one_answer_whose_characters_are_those_of_the_text(tmp_path: Path) -> None:
    data = training.questions()
    rows = predicted(tmp_path, model=finished("span", "bert-tiny", data=data), data=data)
    with open(building.REPOSITORY / "examples" / "questions" / "train.jsonl", encoding="utf-8") as file:
        contexts = [json.loads(line)["context"] for line in file]
    assert [row["row"] for row in rows] == list(range(len(contexts)))
    answered = [row for row in rows if row["answer"] is not None]
    assert answered, "some score above no answer"
    for row in rows:
        assert (row["answer"] is not None) == (row["score"] > row["none_score"])
    for row in answered:
        text = contexts[row["row"]][row["answer_start"] : row["answer_end"]]
        known = "[UNK]" not in row["answer"]
        assert not known or "".join(text.lower().split()) == "".join(row["answer"].lower().split())


@pytest.mark.parametrize("beams", [1, 2])
def test_a_target_is_generated_for_each_row(tmp_path: Path, beams: int) -> None:
    data = training.translations()
    folder = finished("seq2seq", "t5-tiny", data=data)
    rows = predicted(tmp_path, model=folder, data=data, beams=beams)
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert all(isinstance(row["generated"], str) and row["target"] for row in rows)
    if beams > 1:
        return
    opened = reader.open(data)
    model = loading.load_model(str(folder), model_files.read(str(folder))).model
    batch = next(iter(opened.dataset("train", global_batch_size=2, objective=objectives.seq2seq(), training=False)))
    inputs = {name: each.numpy() for name, each in batch[0].items()}
    facts, length = opened.manifest.tokenizer, inputs[objectives.DECODER_INPUTS].shape[1]
    ids = [facts.pad_id]
    while len(ids) < length and ids[-1] != facts.eos_id:
        inputs[objectives.DECODER_INPUTS][0] = ids + [facts.pad_id] * (length - len(ids))
        inputs[objectives.DECODER_MASK][0] = np.arange(length) < len(ids)
        ids.append(int(np.argmax(model(inputs, training=False)[0, len(ids) - 1])))
    expected = loading.load_tokenizer(str(folder)).decode(ids[1:], skip_special_tokens=True)
    [first] = [row for row in rows if (row["shard"], row["record"]) == (0, 0)]
    assert first["generated"] == expected


def test_every_word_that_fits_has_its_label(tmp_path: Path) -> None:
    data = building.built(TAGS, layout="tokens", max_length=64)
    rows = predicted(tmp_path, model=finished("tokens", "bert-tiny", data=data), data=data)
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
