"""The task `span`: where the answer is, among the tokens of the text."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from pipelines.train import tasks
from pipelines.train.config import TrainConfig
from pipelines.train.tasks.base import BoundTask
from tests.train import training
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError
from tfrecord_io.reader import Data


@pytest.fixture(scope="module")
def data() -> Data:
    """The questions."""
    return reader.open(training.questions())


@pytest.fixture(scope="module")
def task(data: Data) -> BoundTask:
    return tasks.bind(TrainConfig(data=data.root, task="span", model="bert-tiny"), data.manifest)


def test_neither_question_nor_padding_can_be_an_answer(data: Data, task: BoundTask) -> None:
    inputs, labels, _ = next(iter(data.dataset("train", global_batch_size=16, objective=task.objective)))
    logits = task.aligned(tf.zeros([16, data.manifest.row_length, 2]), inputs, taken=inputs).numpy()
    features = next(iter(data.dataset("train", global_batch_size=16)))
    text = (features["char_ends"] > features["char_starts"]).numpy()
    text[:, 0] = True
    np.testing.assert_array_equal(logits[..., 0] == 0, text)
    for row, (first, last) in enumerate(labels.numpy()):
        assert text[row, first], "what is right is never masked"
        assert text[row, last]
    losses = task.losses(tf.constant(logits), labels, smoothing=False).numpy()
    np.testing.assert_allclose(losses, np.log(text.sum(axis=1)), rtol=1e-5)


def test_the_loss_is_the_mean_of_both_ends(task: BoundTask) -> None:
    draws = np.random.default_rng(0)
    logits, labels = draws.normal(size=(3, 9, 2)).astype(np.float32), draws.integers(0, 9, (3, 2))
    shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [-(shares[row, first, 0] + shares[row, last, 1]) / 2 for row, (first, last) in enumerate(labels)]
    found = task.losses(tf.constant(logits), tf.constant(labels, tf.int32), smoothing=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_positions_are_not_smoothed(data: Data) -> None:
    config = TrainConfig(data=data.root, task="span", model="bert-tiny", label_smoothing=0.1)
    with pytest.raises(ConfigError, match="expected labels that are classes"):
        tasks.bind(config, data.manifest)
