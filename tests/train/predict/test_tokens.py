"""Predictions of tokens: how well a language model knows each row and goes on, and the words of a text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipelines.train import model_files
from pipelines.train.predict import loading
from tests import building
from tests.train import training
from tests.train.finished import done, finished, predicted
from tfrecord_io import objectives, reader

pytestmark = pytest.mark.slow

MODEL = "gpt2-tiny"


def causal(tmp_path: Path, **options: object) -> list[dict[str, Any]]:
    """The rows of the reviews in the order of the files, by a decoder."""
    model = finished("clm", MODEL, layers=1)
    rows = predicted(tmp_path, model=model, data=training.data(), split="validation", **options)
    return sorted(rows, key=lambda row: (row["shard"], row["record"]))


def test_the_loss_of_a_row_is_the_mean_over_its_tokens_given_those_before(tmp_path: Path) -> None:
    rows = causal(tmp_path, batch_size=24)
    folder = str(finished("clm", MODEL, layers=1))
    model = loading.load_model(folder, model_files.read(folder)).model
    features = next(iter(reader.open(training.data()).dataset("validation", global_batch_size=80)))
    ids, mask = features["input_ids"].numpy(), features["attention_mask"].numpy()
    chances = tf.nn.log_softmax(
        model({"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}, training=False)
    ).numpy()
    for number, row in enumerate(rows):
        count = mask[number].sum()
        expected = -np.mean([chances[number, at, ids[number, at + 1]] for at in range(count - 1)])
        assert row["tokens"] == count - 1
        assert row["loss"] == pytest.approx(expected, rel=1e-4)
        assert row["perplexity"] == pytest.approx(np.exp(expected), rel=1e-3)
    assert "generated" not in rows[0]


def test_generated_text_is_what_the_likeliest_tokens_say(tmp_path: Path) -> None:
    rows = causal(tmp_path, generate=4)
    folder = str(finished("clm", MODEL, layers=1))
    model, tokenizer = loading.load_model(folder, model_files.read(folder)).model, loading.load_tokenizer(folder)
    features = next(iter(reader.open(training.data()).dataset("validation", global_batch_size=80)))
    for number in (0, 7, 33):
        count = int(features["attention_mask"][number].numpy().sum())
        # 16 places, 4 of them for what comes; [SEP] at the end would be the end.
        ids = features["input_ids"][number].numpy()[: count - 1][-12:].tolist()
        start = len(ids)
        for _ in range(4):
            row, mask = np.zeros((1, 16), np.int32), np.zeros((1, 16), np.int32)
            row[0, : len(ids)], mask[0, : len(ids)] = ids, 1
            logits = model(
                {"input_ids": row, "attention_mask": mask, "token_type_ids": row * 0}, training=False
            ).numpy()
            ids.append(int(np.argmax(logits[0, len(ids) - 1])))
            if ids[-1] == 3:
                break
        assert rows[number]["generated"] == tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_joined_rows_are_predicted_record_by_record(tmp_path: Path) -> None:
    data = building.reviews(label_column=None, layout="concat", max_length=16)
    options = {"model": finished("clm", MODEL, layers=1, data=data), "data": data, "split": "validation", "tpu": "none"}
    outcome = done("predict", output=tmp_path / "p.parquet", **options)
    assert "records have tokens of several rows" in outcome.err
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert len(rows) == reader.open(data).num_examples("validation")
    assert {row["row"] for row in rows} == {None}
    assert sum(row["tokens"] for row in rows) > 0


def test_each_question_has_one_answer_whose_characters_are_those_of_the_text(tmp_path: Path) -> None:
    data = training.questions()
    rows = predicted(tmp_path, split="train", model=finished("span", "bert-tiny", data=data), data=data)
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


def test_a_target_is_generated_for_each_row(tmp_path: Path) -> None:
    data = training.translations()
    folder = finished("seq2seq", "t5-tiny", data=data, layers=1)
    rows = predicted(tmp_path, split="train", model=folder, data=data)
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert all(isinstance(row["generated"], str) and row["target"] for row in rows)
    opened = reader.open(data)
    model = loading.load_model(str(folder), model_files.read(str(folder))).model
    batch = next(iter(opened.dataset("train", global_batch_size=2, objective=objectives.seq2seq(), training=False)))
    inputs = {name: values.numpy() for name, values in batch[0].items()}
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
    data = training.tags()
    rows = predicted(tmp_path, split="train", model=finished("tokens", "bert-tiny", data=data, layers=1), data=data)
    with open(building.REPOSITORY / "examples" / "tags" / "train.jsonl", encoding="utf-8") as file:
        source = [json.loads(line) for line in file]
    assert [row["row"] for row in rows] == list(range(len(source)))
    spelt = 0
    for row, expected in zip(rows, source, strict=True):
        assert row["labels"] == expected["tags"]
        assert len(row["words"]) == len(row["predictions"]) == len(row["scores"]) == len(expected["tokens"])
        # The tokenizer knows few of these words, in lower case, and maps the others to [UNK].
        spelt += sum(word == token.lower() for word, token in zip(row["words"], expected["tokens"], strict=True))
    assert spelt > 0.5 * sum(len(row["words"]) for row in rows)
