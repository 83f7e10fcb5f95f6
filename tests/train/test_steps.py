"""A step's cost and sums: computation over the vocabulary, gaps in a user's model, and parts."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.train import models, setup, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.on_tensorflow.replica_step import ReplicaStep
from tests.train import training
from tfrecord_io import objectives, reader
from tfrecord_io.reader import Data

pytestmark = pytest.mark.slow

BATCH, LENGTH = 4, 16
P = 3  # 15 % of 16 are 2.4


def prepared(data: Data, *, batch_size: int = 4, **changes: Any) -> tuple[ReplicaStep, Any]:
    """The step of a training run with these options, always with the same weights, and its first batch."""
    options: dict[str, Any] = {"learning_rate": 1e-3, "steps": 10, "weight_decay": 0.0, **changes}
    job = setup.check(TrainConfig(data=data.root, model_dir="unused", tpu="none", **options))
    batches = data.dataset("train", global_batch_size=batch_size, objective=job.task.objective)
    keras.utils.set_random_seed(0)
    built = models.build(job.config, data.manifest, job.task)
    return ReplicaStep(built, job, batch_specs=[batches.element_spec]), next(iter(batches))


@pytest.fixture(scope="module")
def data() -> Data:
    return reader.open(training.data())


def wide_results(replica_step: ReplicaStep, batch: Any, *, vocab_size: int) -> list[tuple[str, str, int]]:
    """Operation, dtype and number of positions of all that a step computes for each position and vocabulary entry.
    Reshaping copies nothing; what has as many rows as the model is wide belongs to the weights.
    """
    graph = tf.function(replica_step.train).get_concrete_function(batch).graph.as_graph_def(add_shapes=True)
    results = []
    for node in (node for function in graph.library.function for node in function.node_def):
        for shape in node.attr["_output_shapes"].list.shape:
            sizes = [dimension.size for dimension in shape.dim]
            rows = int(np.prod(sizes[:-1]))
            if node.op != "Reshape" and sizes[-1:] == [vocab_size] and rows in (BATCH * P, BATCH * LENGTH):
                kind = node.attr["DstT" if node.op == "Cast" else "T"].type
                results.append((node.op, tf.as_dtype(kind).name, rows))
    return results


def test_masked_lm_computes_logits_only_where_it_predicts(data: Data) -> None:
    replica_step, batch = prepared(data, task="mlm", model="bert-tiny")
    results = wide_results(replica_step, batch, vocab_size=data.manifest.tokenizer.vocab_size)
    assert {rows for _, _, rows in results} == {BATCH * P}


def test_causal_lm_has_one_copy_of_the_logits_in_float32(data: Data) -> None:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        replica_step, batch = prepared(data, task="clm", model="gpt2-tiny")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    results = wide_results(replica_step, batch, vocab_size=data.manifest.tokenizer.vocab_size)
    wide = [op for op, dtype, rows in results if dtype == "float32" and rows == BATCH * LENGTH]
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
        name="classify", kind=tasks.TASKS["classify"], num_outputs=shape[-1], label_smoothing=0.1,
        objective=objectives.classification(),
    )  # fmt: skip
    targets = np.eye(shape[-1])[labels] * 0.9 + 0.1 / shape[-1]
    expected = -(targets * (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))).sum(axis=-1)
    losses = task.losses(tf.constant(logits), tf.constant(labels, tf.int32), smoothing=True)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize(("task", "model"), [("mlm", "at_positions"), ("clm", "everywhere")])
def test_parts_add_up_to_the_whole(data: Data, task: str, model: str) -> None:
    # Rows of 3 to 16 tokens: the weights of the parts differ.
    options: Any = {"batch_size": 8, "task": task, "model": f"tests.train.small:{model}"}
    (parts, batch), (whole, _) = (prepared(data, accumulate=parts, **options) for parts in (4, 1))
    for _ in range(2):
        assert float(parts.train(batch)) == pytest.approx(float(whole.train(batch)), rel=1e-5)
    for values, wanted in zip(parts.model.get_weights(), whole.model.get_weights(), strict=True):
        # A step of AdamW is as long for a gradient of 1e-7 as for one of 1: rounding shows there.
        np.testing.assert_allclose(values, wanted, atol=2e-4)


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
    # It begins at 1 and takes 1 % of its input, which is near 0 in a fresh model.
    [running] = [variable.numpy() for variable in step.model.variables if variable.name == "moving_variance"]
    np.testing.assert_allclose(running, variance, atol=1e-3)
