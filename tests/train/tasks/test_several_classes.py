"""Rows of several classes each: the loss, the metrics, the training, its predictions and its export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics
import tensorflow as tf

from pipelines.train import tasks
from pipelines.train.config import TrainConfig
from pipelines.train.metrics.evaluation import Evaluated
from tests.tfrecord_io.conftest import PAD_SCHEMA, WriteDataset, make_manifest, pad_rows, write_dataset
from tests.train import training
from tests.train.finished import command
from tfrecord_io.schema import Feature, Schema

__all__ = ["write_dataset"]  # a fixture

CLASSES = 3
MULTI_HOT = Schema(
    tuple(
        Feature(name="label", dtype="int64", shape=(CLASSES,), role="label") if each.role == "label" else each
        for each in PAD_SCHEMA.features
    )
)


def labelled(num_rows: int, *, first: int = 0) -> dict[str, np.ndarray]:
    """Rows whose classes are: short, long, both for a length between; class 2 for none."""
    rows = pad_rows(num_rows, first=first)
    tokens = rows["attention_mask"].sum(axis=1)
    return {**rows, "label": np.stack([tokens <= 5, tokens >= 5, np.zeros(num_rows, bool)], axis=1).astype(np.int64)}


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
def test_a_model_learns_several_classes_and_predicts_lists_of_them(tmp_path: Path, write_dataset: WriteDataset) -> None:
    data = write_dataset({"train": [labelled(240)], "validation": [labelled(45, first=240)]}, schema=MULTI_HOT)
    model = tmp_path / "model"
    outcome = training.command(model, data=data, model="bert-tiny", steps=120, log_every=40, global_batch_size=32)
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    assert found["micro_f1"] > 0.8
    predicted = command(
        "predict", model=model, data=data, split="validation", output=tmp_path / "p.parquet", tpu="none"
    )
    assert predicted.status == 0, predicted.err
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert all(row["prediction"] == [str(c) for c, p in enumerate(row["probabilities"]) if p > 0.5] for row in rows)
    pairs = [[[str(c) in row[name] for c in range(CLASSES)] for row in rows] for name in ("label", "prediction")]
    again = sklearn.metrics.f1_score(*map(np.array, pairs), average="macro", zero_division=0.0)
    assert found["macro_f1"] == pytest.approx(again, abs=1e-6)
