"""Generating the target that a dataset holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tfrecord_io.conftest import (
    LENGTH,
    WriteDataset,
    graph_ops,
    impure,
    make_manifest,
    pad_rows,
    tokenizer_facts,
)
from tests.tfrecord_io.objectives.test_objectives import SEED, assert_the_graph_gives_the_same, batch
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.schema import Feature, Schema

T = 5
SCHEMA = Schema(
    (
        Feature(name="input_ids", dtype="int64", shape=(LENGTH,), role="token_ids"),
        Feature(name="attention_mask", dtype="int64", shape=(LENGTH,), role="attention_mask"),
        Feature(name="target_ids", dtype="int64", shape=(T,), role="target_ids"),
        Feature(name="target_mask", dtype="int64", shape=(T,), role="target_mask"),
    )
)
targets = st.lists(st.lists(st.integers(5, 99), max_size=T), min_size=1, max_size=4)


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
    manifest = make_manifest(SCHEMA, tokenizer=tokenizer_facts(eos_id=1, bos_id=7, pad_id=pad_id))
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


@settings(deadline=None, max_examples=60)
@given(rows=targets, pad_id=st.sampled_from([0, 3]), start=st.sampled_from(["pad", "bos", "eos", "sep", 900]))
def test_decoder_inputs_are_what_shift_tokens_right_of_transformers_gives(
    rows: list[list[int]], pad_id: int, start: Any
) -> None:
    features = seq2seq_batch(rows, pad_id=pad_id)
    inputs, labels, _ = applied(features, pad_id=pad_id, decoder_start_id=start)
    # By its definition: everything moves to the right by one, the last id falls out, the start token comes first.
    expected = np.roll(labels.numpy(), 1, axis=1)
    expected[:, 0] = {"pad": pad_id, "bos": 7, "eos": 1, "sep": 3}.get(start, start)
    np.testing.assert_array_equal(inputs["decoder_input_ids"], expected)


def test_rows_that_fill_up_a_batch_have_no_weight_and_padding_for_a_target(write_dataset: WriteDataset) -> None:
    columns = {name: np.asarray(seq2seq_batch([[11, 12, 9]], pad_id=9)[name], np.int64) for name in SCHEMA.names}
    folder = write_dataset({"test": [columns]}, schema=SCHEMA, tokenizer=tokenizer_facts(pad_id=9))
    dataset = reader.open(str(folder)).dataset("test", global_batch_size=2, objective=objectives.seq2seq())
    assert not impure(graph_ops(dataset))
    inputs, labels, weights = next(iter(dataset))
    assert weights.numpy().tolist() == [[1, 1, 1, 0, 0], [0] * T]
    assert labels.numpy()[1].tolist() == [9] * T
    assert inputs["decoder_input_ids"].numpy()[1].tolist() == [9] * T
    assert inputs["decoder_attention_mask"].numpy()[1].tolist() == [0] * T


def test_eager_and_tf_data_give_the_same() -> None:
    bound = objectives.seq2seq().bind(make_manifest(SCHEMA))
    features = seq2seq_batch([[11, 12], [], [13, 14, 15, 16, 1]])
    assert_the_graph_gives_the_same(bound, features)


class TestRefused:
    """What a dataset, a tokenizer or an option does not allow."""

    @pytest.mark.parametrize("name", ["target_ids", "target_mask"])
    def test_a_dataset_without_targets(self, name: str) -> None:
        without = Schema(tuple(feature for feature in SCHEMA.features if feature.name != name))
        with pytest.raises(ReaderError, match=rf"no {name} among .*--layout seq2seq"):
            objectives.seq2seq().bind(make_manifest(without))

    @pytest.mark.parametrize("start", ["bos", "eos"])
    def test_a_start_token_that_the_tokenizer_does_not_have(self, start: Any) -> None:
        with pytest.raises(ReaderError, match=rf"no {start.upper()} token"):
            objectives.seq2seq(decoder_start_id=start).bind(make_manifest(SCHEMA))

    @pytest.mark.parametrize("start", [-1, 1000, True, "start"])
    def test_a_start_token_that_is_none(self, start: Any) -> None:
        with pytest.raises(ReaderError, match=r"decoder_start_id is .*expected an id"):
            objectives.seq2seq(decoder_start_id=start).bind(make_manifest(SCHEMA))

    @pytest.mark.parametrize("name", ["decoder_input_ids", "decoder_attention_mask"])
    def test_a_feature_of_the_name_of_an_input(self, name: str) -> None:
        taken = Feature(name=name, dtype="int64", shape=(), role="column")
        with pytest.raises(ReaderError, match=f"'{name}' has a name that seq2seq uses"):
            objectives.seq2seq().bind(make_manifest(Schema((*SCHEMA.features, taken))))
