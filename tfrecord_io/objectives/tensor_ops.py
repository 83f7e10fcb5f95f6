"""Operations of `base.NumpyOps` on tensors, with random numbers from a stateless seed.

With a seed from `by_row`, a replica's random numbers are a slice of the whole batch's: Philox (Salmon et al., Parallel
Random Numbers, 2011) can start at any multiple of four numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_PHILOX = 1
_AT_A_TIME = 4

# AutoGraph would take 10 ms per function.
in_graph = tf.autograph.experimental.do_not_convert


class TensorOps:
    """Operations of objectives, on tensors [B, n]. `seed`: int64 [2], or the result of `by_row`."""

    maximum, minimum, arange = staticmethod(tf.maximum), staticmethod(tf.minimum), staticmethod(tf.range)
    where, sort = staticmethod(tf.where), staticmethod(tf.sort)
    table = staticmethod(lambda values, indices: tf.gather(tf.constant(values), indices))
    take = staticmethod(lambda values_BW, indices_BL: tf.gather(values_BW, indices_BL, batch_dims=1))
    total = staticmethod(lambda values_BL: tf.reduce_sum(tf.cast(values_BL, tf.int32), axis=1))
    cumsum = staticmethod(lambda values_BL: tf.cumsum(tf.cast(values_BL, tf.int32), axis=1))
    full = staticmethod(lambda width, fill, like: tf.fill([like.shape[0], width], fill))
    concat = staticmethod(lambda parts: tf.concat(parts, axis=1))
    largest = staticmethod(lambda values_BL, count: tf.math.top_k(values_BL, k=count).indices)
    integers = staticmethod(lambda values, like: tf.cast(values, tf.int32))
    floats = staticmethod(lambda values: tf.cast(values, tf.float32))

    def __init__(self, seed: tf.Tensor | None = None) -> None:
        self._seed = seed

    def split(self, count: int) -> list[TensorOps]:
        return [TensorOps(seed) for seed in _split(self._seed, count)]

    def uniform(self, shape: Any) -> Any:
        return _uniform(shape, self._seed)

    ranks = uniform

    def chosen_from(self, values: np.ndarray, shape: Any) -> Any:
        return self.table(values, _uniform(shape, self._seed, maxval=len(values)))

    @staticmethod
    def replaced(values_BW: Any, places_BP: Any, by_BP: Any) -> Any:
        row_BP = tf.broadcast_to(tf.range(places_BP.shape[0])[:, tf.newaxis], places_BP.shape)
        return tf.tensor_scatter_nd_update(values_BW, tf.stack([row_BP, places_BP], axis=-1), by_BP)


def by_row(seed: tf.Tensor, *, first_row: tf.Tensor) -> tf.Tensor:
    """Return a seed, int64 [3], so that a replica's row i gets the random numbers of the global batch's row
    `first_row` + i."""
    return tf.concat([seed, tf.reshape(first_row, [1])], axis=0)


def _split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed[:2], count, alg="philox"))
    return [tf.concat([tf.cast(part, seed.dtype), seed[2:]], axis=0) for part in seeds] if _is_by_row(seed) else seeds


def _uniform(shape: Sequence[int], seed: tf.Tensor, *, maxval: int | None = None) -> tf.Tensor:
    if not _is_by_row(seed):
        if maxval is None:
            return tf.random.stateless_uniform(shape, seed, alg="philox")
        return tf.random.stateless_uniform(shape, seed, maxval=maxval, dtype=tf.int32, alg="philox")
    width = 1 if len(shape) == 1 else shape[1]
    counts = -(-width // _AT_A_TIME)
    key_counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed[:2])
    first = tf.cast(seed[2] * counts, tf.uint64)
    counter = key_counter.counter + tf.stack([first, tf.zeros([], tf.uint64)])
    place: Any = {"key": key_counter.key, "counter": counter, "alg": _PHILOX, "shape": [shape[0], counts * _AT_A_TIME]}
    if maxval is None:
        drawn = tf.raw_ops.StatelessRandomUniformV2(**place)
    else:
        drawn = tf.raw_ops.StatelessRandomUniformIntV2(**place, minval=0, maxval=maxval)
    return tf.reshape(drawn[:, :width], shape)


def _is_by_row(seed: tf.Tensor) -> bool:
    return seed.shape[0] == 3
