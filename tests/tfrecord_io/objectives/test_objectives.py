"""What each objective makes of a batch, packed rows and conversations too, eagerly and in a `tf.data` graph."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support import objectives as cases
from tests.support.objectives import CHAT_SCHEMA, PACK_SCHEMA, SEED, TOKENIZER, assert_the_graph_gives_the_same, batch
from tests.tfrecord_io import conftest
from tests.tfrecord_io.conftest import CONCAT_SCHEMA, LENGTH, PAD_SCHEMA, WriteDataset, make_manifest, pad_rows
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import Objective
from tfrecord_io.schema import Schema

ON_TOKENS = [
    pytest.param(objectives.masked_lm(0.5), id="masked_lm"),
    pytest.param(objectives.gathered_masked_lm(0.5), id="gathered_masked_lm"),
    pytest.param(objectives.causal_lm(), id="causal_lm"),
]
EVERY_OBJECTIVE = [pytest.param(objectives.classification(), id="classification"), *ON_TOKENS]

Documents = list[list[int]]
documents = st.lists(st.lists(st.integers(5, cases.VOCAB_SIZE - 1), min_size=1, max_size=4), max_size=5).filter(
    lambda made: sum(map(len, made)) <= LENGTH
)


def large_batch(num_rows: int = 4000) -> dict[str, tf.Tensor]:
    return batch(pad_rows(num_rows))


@pytest.mark.parametrize("objective", EVERY_OBJECTIVE)
def test_inputs_are_the_token_features_alone_eagerly_and_in_the_graph(objective: Objective) -> None:
    bound, features = objective.bind(make_manifest()), large_batch(50)
    assert_the_graph_gives_the_same(bound, features)
    inputs, _, expected = bound(features, seed=SEED)
    names = [name for name in inputs if name != objectives.MASKED_POSITIONS]
    assert names == ["input_ids", "attention_mask", "token_type_ids"]
    # Without weights all rows count.
    *_, weights = bound({name: values for name, values in features.items() if name != "example_weight"}, seed=SEED)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize(
    ("schema", "columns", "labels", "weights"),
    [
        pytest.param(
            CONCAT_SCHEMA,
            {"input_ids": [[2, 5, 6, 3, 0, 0], [7, 8, 9, 10, 11, 12]], "attention_mask": [[1] * 4 + [0] * 2, [1] * 6]},
            [[5, 6, 3, 0, 0, 0], [8, 9, 10, 11, 12, 0]],
            [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]],
            id="padding on the right",
        ),
        pytest.param(
            CONCAT_SCHEMA,
            {"input_ids": [[0, 0, 5, 6, 7]], "attention_mask": [[0, 0, 1, 1, 1]]},
            [[0, 5, 6, 7, 0]],
            [[0, 0, 1, 1, 0]],
            id="padding on the left, of which the last predicts nothing",
        ),
        pytest.param(
            CHAT_SCHEMA,
            {"input_ids": [[5, 6, 7, 8, 0]], "attention_mask": [[1, 1, 1, 1, 0]], "loss_mask": [[0, 0, 1, 1, 0]]},
            [[6, 7, 8, 0, 0]],
            [[0, 1, 1, 0, 0]],
            id="a conversation learns what is marked: 7 and 8, from 6 and 7",
        ),
        pytest.param(
            cases.PACKED_CHAT_SCHEMA,
            {
                "input_ids": [[5, 6, 7, 8]],
                "attention_mask": [[1] * 4],
                "loss_mask": [[0, 1, 1, 1]],
                "segment_ids": [[1, 1, 2, 2]],
                "positions": [[0, 1, 0, 1]],
            },
            [[6, 7, 8, 0]],
            [[1, 0, 1, 0]],
            id="packed conversations learn 6 and 8, but not 7, which begins a document",
        ),
    ],
)
def test_causal_labels_are_the_next_tokens(schema: Schema, columns: Any, labels: Any, weights: Any) -> None:
    inputs, next_tokens, counted = objectives.causal_lm().bind(make_manifest(schema))(batch(columns), seed=SEED)
    assert list(inputs) == [name for name in columns if name != "loss_mask"]
    np.testing.assert_array_equal(inputs["input_ids"], columns["input_ids"])
    assert (next_tokens.numpy().tolist(), counted.numpy().tolist()) == (labels, weights)


@pytest.mark.parametrize(
    "objective", [objectives.masked_lm(1.0), objectives.gathered_masked_lm(1.0), objectives.causal_lm()]
)
def test_rows_that_fill_up_a_batch_have_no_token_weight(objective: Objective) -> None:
    features = batch(pad_rows(2), weights=[1.0, 0.0])
    _, _, weights = objective.bind(make_manifest())(features, seed=SEED)
    assert np.sum(weights[0]) > 0
    assert np.sum(weights[1]) == 0


def test_masked_lm_never_chooses_special_tokens_or_padding() -> None:
    features = large_batch()
    _, _, weights = objectives.masked_lm(1.0).bind(make_manifest())(features, seed=SEED)
    ordinary = (features["input_ids"].numpy() > 4) & (features["attention_mask"].numpy() == 1)
    np.testing.assert_array_equal(weights, ordinary)


def test_masked_lm_leaves_padding_alone_where_the_pad_token_is_not_special() -> None:
    manifest = make_manifest(tokenizer=conftest.tokenizer_facts(special_ids=(2, 3, 4), pad_id=9))
    columns = pad_rows(500)
    columns["input_ids"][columns["attention_mask"] == 0] = 9
    _, _, weights = objectives.masked_lm(1.0).bind(manifest)(batch(columns), seed=SEED)
    assert np.sum(weights.numpy()[columns["attention_mask"] == 0]) == 0


def test_masked_lm_rates_are_those_asked_for() -> None:
    features = large_batch(20_000)
    inputs, labels, weights = objectives.masked_lm().bind(make_manifest())(features, seed=SEED)
    chosen, ids, seen = weights.numpy() == 1, labels.numpy(), inputs["input_ids"].numpy()
    assert chosen[seen != ids].all(), "only what is to be predicted is changed"
    candidates = (ids > 4).sum()
    # About 70,000 candidates: four standard deviations are 0.0054 of the rate, and 0.016 and 0.012 of the shares.
    assert chosen.sum() / candidates == pytest.approx(0.15, abs=0.0055)
    assert (seen[chosen] == 4).mean() == pytest.approx(0.8, abs=0.016)
    assert ((seen[chosen] != 4) & (seen[chosen] != ids[chosen])).mean() == pytest.approx(0.1, abs=0.012)
    assert (seen[chosen] == ids[chosen]).mean() == pytest.approx(0.1, abs=0.012)


def test_masked_lm_random_tokens_are_spread_over_the_ordinary_vocabulary() -> None:
    objective = objectives.masked_lm(1.0, mask_share=0.0, random_share=1.0)
    features = large_batch(20_000)
    inputs, _, weights = objective.bind(make_manifest())(features, seed=SEED)
    drawn = inputs["input_ids"].numpy()[weights.numpy() == 1]
    assert set(drawn.tolist()) == set(range(5, 1000))


class TestGathered:
    """Masked LM with labels at P positions of each row."""

    @pytest.mark.parametrize(("probability", "expected"), [(0.01, 1), (0.15, 2), (0.25, 2), (1.0, LENGTH)])
    def test_there_are_so_many_positions_that_none_is_dropped(self, probability: float, expected: int) -> None:
        bound = objectives.gathered_masked_lm(probability).bind(make_manifest())
        inputs, labels, weights = cases.in_tf_data(bound, large_batch(3))
        assert inputs["masked_positions"].shape == labels.shape == weights.shape == (3, expected)
        assert [tensor.dtype for tensor in (inputs["masked_positions"], labels, weights)] == [
            tf.int32, tf.int32, tf.float32
        ]  # fmt: skip

    @pytest.mark.parametrize("probability", [0.3, 1.0])
    def test_a_share_of_the_ordinary_tokens_of_a_row_is_hidden_and_to_be_predicted(self, probability: float) -> None:
        features = large_batch()
        inputs, labels, weights = gathered(probability, features)
        ids, restored = features["input_ids"].numpy(), inputs["input_ids"].numpy().copy()
        assert (restored != ids).any()
        ordinary = (ids > 4) & (features["attention_mask"].numpy() == 1)
        rows, slots = np.nonzero(weights)
        positions = inputs["masked_positions"].numpy()[rows, slots]
        assert ordinary[rows, positions].all()
        restored[rows, positions] = labels.numpy()[rows, slots]
        np.testing.assert_array_equal(restored, ids)
        exact, hidden = probability * ordinary.sum(axis=1), weights.numpy().sum(axis=1)
        assert np.all((hidden >= np.floor(exact)) & (hidden <= np.ceil(exact)))

    def test_every_position_is_chosen_equally_often(self) -> None:
        columns = pad_rows(20_000)
        columns["input_ids"][:], columns["attention_mask"][:] = 9, 1
        inputs, _, weights = gathered(0.25, batch(columns))
        counts = np.bincount(inputs["masked_positions"].numpy()[weights.numpy() == 1], minlength=LENGTH)
        # 40,000 choices of 8 positions: four standard deviations are 265.
        np.testing.assert_allclose(counts, 5000, atol=265)


def gathered(probability: float, features: dict[str, tf.Tensor]) -> Any:
    return objectives.gathered_masked_lm(probability).bind(make_manifest())(features, seed=SEED)


NO_MASK = make_manifest(tokenizer=conftest.tokenizer_facts(mask_id=None))


@pytest.mark.parametrize(
    ("objective", "manifest", "words"),
    [
        (objectives.masked_lm(), NO_MASK, r"mask token.*causal_lm"),
        (objectives.gathered_masked_lm(), NO_MASK, r"mask token.*causal_lm"),
        (
            objectives.gathered_masked_lm(),
            make_manifest(Schema((*PAD_SCHEMA.features, conftest.integers("masked_positions", "column")))),
            "'masked_positions' has a name",
        ),
    ],
)
def test_what_a_dataset_does_not_allow_is_refused(objective: Objective, manifest: Manifest, words: str) -> None:
    with pytest.raises(ReaderError, match=words):
        objective.bind(manifest)


@pytest.mark.parametrize(
    "options",
    [
        {"probability": 0.0},
        {"probability": 1.5},
        {"probability": float("nan")},
        {"mask_share": -0.1},
        {"random_share": 1.1},
        {"mask_share": 0.8, "random_share": 0.3},
    ],
)
def test_masked_lm_refuses_numbers_that_are_no_shares(options: dict[str, float]) -> None:
    with pytest.raises(ReaderError, match="expected"):
        objectives.masked_lm(**options)


def packed(rows: list[Documents]) -> dict[str, np.ndarray]:
    columns = {feature.name: np.zeros((len(rows), LENGTH), np.int64) for feature in cases.PACKED}
    for row, texts in enumerate(rows):
        ids = [token for text in texts for token in text]
        segments = [segment for segment, text in enumerate(texts, 1) for _ in text]
        positions = [place for text in texts for place in range(len(text))]
        for name, values in zip(columns, (ids, segments, positions), strict=True):
            columns[name][row, : len(values)] = values
    return columns


def packed_batch(rows: list[Documents], **more: Any) -> dict[str, tf.Tensor]:
    columns = packed(rows)
    return batch({**columns, "attention_mask": (columns["segment_ids"] > 0).astype(np.int64), **more})


def of_packed(objective: Objective, features: dict[str, tf.Tensor], *, schema: Schema = PACK_SCHEMA) -> Any:
    return objective.bind(make_manifest(schema, tokenizer=TOKENIZER))(features, seed=SEED)


def test_the_reader_makes_the_mask_from_the_segments(write_dataset: WriteDataset) -> None:
    columns = packed([[[5, 6], [7]], [[8] * LENGTH], [[9, 9, 9]]])
    data = reader.open(str(write_dataset({"test": [columns]}, schema=PACK_SCHEMA)))
    element = next(iter(data.dataset("test", global_batch_size=3)))
    assert element["attention_mask"].dtype == tf.int32
    np.testing.assert_array_equal(element["attention_mask"], columns["segment_ids"] > 0)


@pytest.mark.parametrize("objective", ON_TOKENS)
def test_segments_and_positions_are_inputs(objective: Objective) -> None:
    features = packed_batch([[[5, 6], [7]], [[8, 9]]])
    inputs, _, _ = of_packed(objective, features)
    names = [name for name in inputs if name != objectives.MASKED_POSITIONS]
    assert names == ["input_ids", "attention_mask", "segment_ids", "positions"]
    for name in ("attention_mask", "segment_ids", "positions"):
        np.testing.assert_array_equal(inputs[name], features[name])
    assert_the_graph_gives_the_same(objective.bind(make_manifest(PACK_SCHEMA, tokenizer=TOKENIZER)), features)


@pytest.mark.slow
@given(rows=st.lists(documents, min_size=1, max_size=3))
def test_the_steps_of_packed_rows_that_count_are_those_of_the_documents_alone(rows: list[Documents]) -> None:
    features = packed_batch(rows)
    _, labels, weights = of_packed(objectives.causal_lm(), features)
    for row, texts in enumerate(rows):
        counted = weights.numpy()[row] == 1
        seen, predicted = features["input_ids"].numpy()[row][counted], labels.numpy()[row][counted]
        steps = [step for text in texts for step in itertools.pairwise(text)]
        assert list(zip(seen, predicted, strict=True)) == steps
