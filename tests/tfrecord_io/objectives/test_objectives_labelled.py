"""Objectives with labels from the dataset: a class per row or token, the position of an answer, and a target."""

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support import objectives as cases
from tests.support.objectives import SEED, SEQ2SEQ_SCHEMA, TAGS_SCHEMA, T, assert_the_graph_gives_the_same, batch
from tests.tfrecord_io import conftest
from tests.tfrecord_io.conftest import IDS, LENGTH, MASK, WriteDataset, integers, make_manifest, pad_rows
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import LabelRange, Split
from tfrecord_io.objectives import Objective
from tfrecord_io.schema import Feature, Schema

ANSWERS_SCHEMA = Schema(
    (IDS, MASK, integers("start_positions", "start_position"), integers("end_positions", "end_position"))
)
CASES = [
    pytest.param(objectives.token_classification(), TAGS_SCHEMA, id="token_classification"),
    pytest.param(objectives.span_answers(), ANSWERS_SCHEMA, id="span_answers"),
    pytest.param(objectives.seq2seq(), SEQ2SEQ_SCHEMA, id="seq2seq"),
]
SPANS = objectives.span_corruption(0.5, 1.0, sentinel_ids=range(900, 910), eos_id=1)
targets = st.lists(st.lists(st.integers(5, 99), max_size=T), min_size=1, max_size=4)


@pytest.mark.parametrize(("objective", "schema"), [*CASES, pytest.param(SPANS, Schema((IDS, MASK)), id="spans")])
def test_a_pure_graph_gives_the_same(objective: Objective, schema: Schema, write_dataset: WriteDataset) -> None:
    columns = cases.random_rows(schema, 6)
    assert_the_graph_gives_the_same(objective.bind(make_manifest(schema)), batch(columns))
    data = reader.open(str(write_dataset({"test": [columns]}, schema=schema)))
    dataset = data.dataset("test", global_batch_size=4, objective=objective)
    assert not conftest.impure(conftest.graph_ops(dataset))
    _, _, last_weights = list(dataset)[-1]
    assert [float(np.sum(weight)) > 0 for weight in last_weights] == [True, True, False, False]


@pytest.mark.parametrize(("objective", "schema"), CASES)
def test_a_dataset_without_the_labels_is_refused(objective: Objective, schema: Schema) -> None:
    for name in schema.names[2:]:
        without = Schema(tuple(feature for feature in schema.features if feature.name != name))
        with pytest.raises(ReaderError, match=rf"needs a feature of role {schema[name].role}, .* --layout"):
            objective.bind(make_manifest(without))


def test_labels_are_the_tags_and_weights_their_mask() -> None:
    features = batch(cases.random_rows(TAGS_SCHEMA, 5), weights=[1.0, 1.0, 1.0, 0.5, 0.0])
    bound = objectives.token_classification().bind(make_manifest(TAGS_SCHEMA))
    inputs, labels, weights = bound(features, seed=SEED)
    assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)
    assert list(inputs) == ["input_ids", "attention_mask"]
    np.testing.assert_array_equal(labels, features["tags"])
    np.testing.assert_array_equal(weights, features["tag_mask"].numpy() * np.array([[1], [1], [1], [0.5], [0]]))


class TestSpanAnswers:
    def test_labels_are_the_positions_under_the_features_names(self) -> None:
        ends = {"start_positions": [0, 1, 2], "end_positions": [1, 2, 3]}
        features = batch({**cases.random_rows(ANSWERS_SCHEMA, 3), **ends}, weights=[1.0, 1.0, 0.0])
        _, labels, weights = objectives.span_answers().bind(make_manifest(ANSWERS_SCHEMA))(features, seed=SEED)
        assert {name: label.numpy().tolist() for name, label in labels.items()} == ends
        assert {label.dtype for label in labels.values()} == {tf.int32}
        assert weights.numpy().tolist() == [1, 1, 0]

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["dict", "list"])
    def test_keras_evaluates_a_model_of_two_outputs(self, form: str, write_dataset: WriteDataset) -> None:
        ends = {"start_positions": np.array([0, 1, 2, 0, 1]), "end_positions": np.array([1, 2, 3, 1, 2])}
        columns = {**cases.random_rows(ANSWERS_SCHEMA, 5), **ends}
        data = reader.open(str(write_dataset({"test": [columns]}, schema=ANSWERS_SCHEMA)))
        model = two_outputs(form)
        metrics = model.evaluate(
            data.dataset("test", global_batch_size=4, objective=objectives.span_answers()), verbose=0, return_dict=True
        )
        # The model is sure of position 1: right for two of the five starts, and two of the ends.
        assert metrics["start_positions_accuracy"] == pytest.approx(2 / 5)
        assert metrics["end_positions_accuracy"] == pytest.approx(2 / 5)


