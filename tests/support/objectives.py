"""Batches and manifests for objectives, and the comparison of the eager result with the graph."""

from typing import Any

import numpy as np
import tensorflow as tf

from tests.tfrecord_io.conftest import IDS, LENGTH, MASK, integers, make_manifest, tokenizer_facts
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import BoundObjective
from tfrecord_io.schema import Schema

SEED = tf.constant([3, 4], tf.int64)
VOCAB_SIZE = 50
TOKENIZER = tokenizer_facts(vocab_size=VOCAB_SIZE)
LOSS_MASK = integers("loss_mask", "loss_mask", LENGTH)
PACKED = (IDS, integers("segment_ids", "segment_ids", LENGTH), integers("positions", "positions", LENGTH))
PACK_SCHEMA, CHAT_SCHEMA = Schema(PACKED), Schema((IDS, MASK, LOSS_MASK))
PACKED_CHAT_SCHEMA = Schema((*PACKED, LOSS_MASK))


def batch(columns: dict[str, Any], weights: list[float] | None = None) -> dict[str, tf.Tensor]:
    """Columns as the reader gives them: int32 or float32, and example weights."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    num_rows = len(next(iter(arrays.values())))
    features = {name: tf.constant(a, tf.float32 if a.dtype.kind == "f" else tf.int32) for name, a in arrays.items()}
    return {**features, "example_weight": tf.constant(weights or [1.0] * num_rows)}


def in_tf_data(bound: BoundObjective, features: dict[str, tf.Tensor]) -> Any:
    """The same batch through a `map` of tf.data, where shapes are known only from the graph."""
    dataset = tf.data.Dataset.from_tensors(features).map(lambda element: bound(element, seed=SEED))
    assert all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))
    return next(iter(dataset))


def assert_the_graph_gives_the_same(bound: BoundObjective, features: dict[str, tf.Tensor]) -> None:
    """Eagerly and in `tf.data`, value by value."""
    eager, graph = bound(features, seed=SEED), in_tf_data(bound, features)
    tf.nest.assert_same_structure(eager, graph)
    for one, other in zip(tf.nest.flatten(eager), tf.nest.flatten(graph), strict=True):
        np.testing.assert_array_equal(one, other)


def random_rows(schema: Schema, num_rows: int = 60, *, left: bool = False) -> dict[str, np.ndarray]:
    """Rows of 0 to L tokens, each of one or more segments; special tokens and EOS are among the ids."""
    rng = np.random.default_rng(3)
    columns: dict[str, np.ndarray] = {}
    for feature in schema.features:
        length = feature.num_values
        mask = np.arange(length) < rng.integers(0, length + 1, (num_rows, 1))
        if feature.role in ("token_ids", "target_ids"):
            columns[feature.name] = rng.integers(0, 40, (num_rows, length))
        elif feature.role == "segment_ids":
            columns[feature.name] = (1 + np.cumsum(rng.random((num_rows, length)) < 0.3, axis=1)) * mask
        elif feature.role == "num_tokens":
            columns[feature.name] = rng.integers(0, LENGTH + 1, num_rows)
        elif "mask" in feature.role:
            columns[feature.name] = (mask[:, ::-1] if left else mask).astype(np.int64)
        else:
            columns[feature.name] = rng.integers(0, 2, (num_rows, *feature.shape))
    return columns


T = 5
TAGS_SCHEMA = Schema(
    (IDS, MASK, integers("tags", "token_labels", LENGTH), integers("tag_mask", "token_label_mask", LENGTH))
)
SEQ2SEQ_SCHEMA = Schema((IDS, MASK, integers("target_ids", "target_ids", T), integers("target_mask", "target_mask", T)))
PAD, EOS = 0, 1
SENTINELS = tuple(range(999, 899, -1))
TOKENIZER = tokenizer_facts(eos_id=EOS, sentinel_ids=SENTINELS)


def manifest_of(length: int) -> Manifest:
    return make_manifest(Schema((IDS, MASK)).with_row_length(length), tokenizer=TOKENIZER)
