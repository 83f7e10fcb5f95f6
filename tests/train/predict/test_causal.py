"""How well a language model knows each row, and how it goes on."""

from __future__ import annotations

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
from tests.train.finished import command, finished
from tfrecord_io import reader

pytestmark = pytest.mark.slow

MODEL = "gpt2-tiny"


def predicted(tmp_path: Path, **options: object) -> list[dict[str, Any]]:
    given = {"model": finished("clm", MODEL), "data": training.data(), "split": "validation", "tpu": "none", **options}
    outcome = command("predict", output=tmp_path / "p.parquet", overwrite=True, **given)
    assert outcome.status == 0, outcome.err
    rows: list[dict[str, Any]] = pq.read_table(tmp_path / "p.parquet").to_pylist()
    return rows


def test_the_loss_of_a_row_is_the_mean_over_its_tokens_given_those_before(tmp_path: Path) -> None:
    rows = sorted(predicted(tmp_path, batch_size=24), key=lambda row: (row["shard"], row["record"]))
    folder = str(finished("clm", MODEL))
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
    rows = sorted(predicted(tmp_path, generate=4), key=lambda row: (row["shard"], row["record"]))
    folder = str(finished("clm", MODEL))
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


def test_a_beam_generates_too(tmp_path: Path) -> None:
    rows = predicted(tmp_path, generate=2, beams=3)
    assert len(rows) == 80
    assert all(isinstance(row["generated"], str) for row in rows)


def test_more_tokens_than_a_row_has_are_refused(tmp_path: Path) -> None:
    outcome = command(
        "predict", model=finished("clm", MODEL), data=training.data(), split="validation", tpu="none",
        output=tmp_path / "p.parquet", generate=16,
    )  # fmt: skip
    assert "rows have 16 tokens, the prompt included" in outcome.error[0]


def test_joined_rows_are_predicted_record_by_record(tmp_path: Path) -> None:
    data = building.reviews(label_column=None, layout="concat", max_length=16)
    given = {"model": finished("clm", MODEL, data=data), "data": data, "split": "validation", "tpu": "none"}
    outcome = command("predict", output=tmp_path / "p.parquet", **given)
    assert outcome.status == 0, outcome.err
    assert "a record has tokens of several rows" in outcome.err
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert len(rows) == reader.open(data).num_examples("validation")
    assert {row["row"] for row in rows} == {None}
    assert sum(row["tokens"] for row in rows) > 0
