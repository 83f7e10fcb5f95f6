"""Rows of several classes each: the loss, the metrics, the training, its predictions and its export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics
import tensorflow as tf

from pipelines.train import tasks
from pipelines.train.config import TrainConfig
from pipelines.train.metrics.evaluation import Evaluated
from tests import building
from tests.tfrecord_io.conftest import PAD_SCHEMA, make_manifest
from tests.train import training
from tests.train.finished import command
from tfrecord_io.schema import Feature, Schema

CLASSES = 3
MULTI_HOT = Schema(
    tuple(
        Feature(name="label", dtype="int64", shape=(CLASSES,), role="label") if each.role == "label" else each
        for each in PAD_SCHEMA.features
    )
)


def bound(*, label_smoothing: float = 0.0) -> tasks.BoundTask:
    config = TrainConfig(data="d", task="classify", model="bert-tiny", label_smoothing=label_smoothing)
    return tasks.bind(config, make_manifest(MULTI_HOT))


@pytest.mark.parametrize("seed", range(3))
def test_the_metrics_are_those_of_scikit_learn_and_rows_of_weight_0_do_not_count(seed: int) -> None:
    draws = np.random.default_rng(seed)
    labels = (draws.random((40, CLASSES)) < (0.6, 0.2, 0)).astype(np.int32)
    logits = draws.normal(size=(40, CLASSES)).astype(np.float32) - (0, 0, 9)
    logits[30:] = np.nan  # as rows without a token may have
    weights = np.repeat(np.array([1, 0], np.float32), [30, 10])
    task = bound()
    sums = task.sums(tf.constant(logits), tf.constant(labels), tf.constant(weights))
    found = task.metrics(Evaluated(sums={name: each.numpy().astype(float) for name, each in sums.items()}, rows={}))
    actual, predicted = labels[:30], logits[:30] > 0
    for average in ("micro", "macro"):
        expected = sklearn.metrics.f1_score(actual, predicted, average=average, zero_division=0.0)
        assert found[f"{average}_f1"] == pytest.approx(expected)
    exact = sklearn.metrics.log_loss(actual.ravel(), 1 / (1 + np.exp(-logits[:30].astype(float).ravel())))
    assert found["loss"] == pytest.approx(exact, rel=1e-5)


def test_smoothing_moves_targets_towards_a_half() -> None:
    logits, labels = tf.constant([[2.0, -1.0, 0.5]]), tf.constant([[1, 0, 1]])
    expected = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.constant([[0.9, 0.1, 0.9]]), logits=logits)
    smoothed = bound(label_smoothing=0.2).losses(logits, labels, smoothing=True)
    np.testing.assert_allclose(smoothed, tf.reduce_mean(expected, axis=1), rtol=1e-6)


@pytest.mark.slow
def test_a_model_learns_several_classes_predicts_lists_and_is_exported(tmp_path: Path) -> None:
    words = {"good": "praise", "bad": "blame", "long": "length"}
    chosen = [[word for bit, word in enumerate(words) if row >> bit & 1] for row in range(160)]
    rows = [{"text": " ".join(each) or "film", "about": [words[word] for word in each]} for each in chosen]
    source = building.source(tmp_path / "in", train=rows, validation=rows[:45])
    data, model = building.built(source, label_column="about", max_length=8), tmp_path / "model"
    given = {"data": data, "model": "bert-tiny", "pooling": "first", "log_every": 20, "global_batch_size": 32}
    outcome = training.command(model, **given, steps=60, learning_rate=0.003)
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    assert found["micro_f1"] > 0.75
    predicted = command(
        "predict", model=model, data=data, split="validation", output=tmp_path / "p.parquet", tpu="none"
    )
    assert predicted.status == 0, predicted.err
    table = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["label"] for row in table] == [sorted(row["about"]) for row in rows[:45]]
    names = sorted(words.values())
    of_row = [[each for each, p in zip(names, row["probabilities"], strict=True) if p > 0.5] for row in table]
    assert [row["prediction"] for row in table] == of_row
    actual, guessed = ([[each in row[column] for each in names] for row in table] for column in ("label", "prediction"))
    again = sklearn.metrics.f1_score(np.array(actual), np.array(guessed), average="macro", zero_division=0.0)
    assert found["macro_f1"] == pytest.approx(again, abs=1e-6)
    exported = command("export", model=model, output=tmp_path / "hf", format="transformers")
    assert exported.status == 0, exported.err
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["id2label"].values()) == names
