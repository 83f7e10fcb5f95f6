"""The operations of `ordering.array_ops` on tensors: the global order in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["TENSORS"]


class _TensorOps:
    def constant(self, values: np.ndarray) -> tf.Tensor:
        return tf.constant(values, tf.int64)

    def vector(self, values: Any) -> tf.Tensor:
        return tf.reshape(tf.cast(values, tf.int64), [-1])

    def arange(self, start: Any, stop: Any) -> tf.Tensor:
        return tf.range(tf.cast(start, tf.int64), tf.cast(stop, tf.int64))

    def shifted(self, values: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.right_shift(values, tf.constant(bits, tf.int64))

    def minimum(self, first: Any, second: Any) -> tf.Tensor:
        return tf.minimum(tf.cast(first, tf.int64), tf.cast(second, tf.int64))

    def where(self, chosen: tf.Tensor, values: Any, others: Any) -> tf.Tensor:
        return tf.where(chosen, tf.cast(values, tf.int64), tf.cast(others, tf.int64))

    def indices(self, chosen: tf.Tensor) -> tf.Tensor:
        return tf.where(chosen)[:, 0]

    def count(self, chosen: tf.Tensor) -> tf.Tensor:
        return tf.math.count_nonzero(chosen)

    def gather(self, values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, indices)

    def order(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.argsort(keys, stable=True), tf.int64)

    def search(self, ends: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        return tf.searchsorted(ends, values, side="right", out_type=tf.int64)

    def changed(self, turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        # A loop in the graph: its operations are built once, not once for each turn.
        def next_turn(turn: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return turn + 1, *change(turn, left, right)

        begin = (tf.zeros([], tf.int64), left, right)
        return tf.while_loop(lambda turn, *_: turn < turns, next_turn, begin)[1:]

    def changed_below(self, limit: int, change: Callable[[tf.Tensor], tf.Tensor], values: tf.Tensor) -> tf.Tensor:
        def unfinished(pending: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            return tf.reduce_any(pending)

        def changed(pending: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            values = tf.where(pending, change(values), values)
            return values >= limit, values

        _, found = tf.while_loop(unfinished, changed, [tf.ones_like(values, tf.bool), values])
        return found


TENSORS = _TensorOps()
