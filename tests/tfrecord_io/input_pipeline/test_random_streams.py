"""Seeds and orders are those of TensorFlow's own functions, by the algorithm that is named: eagerly and in tf.data."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfrecord_io.input_pipeline import input_records


def expected(seed: int, purpose: int, *positions: int) -> tf.Tensor:
    state = tf.constant([seed, purpose], tf.int64)
    for position in positions:
        state = tf.random.experimental.stateless_fold_in(state, tf.constant(position, tf.int64), alg="philox")
    return state


@pytest.mark.parametrize("seed", [0, 7, 2**40, -1])
@pytest.mark.parametrize("positions", [(3,), (1, 2, 10**9), (0, 0)])
def test_a_stream_is_folded_as_by_tensorflow(seed: int, positions: tuple[int, ...]) -> None:
    stream = expected(seed, 2, *positions)
    assert input_records.random_stream(seed, 2, *positions).numpy().tolist() == stream.numpy().tolist()
    in_graph = tf.data.Dataset.from_tensors(positions[-1]).map(
        lambda last: input_records.random_stream(seed, 2, *positions[:-1], last)
    )
    assert next(in_graph.as_numpy_iterator()).tolist() == stream.numpy().tolist()


def test_rows_are_shuffled_as_by_tensorflow() -> None:
    rows, stream = tf.range(1000), expected(7, 1, 5)
    shuffled = tf.random.experimental.stateless_shuffle(rows, stream, alg="philox").numpy().tolist()
    assert input_records.permuted(rows, stream).numpy().tolist() == shuffled
    in_graph = tf.data.Dataset.from_tensors(rows).map(lambda each: input_records.permuted(each, stream))
    assert next(in_graph.as_numpy_iterator()).tolist() == shuffled
