"""Objectives whose labels the dataset holds: a class for each token, and where an answer is."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tfrecord_io.conftest import LENGTH, WriteDataset, graph_ops, impure, make_manifest, pad_rows
from tests.tfrecord_io.objectives.test_objectives import SEED, assert_the_graph_gives_the_same, batch, in_tf_data
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.objectives import Objective
from tfrecord_io.schema import Feature, Schema

TOKENS = (
    Feature(name="input_ids", dtype="int64", shape=(LENGTH,), role="token_ids"),
    Feature(name="attention_mask", dtype="int64", shape=(LENGTH,), role="attention_mask"),
)
TAGS_SCHEMA = Schema(
    (
        *TOKENS,
        Feature(name="tags", dtype="int64", shape=(LENGTH,), role="token_labels"),
        Feature(name="tag_mask", dtype="int64", shape=(LENGTH,), role="token_label_mask"),
    )
)
ANSWERS_SCHEMA = Schema(
    (
        *TOKENS,
        Feature(name="start_positions", dtype="int64", shape=(), role="start_position"),
        Feature(name="end_positions", dtype="int64", shape=(), role="end_position"),
    )
)
CASES = [
    pytest.param(objectives.token_classification(), TAGS_SCHEMA, id="token_classification"),
    pytest.param(objectives.span_answers(), ANSWERS_SCHEMA, id="span_answers"),
]


def labelled_rows(num_rows: int) -> dict[str, np.ndarray]:
    """Rows with tags on every other token, and answers."""
    columns = pad_rows(num_rows)
    mask, row = columns["attention_mask"], columns["row"]
    return {
        "input_ids": columns["input_ids"],
        "attention_mask": mask,
        "tags": columns["input_ids"] % 4 * mask,
        "tag_mask": mask * (np.arange(LENGTH) % 2),
        "start_positions": row % 3,
        "end_positions": row % 3 + 1,
    }


@pytest.mark.parametrize(("objective", "schema"), CASES)
def test_eager_and_tf_data_give_the_same(objective: Objective, schema: Schema) -> None:
    bound, features = objective.bind(make_manifest(schema)), batch(labelled_rows(6))
    assert_the_graph_gives_the_same(bound, features)


@pytest.mark.parametrize(("objective", "schema"), CASES)
def test_the_graph_is_pure(objective: Objective, schema: Schema, write_dataset: WriteDataset) -> None:
    columns = {name: column for name, column in labelled_rows(6).items() if name in schema.names}
    data = reader.open(str(write_dataset({"test": [columns]}, schema=schema)))
    dataset = data.dataset("test", global_batch_size=4, objective=objective)
    assert not impure(graph_ops(dataset))
    _, _, last_weights = list(dataset)[-1]
    assert [float(np.sum(weight)) > 0 for weight in last_weights] == [True, True, False, False]


@pytest.mark.parametrize(("objective", "schema"), CASES)
def test_a_dataset_without_the_labels_is_refused(objective: Objective, schema: Schema) -> None:
    for name in schema.names[2:]:
        without = Schema(tuple(feature for feature in schema.features if feature.name != name))
        with pytest.raises(ReaderError, match=rf"no {schema[name].role} among .* --layout"):
            objective.bind(make_manifest(without))


class TestTokenClassification:
    """A class for each token that has one."""

    def test_labels_are_the_tags_and_weights_their_mask(self) -> None:
        features = batch(labelled_rows(5), weights=[1.0, 1.0, 1.0, 0.5, 0.0])
        inputs, labels, weights = objectives.token_classification().bind(make_manifest(TAGS_SCHEMA))(
            features, seed=SEED
        )
        assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)
        assert list(inputs) == ["input_ids", "attention_mask"]
        np.testing.assert_array_equal(labels, features["tags"])
        np.testing.assert_array_equal(weights, features["tag_mask"].numpy() * np.array([[1], [1], [1], [0.5], [0]]))


class TestSpanAnswers:
    """Where an answer begins and ends."""

    def test_labels_are_the_positions_under_the_features_names(self) -> None:
        features = batch(labelled_rows(3), weights=[1.0, 1.0, 0.0])
        _, labels, weights = objectives.span_answers().bind(make_manifest(ANSWERS_SCHEMA))(features, seed=SEED)
        assert {name: label.numpy().tolist() for name, label in labels.items()} == {
            "start_positions": [0, 1, 2],
            "end_positions": [1, 2, 3],
        }
        assert {label.dtype for label in labels.values()} == {tf.int32}
        assert weights.numpy().tolist() == [1, 1, 0]

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["dict", "list"])
    def test_keras_evaluates_a_model_of_two_outputs(self, form: str, write_dataset: WriteDataset) -> None:
        columns = {name: column for name, column in labelled_rows(5).items() if name in ANSWERS_SCHEMA.names}
        data = reader.open(str(write_dataset({"test": [columns]}, schema=ANSWERS_SCHEMA)))
        model = two_outputs(form)
        found = model.evaluate(
            data.dataset("test", global_batch_size=4, objective=objectives.span_answers()), verbose=0, return_dict=True
        )
        # The model is sure of position 1: right for two of the five starts, 0 1 2 0 1, and two of the ends, 1 2 3 1 2.
        assert found["start_positions_accuracy"] == pytest.approx(2 / 5)
        assert found["end_positions_accuracy"] == pytest.approx(2 / 5)


def two_outputs(form: str) -> Any:
    """A model whose two outputs always say position 1."""
    inputs = {name: keras.Input([LENGTH], dtype="int32", name=name) for name in ("input_ids", "attention_mask")}
    always = keras.ops.one_hot(keras.ops.zeros_like(inputs["input_ids"][:, 0]) + 1, LENGTH)
    names = ("start_positions", "end_positions")
    outputs = [keras.layers.Identity(name=name)(always) for name in names]
    model = keras.Model(inputs, outputs if form == "list" else dict(zip(names, outputs, strict=True)))
    accuracy: Any = [["accuracy"], ["accuracy"]] if form == "list" else {name: ["accuracy"] for name in names}
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=accuracy)
    return model


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_row_without_label_has_no_weight_and_a_label_that_every_loss_takes(
    write_dataset: WriteDataset, *, in_graph: bool
) -> None:
    rows = pad_rows(6)
    rows["label"] = np.array([1, -1, 0, -1, -1, 1])
    data = reader.open(write_dataset({"test": [rows]}))
    bound = objectives.classification().bind(dataclasses.replace(data.manifest, label_names=("no", "yes")))
    features = next(iter(data.dataset("test", global_batch_size=8)))
    _, labels, weights = in_tf_data(bound, features) if in_graph else bound(features, seed=SEED)
    np.testing.assert_array_equal(labels, [1, 0, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(weights, [1, 0, 1, 0, 0, 1, 0, 0])


def test_minus_one_is_a_number_like_others_in_regression(write_dataset: WriteDataset) -> None:
    label = Feature(name="label", dtype="float32", shape=(), role="label")
    rows = {**pad_rows(2), "label": np.array([-1.0, 2.0], np.float32)}
    schema = Schema((*TOKENS, label))
    data = reader.open(write_dataset({"test": [{name: rows[name] for name in schema.names}]}, schema=schema))
    batch_of_2 = data.dataset("test", global_batch_size=2, objective=objectives.classification())
    _, labels, weights = next(iter(batch_of_2))
    np.testing.assert_array_equal(labels, [-1.0, 2.0])
    np.testing.assert_array_equal(weights, [1, 1])
