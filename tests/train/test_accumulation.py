"""A step in parts: the sums are those of the whole, whatever a part's share of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.train import training
from tests.train.stepping import prepared
from tfrecord_io import reader
from tfrecord_io.reader import Data

pytestmark = pytest.mark.slow

ROWS = 8


@pytest.fixture(scope="module")
def data() -> Data:
    """The reviews."""
    return reader.open(training.data())


def after_two_steps(data: Data, **changes: Any) -> tuple[list[float], list[np.ndarray]]:
    """Losses, and all weights."""
    replica_step, batch = prepared(data, batch_size=ROWS, **changes)
    losses = [float(replica_step.train(batch)) for _ in range(2)]
    return losses, replica_step.model.get_weights()


@pytest.mark.parametrize(("task", "model"), [("mlm", "bert-tiny"), ("clm", "gpt2-tiny")])
def test_parts_add_up_to_the_whole(data: Data, task: str, model: str) -> None:
    # Rows of 3 to 16 tokens: the weights of the parts differ.
    options = {"task": task, "model": model, "dropout": 0.0}
    (losses, weights), (expected_losses, expected) = (
        after_two_steps(data, **options, accumulate=parts) for parts in (4, 1)
    )
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for got, wanted in zip(weights, expected, strict=True):
        # A step of AdamW is as long for a gradient of 1e-7 as for one of 1: rounding shows there.
        np.testing.assert_allclose(got, wanted, atol=2e-4)


def test_parts_draw_masks_of_their_own(data: Data) -> None:
    replica_step, batch = prepared(data, batch_size=2, task="classify", model="tests.train.small:bag", accumulate=2)
    twice = tf.nest.map_structure(lambda values: tf.repeat(values[:1], 2, axis=0), batch)
    alike, _ = prepared(data, batch_size=1, task="classify", model="tests.train.small:bag")
    alone = float(alike.train(tf.nest.map_structure(lambda values: values[:1], batch)))
    assert float(replica_step.train(twice)) != pytest.approx(alone, abs=1e-6), "one mask for both would be that loss"


@pytest.mark.parametrize(("parts", "variance"), [(1, 0.99), (2, 0.99**2)])
def test_a_running_variance_goes_from_part_to_part(data: Data, parts: int, variance: float) -> None:
    step, batch = prepared(data, task="classify", model="tests.train.small:normed", accumulate=parts)
    step.train(batch)
    # It begins at 1 and takes 1 % of what it sees, which is near 0 in a fresh model.
    [found] = [each.numpy() for each in step.model.variables if each.name == "moving_variance"]
    np.testing.assert_allclose(found, variance, atol=1e-3)


def test_a_batch_that_does_not_divide_leads_to_one_that_does(tmp_path: Any) -> None:
    cause, remedy = training.command(tmp_path, accumulate=5).error
    assert cause.startswith("--global-batch-size 16 on 1 replicas with --accumulate 5, expected a multiple of 5")
    assert remedy == "give --global-batch-size 15 or 20"
