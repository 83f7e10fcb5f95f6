"""Parts of the input: an interleave that is continued, random streams as TensorFlow's own, and inputs renamed."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import base, host_plan, record_order


def interleaved(
    shards: np.ndarray, first_rows: np.ndarray, *, shard_rows: np.ndarray, cycle_length: int, block_length: int
) -> list[tuple[int, int]]:
    """Return (shard, row) in the order in which TensorFlow interleaves `shards` from their `first_rows` on."""

    def blocks(shard: tf.Tensor, first: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(first, end).map(lambda row: tf.stack([shard, row])).batch(block_length)

    slices = tf.data.Dataset.from_tensor_slices((shards.astype(np.int64), first_rows, shard_rows[shards]))
    order = slices.interleave(blocks, cycle_length=cycle_length, num_parallel_calls=tf.data.AUTOTUNE)
    return [(shard, row) for block in order.as_numpy_iterator() for shard, row in block.tolist()]


@pytest.mark.parametrize("seed", range(6))
def test_an_interleave_continues_at_any_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    least, most = random.choice([0, 1]), random.choice([4, 30])
    shard_rows = np.append(random.integers(least, most, random.integers(1, 12)), 2)
    sizes = {"cycle_length": int(random.integers(1, 14)), "block_length": int(random.integers(1, 6))}
    total = int(shard_rows.sum())
    whole = interleaved(np.arange(len(shard_rows)), np.zeros_like(shard_rows), shard_rows=shard_rows, **sizes)
    assert len(whole) == total
    for row in {0, total - 1, *np.random.default_rng(seed).integers(0, total, 4).tolist()}:
        shards, first_rows, skip = host_plan.resume(shard_rows, **sizes, row=row)
        rest = interleaved(shards, first_rows, shard_rows=shard_rows, **sizes)
        assert rest[skip:] == whole[row:], (shard_rows, sizes, row)
        assert skip < sizes["block_length"]


def test_streams_and_orders_are_philoxs() -> None:
    expected = tf.constant([7, 2], tf.int64)
    for position in (1, 10**9):
        expected = tf.random.experimental.stateless_fold_in(expected, tf.constant(position, tf.int64), alg="philox")
    stream = record_order.random_stream(7, 2, 1, 10**9)
    assert stream.numpy().tolist() == expected.numpy().tolist()
    positions = tf.data.Dataset.from_tensors(10**9)
    (in_graph,) = positions.map(lambda at: record_order.random_stream(7, 2, 1, at))
    assert in_graph.numpy().tolist() == stream.numpy().tolist()
    shuffle = functools.partial(tf.random.experimental.stateless_shuffle, tf.range(99), stream)
    shuffled = (shuffle(alg=alg) for alg in ("philox", "auto_select"))
    assert len({tuple(order.numpy().tolist()) for order in shuffled}) == 1


TOKENS = "input_ids attention_mask token_type_ids"
DECODER = "input_ids attention_mask decoder_input_ids decoder_attention_mask"


def renamed(old: str, names: Any) -> tuple[dict[str, int], int]:
    """Return inputs of these names, numbered by value, under their new names; and the label, 7."""
    columns = {name: [at] for at, name in enumerate(old.split())}
    ((inputs, label),) = base.renamed(tf.data.Dataset.from_tensors((columns, 7)), names)
    return {name: int(value[0]) for name, value in inputs.items()}, int(label)


@pytest.mark.parametrize(
    ("old", "names", "expected"),
    [
        (f"{TOKENS} x masked_positions", "keras-hub", "token_ids:0 padding_mask:1 segment_ids:2 mask_positions:4"),
        (DECODER, "keras-hub", "encoder_token_ids:0 encoder_padding_mask:1 decoder_token_ids:2 decoder_padding_mask:3"),
        (TOKENS, {"attention_mask": "input_mask"}, "input_ids:0 input_mask:1 token_type_ids:2"),
    ],
)
def test_inputs_get_other_names(old: str, names: Any, expected: str) -> None:
    inputs, label = renamed(old, names)
    assert {f"{name}:{value}" for name, value in inputs.items()} == set(expected.split())
    assert label == 7


def test_elements_without_labels_get_other_names() -> None:
    (element,) = base.renamed(tf.data.Dataset.from_tensors({"a": 1, "b": 2}), {"a": "c"})
    assert {name: int(value) for name, value in element.items()} == {"c": 1, "b": 2}


@pytest.mark.parametrize(
    ("old", "names", "cause"),
    [
        (TOKENS, {"ids": "x"}, "no input 'ids'"),
        (TOKENS, {"attention_mask": "input_ids"}, "several inputs get the same name"),
        (f"{TOKENS} segment_ids", "keras-hub", "rows are packed"),
    ],
)
def test_names_that_cannot_be_are_refused(old: str, names: Any, cause: str) -> None:
    with pytest.raises(ReaderError, match=cause):
        renamed(old, names)
