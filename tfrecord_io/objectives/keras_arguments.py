"""Choose losses and metrics for Keras that ignore rows and positions of weight 0."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrecord_io.errors import ReaderError

if TYPE_CHECKING:
    import tensorflow as tf


def compile_args(dataset: tf.data.Dataset) -> dict[str, Any]:
    """Return keyword arguments of `model.compile` for an objective's batches and a model that outputs logits.

        model.compile("adam", **objectives.compile_args(train))

    The loss is a cross-entropy for integer labels, a sigmoid cross-entropy for several classes per row, and a squared
    error (of outputs [B, 1]) for float labels. It is divided by the sum of the weights instead of the batch size. The
    metric (`cross_entropy` or `squared_error`) is the exact mean over an evaluation; `loss` is the mean of the batch
    means. Needs Keras 3.12 or newer.

    Raises: ReaderError if elements are not (inputs, labels, weights), or are preference pairs.
    """
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 3:
        raise ReaderError(
            "compile_args: elements have no labels and weights, expected (inputs, labels, weights)",
            remedy="read the dataset with an objective, such as `objective=objectives.classification()`",
        )
    _, labels, weights = spec
    if isinstance(weights, Mapping):
        raise ReaderError(
            "compile_args: elements are preference pairs, for which Keras has no loss",
            remedy="write a training step, or use `train-tpu --task dpo`",
        )
    if not isinstance(labels, Mapping):
        loss, metrics = _of(labels, weights)
        return {"loss": loss, "weighted_metrics": metrics}
    arguments = {name: _of(spec, weights) for name, spec in labels.items()}
    return {
        "loss": {name: loss for name, (loss, _) in arguments.items()},
        "weighted_metrics": {name: metrics for name, (_, metrics) in arguments.items()},
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
