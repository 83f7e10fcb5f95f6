"""The random numbers of the input are those of `tf.random` with Philox."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfrecord_io.input_pipeline import input_records

SEEDS = [(0, 0, ()), (7, 1, (3,)), (2**63 - 1, 4, (0, 2**40)), (-(2**63), 2, (1, 2, 3))]


@pytest.mark.parametrize(("seed", "purpose", "positions"), SEEDS)
def test_a_stream_is_what_tensorflow_folds_in(seed: int, purpose: int, positions: tuple[int, ...]) -> None:
    expected = tf.constant([seed, purpose], tf.int64)
    for position in positions:
        expected = tf.random.experimental.stateless_fold_in(expected, tf.constant(position, tf.int64), alg="philox")
    np.testing.assert_array_equal(input_records.random_stream(seed, purpose, *positions), expected)


def test_a_stream_is_the_same_in_a_graph() -> None:
    in_graph = tf.function(lambda position: input_records.random_stream(7, 1, position))
    np.testing.assert_array_equal(in_graph(tf.constant(3)), input_records.random_stream(7, 1, 3))


@pytest.mark.parametrize("num_rows", [0, 1, 100])
def test_rows_are_permuted_as_tensorflow_shuffles(num_rows: int) -> None:
    values, stream = tf.as_string(tf.range(num_rows)), input_records.random_stream(7, 1, 3)
    expected = tf.random.experimental.stateless_shuffle(values, stream, alg="philox")
    np.testing.assert_array_equal(input_records.permuted(values, stream), expected)
