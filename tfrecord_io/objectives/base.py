"""What objectives share: binding to a dataset, and the call with a batch of tensors or arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.array_ops import NumpyOps
from tfrecord_io.objectives.tokens import TokenFeatures, token_mask
from tfrecord_io.schema import Schema

__all__ = ["BoundObjective", "Features", "Objective", "Result", "token_weights"]

Features = Mapping[str, Any]
# Inputs, labels (a dict where there are several) and weights.
Result = tuple[dict[str, Any], Any, Any]


class Objective(Protocol):
    """What a model is to learn, before it is known from which dataset."""

    def bind(self, manifest: Manifest) -> BoundObjective:
        """Return the function for batches of this dataset. Raises: ReaderError if the dataset does not allow it."""
        ...


@dataclasses.dataclass(frozen=True)
class BoundObjective:
    """An objective on batches of one dataset, which can be pickled: `apply` takes features that have a mask, and the
    operations for their kind of arrays.
    """

    schema: Schema
    tokens: TokenFeatures
    apply: Callable[[Features, Any], Result]

    def __call__(self, features: Features, *, seed: Any = None, rng: np.random.Generator | None = None) -> Result:
        """Return (inputs, labels, weights) of a batch.

        Args:
            features: of the reader, with `seed`; or arrays of a batch, or of one row without batch dimension. Then
                `example_weight` may be missing.
            seed: a stateless seed, int64 [2], or one of `draws.by_row`, for tensors.
            rng: makes the random choices for arrays; by default a new one of the system's entropy.
        """
        if seed is not None:
            # Imported here, so that objectives on arrays need no TensorFlow.
            from tfrecord_io.objectives.tensor_ops import TensorOps, in_graph

            return in_graph(self.apply)(features, TensorOps(seed))
        single = np.ndim(features[self.tokens.ids]) == 1
        batch = {name: np.asarray(values)[np.newaxis] if single else values for name, values in features.items()}
        ops = NumpyOps(np.random.default_rng() if rng is None else rng)
        if self.tokens.mask not in batch:
            batch[self.tokens.mask] = token_mask(batch, self.schema, ops)
        inputs, labels, weights = self.apply(batch, ops)
        if not single:
            return inputs, labels, weights
        first_labels = {name: each[0] for name, each in labels.items()} if isinstance(labels, dict) else labels[0]
        return {name: values[0] for name, values in inputs.items()}, first_labels, weights[0]

    def with_rng(self, features: Features, rng: np.random.Generator) -> Result:
        """Return the transformation for `grain.MapDataset.random_map`, which passes a generator."""
        return self(features, rng=rng)


def token_weights(features: Features, counts_BL: Any, ops: Any) -> Any:
    """Return float32 [B, L]: the rows' weights where `counts_BL` is 1 or True, 0 elsewhere."""
    weights_B = features.get(input_plan.WEIGHT)
    counts_BL = ops.floats(counts_BL)
    return counts_BL if weights_B is None else counts_BL * ops.floats(weights_B)[:, None]
