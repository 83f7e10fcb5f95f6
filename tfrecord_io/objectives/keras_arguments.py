"""Arguments for Keras' `compile` that ignore rows and positions of weight 0."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrecord_io.errors import ReaderError

if TYPE_CHECKING:
    import tensorflow as tf


def compile_args(dataset: tf.data.Dataset) -> dict[str, Any]:
    """Return `loss` and `weighted_metrics` for `model.compile`, for a model that outputs logits.

        model.compile("adam", **objectives.compile_args(train))

    Integer labels get a cross-entropy, rows of several classes a sigmoid cross-entropy, float labels a squared error
    (of outputs [B, 1]). By default Keras divides a loss by the batch size, which includes rows that only fill up the
    batch. These losses divide by the sum of the weights. The metric (`cross_entropy`, `squared_error`) is the exact
    mean of an evaluation; `loss` is the mean of the batch means.

    Args:
        dataset: the result of `dataset(..., objective=...)`. Needs Keras 3.12 or newer.

    Raises: ReaderError if its elements are not (inputs, labels, weights), or are preference pairs.
    """
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 3:
        raise ReaderError(
            "compile_args: elements without labels and weights, expected (inputs, labels, weights)",
            remedy="give the dataset an objective, as in `objective=objectives.classification()`",
        )
    _, labels, weights = spec
    if isinstance(weights, Mapping):
        raise ReaderError(
            "compile_args: weights of several labels, expected one tensor: Keras has no loss of preference pairs",
            remedy="write a training step, or use `train-tpu --task dpo`",
        )
    if not isinstance(labels, Mapping):
        loss, metrics = _of(labels, weights)
        return {"loss": loss, "weighted_metrics": metrics}
    found = {name: _of(each, weights) for name, each in labels.items()}
    return {
        "loss": {name: loss for name, (loss, _) in found.items()},
        "weighted_metrics": {name: metrics for name, (_, metrics) in found.items()},
    }


def _of(labels: tf.TensorSpec, weights: tf.TensorSpec) -> tuple[Any, list[Any]]:
    import keras

    losses, metrics = keras.losses, keras.metrics
    if not labels.dtype.is_integer:
        name, kind, more = "squared_error", losses.MeanSquaredError, []
    elif labels.shape.rank > weights.shape.rank:
        kind = functools.partial(losses.BinaryCrossentropy, from_logits=True)
        name, more = "cross_entropy", [metrics.BinaryAccuracy("accuracy", threshold=0.0)]
    else:
        kind = functools.partial(losses.SparseCategoricalCrossentropy, from_logits=True)
        name, more = "cross_entropy", [metrics.SparseCategoricalAccuracy("accuracy")]
    mean = metrics.MeanMetricWrapper(kind(reduction=None), name=name)
    return kind(reduction="mean_with_sample_weight"), [mean, *more]
