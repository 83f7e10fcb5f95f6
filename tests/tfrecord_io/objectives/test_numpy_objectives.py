"""Objectives in NumPy: equal to the graph's where nothing is left to chance, and as likely where something is."""

import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from tests.support import objectives as cases
from tests.support.objectives import EOS, SEED, SEQ2SEQ_SCHEMA, batch, manifest_of, random_rows
from tests.tfrecord_io.conftest import CONCAT_SCHEMA, make_manifest
from tfrecord_io import objectives
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import spans
from tfrecord_io.objectives.spans import SpanCounts, draw_spans
from tfrecord_io.objectives.tensor_ops import TensorOps

RNG = np.random.default_rng
PACKED_SCHEMAS = (cases.PACK_SCHEMA, cases.CHAT_SCHEMA, cases.PACKED_CHAT_SCHEMA)


def in_graph(objective: Any, manifest: Manifest, columns: dict[str, np.ndarray], **more: Any) -> Any:
    """Return the graph objective's result for the same rows, in the reader's form."""
    features = batch(columns, **more)
    roles = {feature.role: feature.name for feature in manifest.schema.features}
    if "attention_mask" not in roles:
        ids = columns[roles["token_ids"]]
        tokens = columns[roles["segment_ids"]] > 0 if "segment_ids" in roles else None
        mask = np.arange(ids.shape[1]) < columns[roles["num_tokens"]][:, None] if tokens is None else tokens
        features["attention_mask"] = tf.constant(mask, tf.int32)
    return objective.bind(manifest)(features, seed=SEED)


def assert_equal(element: Any, expected: Any) -> None:
    assert list(element[0]) == list(expected[0])
    for name, values in element[0].items():
        np.testing.assert_array_equal(values, expected[0][name], err_msg=name)
    np.testing.assert_array_equal(element[1], expected[1])
    assert element[2].dtype == np.float32
    np.testing.assert_array_equal(element[2], expected[2])


SAME: list[tuple[Any, Manifest]] = [
    (objectives.causal_lm(), make_manifest()),
    (objectives.causal_lm(), make_manifest(CONCAT_SCHEMA)),
    *((objectives.causal_lm(), make_manifest(schema, tokenizer=cases.TOKENIZER)) for schema in PACKED_SCHEMAS),
    *((objectives.seq2seq(decoder_start_id=start), make_manifest(SEQ2SEQ_SCHEMA)) for start in ("pad", "cls", 17)),
]


@pytest.mark.parametrize(("objective", "manifest"), SAME)
@pytest.mark.parametrize("left", [False, True])
def test_what_leaves_nothing_to_chance_is_the_graphs(objective: Any, manifest: Manifest, left: bool) -> None:
    columns = random_rows(manifest.schema, left=left)
    element = objective.bind(manifest)(columns)
    assert element[1].dtype == np.int64
    assert_equal(element, in_graph(objective, manifest, columns))


@pytest.mark.parametrize("left", [False, True])
def test_span_corruption_is_the_graphs_for_the_same_spans(left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn_by_graph(length_B: Any, counts: SpanCounts, ops: Any) -> Any:
        del ops
        first, hidden = draw_spans(tf.constant(length_B, tf.int32), counts, TensorOps(SEED))
        return first.numpy(), hidden.numpy()

    manifest = manifest_of(24)
    columns = random_rows(manifest.schema, 200, left=left)
    columns["input_ids"][::3, -1] = EOS
    options: dict[str, Any] = {"density": 0.3, "mean_span": 2.0}
    expected = in_graph(objectives.span_corruption(**options), manifest, columns)
    monkeypatch.setattr(spans, "draw_spans", drawn_by_graph)
    element = objectives.span_corruption(**options).bind(manifest)(columns, rng=RNG(0))
    assert_equal(element, expected)


@pytest.mark.parametrize("library", [tf.constant, jnp.asarray, np.asarray], ids=["tensorflow", "jax", "numpy"])
def test_the_attention_mask_of_segments_is_that_of_the_docstring_in_every_library(library: Any) -> None:
    causal, both_ways = (
        np.asarray(objectives.segment_attention_mask(library([[1, 1, 2, 0]]), causal=is_causal))
        for is_causal in (True, False)
    )
    assert causal.dtype == both_ways.dtype == np.bool_
    assert causal[0].astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert both_ways[0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


BOUND = [
    pytest.param(objectives.masked_lm(), make_manifest(), id="masked_lm"),
    pytest.param(objectives.causal_lm(), make_manifest(), id="causal_lm"),
    pytest.param(objectives.span_corruption(), manifest_of(24), id="span_corruption"),
    pytest.param(objectives.seq2seq(), make_manifest(SEQ2SEQ_SCHEMA), id="seq2seq"),
]


@pytest.mark.parametrize(("objective", "manifest"), BOUND)
def test_the_same_generator_gives_the_same(objective: Any, manifest: Manifest) -> None:
    bound = objective.bind(manifest)
    columns, before = random_rows(manifest.schema), random_rows(manifest.schema)
    element = bound(columns, rng=RNG(5))
    assert list(columns) == list(before)
    for name, values in before.items():
        np.testing.assert_array_equal(columns[name], values, err_msg="features are left as they were")
    assert_equal(element, bound.with_rng(columns, RNG(5)))
    assert_equal(element, pickle.loads(pickle.dumps(bound))(columns, rng=RNG(5)))


@pytest.mark.parametrize(("objective", "manifest"), BOUND)
def test_a_row_without_batch_gives_what_a_batch_of_one_gives(objective: Any, manifest: Manifest) -> None:
    bound = objective.bind(manifest)
    columns = random_rows(manifest.schema)
    single = bound({name: values[7] for name, values in columns.items()}, rng=RNG(5))
    stacked = bound({name: values[7:8] for name, values in columns.items()}, rng=RNG(5))
    assert_equal(
        ({name: values[np.newaxis] for name, values in single[0].items()}, single[1][None], single[2][None]), stacked
    )