def two_outputs(form: str) -> Any:
    inputs = {name: keras.Input([LENGTH], dtype="int32", name=name) for name in ("input_ids", "attention_mask")}
    always = keras.ops.one_hot(keras.ops.zeros_like(inputs["input_ids"][:, 0]) + 1, LENGTH)
    names = ("start_positions", "end_positions")
    outputs = [keras.layers.Identity(name=name)(always) for name in names]
    model = keras.Model(inputs, outputs if form == "list" else dict(zip(names, outputs, strict=True)))
    accuracy: Any = [["accuracy"], ["accuracy"]] if form == "list" else {name: ["accuracy"] for name in names}
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=accuracy)
    return model


def test_a_row_without_label_has_no_weight_and_a_label_that_every_loss_takes() -> None:
    features = batch({**pad_rows(6), "label": [1, -1, 0, -1, -1, 1]}, weights=[1, 1, 1, 1, 1, 0])
    bound = objectives.classification().bind(make_manifest(label_names=("no", "yes")))
    assert_the_graph_gives_the_same(bound, features)
    _, labels, weights = bound(features, seed=SEED)
    np.testing.assert_array_equal(labels, [1, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(weights, [1, 0, 1, 0, 0, 0])


def test_minus_one_is_a_number_like_others_in_regression() -> None:
    label = Feature(name="label", dtype="float32", shape=(), role="label")
    features = batch({**pad_rows(2), "label": np.array([-1.0, 2.0], np.float32)})
    _, labels, weights = objectives.classification().bind(make_manifest(Schema((IDS, MASK, label))))(
        features, seed=SEED
    )
    np.testing.assert_array_equal(labels, [-1.0, 2.0])
    np.testing.assert_array_equal(weights, [1, 1])


@pytest.mark.parametrize(
    ("ranges", "num_labels", "words"),
    [
        ([(1, 5, 5)], None, "5 values from 1 to 5, classification expects 0 to 4"),
        ([(0, 4, 3)], None, "3 values from 0 to 4, classification expects 0 to 2"),
        ([(0, 4, 5), (2, 3, 2)], None, ""),
        ([(0, 2, 3), (3, 4, 2)], None, ""),  # together possibly all of them
        ([(1, 5, 5)], 6, ""),
        ([(1, 5, 5)], 5, "expects 0 to 4"),
        ([(-1, 1, 2)], 3, "expects 0 to 2"),
        ([], None, ""),
    ],
)
def test_numbers_that_are_no_class_ids_are_refused(ranges: list[Any], num_labels: int | None, words: str) -> None:
    splits = {
        f"split{at}": Split(shards=(), labels=LabelRange(smallest=low, largest=high, distinct=distinct))
        for at, (low, high, distinct) in enumerate(ranges)
    }
    refused = pytest.raises(ReaderError, match=words) if words else contextlib.nullcontext()
    with refused:
        objectives.classification(num_labels=num_labels).bind(make_manifest(splits=splits))


def seq2seq_batch(rows: list[list[int]], *, pad_id: int = 0, left: bool = False) -> dict[str, tf.Tensor]:
    """Rows with these targets, padded to T."""
    source = pad_rows(len(rows))
    ids, mask = np.full((len(rows), T), pad_id), np.zeros((len(rows), T), np.int64)
    for row, target in enumerate(rows):
        place = slice(T - len(target), T) if left else slice(0, len(target))
        ids[row, place], mask[row, place] = target, 1
    tokens = {name: source[name] for name in ("input_ids", "attention_mask")}
    return batch({**tokens, "target_ids": ids, "target_mask": mask})


def applied(features: dict[str, tf.Tensor], *, pad_id: int = 0, **options: Any) -> Any:
    manifest = make_manifest(SEQ2SEQ_SCHEMA, tokenizer=conftest.tokenizer_facts(eos_id=1, bos_id=7, pad_id=pad_id))
    return objectives.seq2seq(**options).bind(manifest)(features, seed=SEED)


def test_the_worked_example() -> None:
    features = seq2seq_batch([[11, 12, 11, 1]])
    inputs, labels, weights = applied(features)
    assert list(inputs) == ["input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"]
    assert inputs["decoder_input_ids"].numpy().tolist() == [[0, 11, 12, 11, 1]]
    assert inputs["decoder_attention_mask"].numpy().tolist() == [[1, 1, 1, 1, 1]]
    assert labels.numpy().tolist() == [[11, 12, 11, 1, 0]]
    assert weights.numpy().tolist() == [[1, 1, 1, 1, 0]]
    assert {value.dtype for value in (*inputs.values(), labels)} == {tf.int32}


@given(rows=targets, pad_id=st.sampled_from([0, 3]), start=st.sampled_from(["pad", "bos", "eos", "sep", 900]))
def test_decoder_inputs_equal_transformers_shift_tokens_right(rows: list[list[int]], pad_id: int, start: Any) -> None:
    features = seq2seq_batch(rows, pad_id=pad_id)
    inputs, labels, _ = applied(features, pad_id=pad_id, decoder_start_id=start)
    # By its definition: everything moves to the right by one, the last id falls out, the start token comes first.
    expected = np.roll(labels.numpy(), 1, axis=1)
    expected[:, 0] = {"pad": pad_id, "bos": 7, "eos": 1, "sep": 3}.get(start, start)
    np.testing.assert_array_equal(inputs["decoder_input_ids"], expected)


def test_rows_that_fill_up_a_batch_have_no_weight_and_padding_for_a_target(write_dataset: WriteDataset) -> None:
    columns = {name: seq2seq_batch([[11, 12, 9]], pad_id=9)[name].numpy().astype(int) for name in SEQ2SEQ_SCHEMA.names}
    folder = write_dataset({"test": [columns]}, schema=SEQ2SEQ_SCHEMA, tokenizer=conftest.tokenizer_facts(pad_id=9))
    dataset = reader.open(str(folder)).dataset("test", global_batch_size=2, objective=objectives.seq2seq())
    inputs, labels, weights = next(iter(dataset))
    assert weights.numpy().tolist() == [[1, 1, 1, 0, 0], [0] * T]
    assert labels.numpy()[1].tolist() == [9] * T
    assert inputs["decoder_input_ids"].numpy()[1].tolist() == [9] * T
    assert inputs["decoder_attention_mask"].numpy()[1].tolist() == [0] * T


@pytest.mark.parametrize("start", ["eos", -1, 1000, True, "start"])
def test_a_start_token_that_is_none_or_that_the_tokenizer_does_not_have(start: Any) -> None:
    with pytest.raises(ReaderError, match=r"no EOS token|decoder_start_id is .*expected an id"):
        objectives.seq2seq(decoder_start_id=start).bind(make_manifest(SEQ2SEQ_SCHEMA))


@pytest.mark.parametrize("name", ["decoder_input_ids", "decoder_attention_mask"])
def test_a_feature_of_the_name_of_a_decoders_input(name: str) -> None:
    taken = Schema((*SEQ2SEQ_SCHEMA.features, integers(name, "column")))
    with pytest.raises(ReaderError, match=f"'{name}' has a name that seq2seq reserves"):
        objectives.seq2seq().bind(make_manifest(taken))
