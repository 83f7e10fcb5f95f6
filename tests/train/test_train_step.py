"""A step's cost and its sums: what is computed over the vocabulary, and what a user's model may leave undone."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.train import tasks
from pipelines.train.on_tensorflow.replica_step import ReplicaStep
from tests.train import training
from tests.train.stepping import prepared
from tfrecord_io import objectives, reader
from tfrecord_io.reader import Data

pytestmark = pytest.mark.slow

BATCH, LENGTH = 4, 16
P = 3  # 15 % of 16 are 2.4


@pytest.fixture(scope="module")
def data() -> Data:
    """The reviews."""
    return reader.open(training.data())


def wide_results(replica_step: ReplicaStep, batch: Any, *, vocab_size: int) -> list[tuple[str, str, int]]:
    """Operation, dtype and number of positions of all that a step computes for each position and vocabulary entry.
    Reshaping copies nothing; what has as many rows as the model is wide belongs to the weights.
    """
    graph = tf.function(replica_step.train).get_concrete_function(batch).graph.as_graph_def(add_shapes=True)
    found = []
    for node in (node for function in graph.library.function for node in function.node_def):
        for shape in node.attr["_output_shapes"].list.shape:
            sizes = [each.size for each in shape.dim]
            rows = int(np.prod(sizes[:-1]))
            if node.op != "Reshape" and sizes[-1:] == [vocab_size] and rows in (BATCH * P, BATCH * LENGTH):
                kind = node.attr["DstT" if node.op == "Cast" else "T"].type
                found.append((node.op, tf.as_dtype(kind).name, rows))
    return found


def test_masked_lm_computes_logits_only_where_it_predicts(data: Data) -> None:
    replica_step, batch = prepared(data, task="mlm", model="bert-tiny")
    found = wide_results(replica_step, batch, vocab_size=data.manifest.tokenizer.vocab_size)
    assert {rows for _, _, rows in found} == {BATCH * P}


def test_causal_lm_has_one_copy_of_the_logits_in_float32(data: Data) -> None:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        replica_step, batch = prepared(data, task="clm", model="gpt2-tiny")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    found = wide_results(replica_step, batch, vocab_size=data.manifest.tokenizer.vocab_size)
    wide = [op for op, dtype, rows in found if dtype == "float32" and rows == BATCH * LENGTH]
    # The logits, each loss' gradient to them, and that times the gradient to the loss.
    assert sorted(wide) == ["Cast", "Mul", "SparseSoftmaxCrossEntropyWithLogits"]


def test_a_model_that_computes_all_logits_has_the_same_sums(data: Data) -> None:
    everywhere, batch = prepared(data, task="mlm", model="tests.train.small:everywhere")
    at_positions, _ = prepared(data, task="mlm", model="tests.train.small:at_positions")
    assert everywhere.model.output_shape[1:] != at_positions.model.output_shape[1:]
    at_positions.model.set_weights(everywhere.model.get_weights())
    (one, _), (other, _) = everywhere.evaluate(batch), at_positions.evaluate(batch)
    assert one.keys() == other.keys() == {"loss", "weight", "hits"}
    np.testing.assert_allclose([one[name] for name in one], [other[name] for name in one], rtol=1e-5)
    np.testing.assert_allclose(everywhere.train(batch), at_positions.train(batch), rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 7)])
def test_smoothed_losses_are_the_cross_entropy_with_smoothed_targets(shape: tuple[int, ...]) -> None:
    draws = np.random.default_rng(0)
    logits, labels = draws.normal(size=shape).astype(np.float32), draws.integers(0, shape[-1], shape[:-1])
    task = tasks.BoundTask(
        name="classify", num_outputs=shape[-1], per_token=False, regression=False, label_smoothing=0.1,
        objective=objectives.classification(),
    )  # fmt: skip
    targets = np.eye(shape[-1])[labels] * 0.9 + 0.1 / shape[-1]
    expected = -(targets * (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))).sum(axis=-1)
    found = task.losses(tf.constant(logits), tf.constant(labels, tf.int32), smoothing=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
