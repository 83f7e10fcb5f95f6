"""Labels that are numbers of rows, or classes of tokens, and rows without a label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from pipelines.train import tasks
from pipelines.train.config import TrainConfig
from tests.tfrecord_io.conftest import PAD_SCHEMA, WriteDataset, make_manifest, pad_rows, write_dataset
from tests.tfrecord_io.objectives.test_objectives_labelled import TAGS_SCHEMA
from tests.train import training
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError
from tfrecord_io.schema import Feature, Schema

__all__ = ["write_dataset"]  # a fixture

NUMBERS = Schema(
    tuple(
        Feature(name="label", dtype="float32", shape=(), role="label") if each.role == "label" else each
        for each in PAD_SCHEMA.features
    )
)


def rated(num_rows: int) -> dict[str, np.ndarray]:
    """Rows whose label is the share of their tokens."""
    rows = pad_rows(num_rows)
    return {**rows, "label": rows["attention_mask"].mean(axis=1).astype(np.float32)}


@pytest.mark.slow
def test_correlations_are_those_of_the_models_predictions(tmp_path: Path, write_dataset: WriteDataset) -> None:
    import keras

    data = write_dataset({"train": [rated(200)], "validation": [rated(45)]}, schema=NUMBERS)
    # 45 rows in batches of 32: the second is filled up with rows that must not count.
    outcome = training.command(tmp_path, data=data, model="bert-tiny", steps=20, global_batch_size=32)
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    model = keras.models.load_model(tmp_path / "model.keras")
    features = next(iter(reader.open(data).dataset("validation", global_batch_size=45)))
    inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    predicted, labels = np.asarray(model(inputs, training=False))[:, 0], features["label"].numpy()
    assert found["pearson"] == pytest.approx(scipy.stats.pearsonr(predicted, labels).statistic, abs=1e-4)
    assert found["spearman"] == pytest.approx(scipy.stats.spearmanr(predicted, labels).statistic, abs=2e-2)
    assert found["mae"] == pytest.approx(np.abs(predicted - labels).mean(), abs=1e-5)


def test_a_row_without_a_label_has_no_weight() -> None:
    config = TrainConfig(data="d", task="classify", model="bert-tiny", num_labels=2)
    task = tasks.bind(config, make_manifest())
    labels, weights = tf.constant([1, -1, 0]), tf.ones([3])
    counted = task.weights(labels, weights)
    np.testing.assert_array_equal(counted, [1, 0, 1])
    sums = task.sums(tf.constant([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]), labels, counted)
    assert np.isfinite(sums["loss"].numpy())
    np.testing.assert_array_equal(sums["counts"], [[1, 1], [1, 1], [1, 1]])


def tagged(num_rows: int) -> dict[str, np.ndarray]:
    """Rows whose tokens have one of three tags, which follows from their ids; special tokens have none."""
    rows = pad_rows(num_rows)
    ids = np.where(rows["input_ids"] > 4, 5 + rows["input_ids"] % 12, rows["input_ids"])
    return {
        "input_ids": ids,
        "attention_mask": rows["attention_mask"],
        "tags": np.where(ids > 4, ids % 3, 0),
        "tag_mask": (ids > 4).astype(np.int64),
    }


def config(**changes: object) -> TrainConfig:
    options: dict[str, object] = {"data": "d", "task": "tokens", "model": "bert-tiny", "model_dir": "m", **changes}
    return TrainConfig(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_labels_of_tokens_are_learned(tmp_path: Path, write_dataset: WriteDataset) -> None:
    data = write_dataset({"train": [tagged(300)], "validation": [tagged(50)]}, schema=TAGS_SCHEMA)
    outcome = training.command(
        tmp_path / "model", data=data, task="tokens", model="bert-tiny", num_labels=3, steps=30, learning_rate=3e-3
    )
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    assert found["accuracy"] > 0.6, "guessing finds a third"
    assert "perplexity" not in found


def test_the_number_of_labels_is_needed_where_they_have_no_names() -> None:
    manifest = make_manifest(TAGS_SCHEMA)
    assert tasks.bind(config(num_labels=3), manifest).num_outputs == 3
    with pytest.raises(ConfigError, match="--num-labels N"):
        tasks.bind(config(), manifest)


def test_a_model_of_another_width_is_refused(tmp_path: Path, write_dataset: WriteDataset) -> None:
    data = write_dataset({"train": [tagged(20)], "validation": [tagged(5)]}, schema=TAGS_SCHEMA)
    outcome = training.command(tmp_path, data=data, task="tokens", model="tests.train.small:everywhere", num_labels=3)
    assert outcome.status == 2
    assert "expected logits [B, L, 3] for --task tokens" in outcome.error[0]
