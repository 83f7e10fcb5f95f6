"""What Keras says of an evaluation is the mean over all rows, whatever fills up its last batch."""

import json
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import processes
from tests.tfrecord_io.conftest import WriteDataset, pad_shards
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ReaderError

ROWS, BATCH, CLASSES = 82, 64, 2
BOTH = ["cross_entropy", "accuracy"]


@pytest.fixture(scope="module")
def data(write_dataset: WriteDataset) -> reader.Data:
    return reader.open(write_dataset({"validation": pad_shards(ROWS)}))


def model_of(batches: tf.data.Dataset) -> Any:
    """A model that has learned nothing, compiled as the page says."""
    keras: Any = tf.keras
    keras.utils.set_random_seed(0)
    inputs = {
        name: keras.Input(spec.shape[1:], dtype=spec.dtype, name=name) for name, spec in batches.element_spec[0].items()
    }
    embedded = keras.layers.Embedding(1_000, 8, embeddings_initializer="normal")(inputs["input_ids"])
    logits = keras.layers.Dense(CLASSES, kernel_initializer="normal")(keras.layers.Flatten()(embedded))
    model = keras.Model(inputs, logits)
    model.compile("adam", **objectives.compile_args(batches))
    return model


def softmax_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=-1)) - shifted[np.arange(len(labels)), labels]


@pytest.mark.slow
def test_an_evaluation_is_the_mean_over_all_rows(data: reader.Data) -> None:
    options: dict[str, Any] = {"global_batch_size": BATCH, "objective": objectives.classification()}
    batches = data.dataset("validation", **options)
    model = model_of(batches)
    history = model.fit(
        data.dataset("validation", training=True, **options), steps_per_epoch=2, verbose=0, shuffle=False
    )
    assert np.isfinite(history.history["loss"]).all()
    evaluated = model.evaluate(batches, return_dict=True, verbose=0)
    losses, right, means = [], [], []
    for inputs, labels, weights in batches:
        real = weights.numpy() == 1
        logits, labels = model.predict_on_batch(inputs)[real], labels.numpy()[real]
        losses.append(softmax_losses(logits, labels))
        right.append(logits.argmax(axis=-1) == labels)
        means.append(losses[-1].mean())
    assert [len(part) for part in losses] == [BATCH, ROWS - BATCH]
    assert evaluated["cross_entropy"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-5)
    assert evaluated["accuracy"] == pytest.approx(np.concatenate(right).mean())
    assert evaluated["loss"] == pytest.approx(np.mean(means), rel=1e-5), "no row of weight 0 counts in it either"


@pytest.mark.parametrize(
    ("labels", "weights", "shape", "loss", "metrics"),
    [
        ([[1, 0, 1], [9, 9, 9]], [1.0, 0.0], (2, 3), "binary_crossentropy", BOTH),
        ([0.5, 9.0], [1.0, 0.0], (2, 1), "mean_squared_error", ["squared_error"]),
        ([[1, 3], [3, 3]], [[1.0, 0.0], [0.0, 0.0]], (2, 2, 4), "sparse_categorical_crossentropy", BOTH),
    ],
    ids=["several classes", "regression", "tokens"],
)
def test_losses_fit_labels(labels: Any, weights: Any, shape: tuple[int, ...], loss: str, metrics: list[str]) -> None:
    rows = (tf.zeros([2, 3]), tf.constant(labels), tf.constant(weights))
    arguments = objectives.compile_args(tf.data.Dataset.from_tensors(rows))
    assert arguments["loss"].name == loss
    assert [metric.name for metric in arguments["weighted_metrics"]] == metrics
    logits = tf.random.stateless_normal(shape, seed=(0, 0))
    metric = arguments["weighted_metrics"][0]
    metric.update_state(rows[1], logits, sample_weight=rows[2])
    assert arguments["loss"](rows[1], logits, sample_weight=rows[2]).numpy() == pytest.approx(metric.result().numpy())


def test_every_output_has_its_loss() -> None:
    labels = {"start_positions": tf.zeros([2], tf.int32), "end_positions": tf.zeros([2], tf.int32)}
    arguments = objectives.compile_args(tf.data.Dataset.from_tensors((tf.zeros([2, 3]), labels, tf.ones([2]))))
    assert arguments["loss"].keys() == arguments["weighted_metrics"].keys() == labels.keys()


def test_elements_without_an_objective_are_refused() -> None:
    with pytest.raises(ReaderError, match=r"expected \(inputs, labels, weights\)"):
        objectives.compile_args(tf.data.Dataset.from_tensors({"input_ids": tf.zeros([2, 3])}))


def test_an_objective_that_was_not_called_is_named(data: reader.Data) -> None:
    words = r"objective is causal_lm, expected an objective of .*; call it: objective=objectives\.causal_lm\(\)$"
    with pytest.raises(ReaderError, match=words):
        data.dataset("validation", global_batch_size=2, objective=objectives.causal_lm)


@pytest.mark.slow
def test_replicas_with_fill_rows_alone_leave_the_metric_exact(write_dataset: WriteDataset) -> None:
    """`docs/how-to/read.md` explains the alternative to Keras' `loss`, and which rows of `predict` are real."""
    data = write_dataset({"test": pad_shards(80)})
    ended = processes.run([sys.executable, "-m", "tests.tfrecord_io.objectives.replicas", data])
    assert ended.returncode == 0, ended.stderr
    evaluated = json.loads(ended.stdout.splitlines()[-1])
    assert evaluated["rows"] == 96
    assert evaluated["cross_entropy"] == pytest.approx(evaluated["expected"], rel=1e-5)
    assert evaluated["loss"] < 0.95 * evaluated["expected"]
