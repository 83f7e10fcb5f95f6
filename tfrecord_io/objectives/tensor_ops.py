"""The operations of `array_ops` on tensors, eagerly and in a graph, with draws from a stateless seed (see `draws`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.objectives import draws

__all__ = ["TensorOps", "in_graph"]

# Nothing of ours is for AutoGraph to rewrite, which takes about 10 ms for each function.
in_graph = tf.autograph.experimental.do_not_convert


class TensorOps:
    """Operations on tensors [B, n] of int32, float32 and bool; draws need a seed."""

    def __init__(self, seed: tf.Tensor | None = None) -> None:
        self._seed = seed

    def split(self, count: int) -> list[TensorOps]:
        return [TensorOps(seed) for seed in draws.split(self._seed, count)]

    def uniform(self, shape: Any) -> Any:
        return draws.uniform(shape, self._seed)

    ranks = uniform

    def chosen_from(self, values: np.ndarray, shape: Any) -> Any:
        return self.table(values, draws.uniform(shape, self._seed, maxval=len(values)))

    def table(self, values: np.ndarray, indices: Any) -> Any:
        return tf.gather(tf.constant(values), indices)

    def take(self, values_BW: Any, indices_BL: Any) -> Any:
        return tf.gather(values_BW, indices_BL, batch_dims=1)

    def replaced(self, values_BW: Any, places_BP: Any, by_BP: Any) -> Any:
        row_BP = tf.broadcast_to(tf.range(places_BP.shape[0])[:, tf.newaxis], places_BP.shape)
        return tf.tensor_scatter_nd_update(values_BW, tf.stack([row_BP, places_BP], axis=-1), by_BP)

    def where(self, chosen: Any, values: Any, others: Any) -> Any:
        return tf.where(chosen, values, others)

    def maximum(self, values: Any, others: Any) -> Any:
        return tf.maximum(values, others)

    def minimum(self, values: Any, others: Any) -> Any:
        return tf.minimum(values, others)

    def total(self, values_BL: Any) -> Any:
        return tf.reduce_sum(tf.cast(values_BL, tf.int32), axis=1)

    def cumsum(self, values_BL: Any) -> Any:
        return tf.cumsum(tf.cast(values_BL, tf.int32), axis=1)

    def shifted(self, values_BL: Any, fill: int) -> Any:
        return tf.pad(values_BL[:, :-1], [[0, 0], [1, 0]], constant_values=fill)

    def shifted_left(self, values_BL: Any, fill: int) -> Any:
        return tf.pad(values_BL[:, 1:], [[0, 0], [0, 1]], constant_values=fill)

    def full(self, width: int, fill: int, like: Any) -> Any:
        return tf.fill([like.shape[0], width], fill)

    def arange(self, start: int, stop: int) -> Any:
        return tf.range(start, stop)

    def concat(self, parts: Any) -> Any:
        return tf.concat(parts, axis=1)

    def sort(self, values_BL: Any) -> Any:
        return tf.sort(values_BL, axis=1)

    def largest(self, values_BL: Any, count: int) -> Any:
        return tf.math.top_k(values_BL, k=count).indices

    def integers(self, values: Any, like: Any) -> Any:
        del like
        return tf.cast(values, tf.int32)

    def floats(self, values: Any) -> Any:
        return tf.cast(values, tf.float32)

    def ones(self, like: Any) -> Any:
        return tf.ones([like.shape[0]], tf.float32)
