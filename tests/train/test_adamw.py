"""The optimizer's rule against optax', which weights decay, and what Keras' does otherwise."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.train.config import TrainConfig
from pipelines.train.models import backbones
from pipelines.train.steps import AdamW, is_decayed
from tests.building import read_manifest, reviews
from tests.support import pages


def rule(**changes: object) -> AdamW:
    numbers: dict[str, object] = {"rate": 0.1, "warmup": 0, "steps": 20, "decay": 0.1, "decayed": (True,)}
    numbers |= {"clip_norm": 1e9, **changes}
    return AdamW(**numbers)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_update_is_that_of_optax_with_the_same_rate() -> None:
    optax = pytest.importorskip("optax")
    # At a rate of 0.1 the rounding of optax' 1 - 0.999**t alone is 1.6e-6.
    ours, draws = rule(rate=0.01, decayed=(True, False), schedule="constant"), np.random.default_rng(0)
    weights = [draws.normal(size=shape).astype(np.float32) for shape in ((3, 4), (2, 5))]
    means, squares = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    reference, theirs = optax.adamw(0.01, weight_decay=0.1, mask=[True, False]), list(weights)
    state = reference.init(theirs)
    for step in range(20):
        # Small values, for which epsilon matters.
        gradients = [(draws.normal(size=weight.shape) * 10.0 ** -(step % 10)).astype(np.float32) for weight in weights]
        changes, state = reference.update(gradients, state, theirs)
        theirs = optax.apply_updates(theirs, changes)
        weights, means, squares = ours.update(tf.constant(step), weights, gradients, means, squares)
        for own, their in zip(weights, theirs, strict=True):
            np.testing.assert_allclose(own, their, rtol=0, atol=1e-6)


def test_the_optimizer_on_the_page_adds_up_gradients_first() -> None:
    [block] = [block for block in pages.blocks("python") if "SummedAdamW" in block.text]
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


@pytest.mark.usefixtures("one_layer")
@pytest.mark.parametrize(("model", "biases"), [("bert-tiny", 3), ("gpt2-tiny", 3), ("t5-tiny", 0), ("bart-tiny", 9)])
def test_biases_and_norms_are_not_decayed(model: str, biases: int) -> None:
    config = TrainConfig(data="unread", task="mlm", model=model, model_dir="unread")
    backbone, _ = backbones.make(config, read_manifest(reviews()))
    left_out = [variable for variable in backbone.trainable_variables if not is_decayed(variable)]
    assert {variable.name for variable in left_out} <= {"bias", "beta", "gamma", "scale", "weight"}
    assert sum(len(variable.shape) > 1 for variable in left_out) == biases
    assert not [variable.path for variable in left_out if variable.name == "weight" and "norm" not in variable.path]
    zero = [tf.zeros([2]), tf.zeros([2])]
    weights, _, _ = rule(decayed=(True, False)).update(tf.constant(0), [tf.ones([2])] * 2, zero, zero, zero)
    np.testing.assert_allclose(weights, [[0.99, 0.99], [1.0, 1.0]])


def test_gradients_are_clipped_by_their_norm_together() -> None:
    zeros = [tf.zeros([1, 1]), tf.zeros([1, 1])]
    gradients = [tf.constant([[3.0]]), tf.constant([[4.0]])]
    _, means, _ = rule(clip_norm=1.0, decayed=(True, True)).update(tf.constant(0), zeros, gradients, zeros, zeros)
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
    by_step = {step: float(ours.learning_rate(tf.constant(step))) for step in rates}
    assert by_step == pytest.approx(rates, abs=1e-7)
