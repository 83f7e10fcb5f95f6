"""The optimizer's rule against Keras', and what Keras' does otherwise."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.train.steps import AdamW
from tests.support import pages


def rule(**changes: object) -> AdamW:
    numbers: dict[str, object] = {"rate": 0.1, "warmup": 0, "steps": 20, "decay": 0.1, "clip_norm": 1e9, **changes}
    return AdamW(**numbers)  # type: ignore[arg-type]


def test_the_update_is_that_of_keras_with_the_same_rate() -> None:
    ours, draws = rule(), np.random.default_rng(0)
    start = draws.normal(size=(3, 4)).astype(np.float32)
    variable = keras.Variable(start)
    theirs = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.1, 20), weight_decay=0.1)
    weights, means, squares = [tf.constant(start)], [tf.zeros_like(start)], [tf.zeros_like(start)]
    for step in range(20):
        gradient = draws.normal(size=(3, 4)).astype(np.float32)
        theirs.apply([tf.constant(gradient)], [variable])
        weights, means, squares = ours.update(tf.constant(step), weights, [tf.constant(gradient)], means, squares)
        np.testing.assert_allclose(weights[0], variable.numpy(), rtol=1e-4, atol=1e-5)


def test_the_optimizer_on_the_page_adds_up_gradients_first() -> None:
    [block] = [each for each in pages.blocks("python") if "SummedAdamW" in each.text]
    names: dict[str, Any] = {}
    exec(block.text, names)
    ours, start = rule(clip_norm=1.0, schedule="constant"), np.ones((4, 2), np.float32)
    variable = keras.Variable(start)
    theirs = names["SummedAdamW"](0.1, weight_decay=0.1)
    weights, means, squares = [tf.constant(start)], [tf.zeros_like(start)], [tf.zeros_like(start)]
    for step, scale in enumerate((1.0, 0.1)):  # the first is clipped
        rows = tf.IndexedSlices(tf.constant(scale, shape=(4, 2)), tf.constant([0, 0, 0, 1]), tf.constant([4, 2]))
        theirs.apply([rows], [variable])
        dense = [tf.convert_to_tensor(rows)]
        weights, means, squares = ours.update(tf.constant(step), weights, dense, means, squares)
        np.testing.assert_allclose(weights[0], variable.numpy(), rtol=1e-5)


def test_vectors_are_not_decayed() -> None:
    zero = [tf.zeros([2])]
    weights, _, _ = rule().update(tf.constant(0), [tf.ones([2])], zero, zero, zero)
    np.testing.assert_array_equal(weights[0], [1.0, 1.0])


def test_gradients_are_clipped_by_their_norm_together() -> None:
    zeros = [tf.zeros([1, 1]), tf.zeros([1, 1])]
    gradients = [tf.constant([[3.0]]), tf.constant([[4.0]])]
    _, means, _ = rule(clip_norm=1.0).update(tf.constant(0), zeros, gradients, zeros, zeros)
    np.testing.assert_allclose([float(mean[0, 0]) for mean in means], [0.1 * 0.6, 0.1 * 0.8], rtol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", {0: 0.02, 3: 0.08, 4: 0.1, 12: 0.05, 20: 0.0, 25: 0.0}),
        ("linear", {3: 0.08, 4: 0.1, 12: 0.05, 16: 0.025, 25: 0.0}),
        ("constant", {3: 0.08, 4: 0.1, 19: 0.1, 25: 0.1}),
    ],
)
def test_the_rate_rises_to_the_highest_and_follows_its_schedule(schedule: str, rates: dict[int, float]) -> None:
    ours = rule(warmup=4, schedule=schedule)
    found = {step: float(ours.learning_rate(tf.constant(step))) for step in rates}
    assert found == pytest.approx(rates, abs=1e-7)
