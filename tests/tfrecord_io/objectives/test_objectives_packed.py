"""Objectives on rows of several documents, and on conversations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tfrecord_io.conftest import IDS, LENGTH, MASK, WriteDataset, integers, make_manifest, tokenizer_facts
from tests.tfrecord_io.objectives.test_objectives import SEED, assert_the_graph_gives_the_same, batch
from tfrecord_io import objectives, reader
from tfrecord_io.objectives import Objective
from tfrecord_io.schema import Schema

VOCAB_SIZE = 50
TOKENIZER = tokenizer_facts(vocab_size=VOCAB_SIZE)


LOSS_MASK = integers("loss_mask", "loss_mask", LENGTH)
PACKED = (IDS, integers("segment_ids", "segment_ids", LENGTH), integers("positions", "positions", LENGTH))
PACK_SCHEMA, CHAT_SCHEMA = Schema(PACKED), Schema((IDS, MASK, LOSS_MASK))
PACKED_CHAT_SCHEMA = Schema((*PACKED, LOSS_MASK))

Documents = list[list[int]]
documents = st.lists(st.lists(st.integers(5, VOCAB_SIZE - 1), min_size=1, max_size=4), max_size=5).filter(
    lambda made: sum(map(len, made)) <= LENGTH
)


def packed(rows: list[Documents]) -> dict[str, np.ndarray]:
    """Rows of these documents, padded on the right."""
    columns = {feature.name: np.zeros((len(rows), LENGTH), np.int64) for feature in PACKED}
    for row, texts in enumerate(rows):
        ids = [token for text in texts for token in text]
        segments = [segment for segment, text in enumerate(texts, 1) for _ in text]
        positions = [place for text in texts for place in range(len(text))]
        for name, values in zip(columns, (ids, segments, positions), strict=True):
            columns[name][row, : len(values)] = values
    return columns


def packed_batch(rows: list[Documents], **more: Any) -> dict[str, tf.Tensor]:
    """As the reader gives it: with the mask that it makes."""
    columns = packed(rows)
    return batch({**columns, "attention_mask": (columns["segment_ids"] > 0).astype(np.int64), **more})


def applied(objective: Objective, features: dict[str, tf.Tensor], *, schema: Schema = PACK_SCHEMA) -> Any:
    return objective.bind(make_manifest(schema, tokenizer=TOKENIZER))(features, seed=SEED)


EVERY_OBJECTIVE = [
    pytest.param(objectives.causal_lm(), id="causal_lm"),
    pytest.param(objectives.masked_lm(0.5), id="masked_lm"),
    pytest.param(objectives.gathered_masked_lm(0.5), id="gathered_masked_lm"),
]


def test_the_reader_makes_the_mask_from_the_segments(write_dataset: WriteDataset) -> None:
    columns = packed([[[5, 6], [7]], [[8] * LENGTH], [[9, 9, 9]]])
    data = reader.open(str(write_dataset({"test": [columns]}, schema=PACK_SCHEMA)))
    element = next(iter(data.dataset("test", global_batch_size=3)))
    assert element["attention_mask"].dtype == tf.int32
    np.testing.assert_array_equal(element["attention_mask"], columns["segment_ids"] > 0)


@pytest.mark.parametrize("objective", EVERY_OBJECTIVE)
def test_segments_and_positions_are_inputs(objective: Objective) -> None:
    features = packed_batch([[[5, 6], [7]], [[8, 9]]])
    inputs, _, _ = applied(objective, features)
    names = [name for name in inputs if name != objectives.MASKED_POSITIONS]
    assert names == ["input_ids", "attention_mask", "segment_ids", "positions"]
    for name in ("attention_mask", "segment_ids", "positions"):
        np.testing.assert_array_equal(inputs[name], features[name])
    assert_the_graph_gives_the_same(objective.bind(make_manifest(PACK_SCHEMA, tokenizer=TOKENIZER)), features)


class TestCausal:
    """Which tokens are predicted."""

    def test_no_token_predicts_another_document(self) -> None:
        _, labels, weights = applied(objectives.causal_lm(), packed_batch([[[5, 6, 7], [8, 9]]]))
        assert labels.numpy().tolist() == [[6, 7, 8, 9, 0, 0, 0, 0]]
        assert weights.numpy().tolist() == [[1, 1, 0, 1, 0, 0, 0, 0]]

    @settings(deadline=None, max_examples=50)
    @given(rows=st.lists(documents, min_size=1, max_size=3))
    def test_the_steps_that_count_are_those_of_the_documents_alone(self, rows: list[Documents]) -> None:
        features = packed_batch(rows)
        _, labels, weights = applied(objectives.causal_lm(), features)
        for row, texts in enumerate(rows):
            counted = weights.numpy()[row] == 1
            seen, predicted = features["input_ids"].numpy()[row][counted], labels.numpy()[row][counted]
            steps = [step for text in texts for step in itertools.pairwise(text)]
            assert list(zip(seen, predicted, strict=True)) == steps

    def test_a_conversation_learns_what_is_marked(self) -> None:
        rows = {"input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]], "attention_mask": [[1] * 5 + [0] * 3]}
        features = batch({**rows, "loss_mask": [[0, 0, 1, 1, 0, 0, 0, 0]]})
        inputs, _, weights = applied(objectives.causal_lm(), features, schema=CHAT_SCHEMA)
        assert weights.numpy().tolist() == [[0, 1, 1, 0, 0, 0, 0, 0]], "7 and 8 are predicted, from 6 and 7"
        assert list(inputs) == ["input_ids", "attention_mask"]

    def test_the_first_token_of_a_packed_conversation_is_not_predicted(self) -> None:
        marked = [[0, 1, 1, 1, 0, 0, 0, 0]]
        features = packed_batch([[[5, 6], [7, 8]]], loss_mask=np.array(marked))
        _, _, weights = applied(objectives.causal_lm(), features, schema=PACKED_CHAT_SCHEMA)
        assert weights.numpy().tolist() == [[1, 0, 1, 0, 0, 0, 0, 0]], "6 and 8, but not 7, which begins a document"


class TestAttentionMask:
    """Who sees whom."""

    def test_the_worked_example(self) -> None:
        segments = tf.constant([[1, 1, 2, 0]])
        mask = objectives.segment_attention_mask(segments, causal=True)
        assert mask.dtype == tf.bool
        assert mask.numpy()[0].astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
        both_ways = objectives.segment_attention_mask(segments, causal=False)
        assert both_ways.numpy()[0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
