"""What objectives share: their two interfaces, and the features that they find in a manifest by role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objective_parts.tokens import TokenFeatures, check_free, required

__all__ = [
    "BoundObjective",
    "Objective",
    "TokenFeatures",
    "check_free",
    "example_weights",
    "from_next",
    "replaced",
    "required",
]

# (features, *, seed: int64 [2]) -> (inputs, labels, weights); labels are a tensor, or a dict where there are several
BoundObjective = Callable[..., tuple[dict[str, tf.Tensor], Any, tf.Tensor]]


class Objective(Protocol):
    """What a model is to learn, before it is known from which dataset."""

    def bind(self, manifest: Manifest) -> BoundObjective:
        """The function for batches of this dataset. Raises: ReaderError if the dataset does not allow it."""
        ...


def from_next(values_BL: tf.Tensor, *, fill: int) -> tf.Tensor:
    """Every position gets the value of the next one, the last one gets `fill`."""
    return tf.pad(values_BL[:, 1:], [[0, 0], [0, 1]], constant_values=fill)


def example_weights(features: dict[str, tf.Tensor], *, counts: tf.Tensor) -> tf.Tensor:
    """float32 [B, L]: the rows' weights where `counts` is 1 or True, 0 elsewhere."""
    return tf.cast(counts, tf.float32) * features[input_plan.WEIGHT][:, tf.newaxis]


def replaced(values_BL: tf.Tensor, positions_BP: tf.Tensor, by_BP: tf.Tensor) -> tf.Tensor:
    """The values, with others at some positions, which differ within a row."""
    row_BP = tf.broadcast_to(tf.range(positions_BP.shape[0])[:, tf.newaxis], positions_BP.shape)
    return tf.tensor_scatter_nd_update(values_BL, tf.stack([row_BP, positions_BP], axis=-1), by_BP)
