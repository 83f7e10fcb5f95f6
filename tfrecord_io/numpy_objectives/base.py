"""What objectives share: their interfaces, the mask of a row's tokens, and rows that come without a batch."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objective_parts.tokens import TokenFeatures
from tfrecord_io.schema import Schema

__all__ = ["Arrays", "BoundObjective", "Objective", "Result", "example_weights", "from_next", "put"]

Arrays = dict[str, np.ndarray]
# Inputs, labels and weights.
Result = tuple[Arrays, np.ndarray, np.ndarray]


class Objective(Protocol):
    """What a model is to learn, before it is known from which dataset."""

    def bind(self, manifest: Manifest) -> BoundObjective:
        """The function for rows of this dataset. Raises: ReaderError if the dataset does not allow it."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundObjective(abc.ABC):
    """An objective on the rows of a dataset: a function that can be pickled."""

    schema: Schema
    tokens: TokenFeatures

    def __call__(self, features: Mapping[str, np.ndarray], *, rng: np.random.Generator | None = None) -> Result:
        """(inputs, labels, weights) of a batch, or of one row.

        rng: makes the random choices; one of the system's entropy if it is not given.
        """
        single = features[self.tokens.ids].ndim == 1
        batch = {name: np.asarray(values)[np.newaxis] for name, values in features.items()} if single else {**features}
        if self.tokens.mask not in batch:
            batch[self.tokens.mask] = _token_mask(batch, self.schema, like=batch[self.tokens.ids])
        inputs, labels, weights = self.apply(batch, rng=np.random.default_rng() if rng is None else rng)
        if single:
            return {name: values[0] for name, values in inputs.items()}, labels[0], weights[0]
        return inputs, labels, weights

    def with_rng(self, features: Mapping[str, np.ndarray], rng: np.random.Generator) -> Result:
        """Return the transformation for `grain.MapDataset.random_map`, which passes a generator."""
        return self(features, rng=rng)

    @abc.abstractmethod
    def apply(self, features: Arrays, *, rng: np.random.Generator) -> Result:
        """The result for a batch with a mask of its tokens."""


def _token_mask(features: Mapping[str, np.ndarray], schema: Schema, *, like: np.ndarray) -> np.ndarray:
    """1 on tokens, [B, L]: from their segments or their number, or all 1 where rows have no padding."""
    if (segments := schema.with_role("segment_ids")) is not None:
        return (features[segments.name] > 0).astype(like.dtype)
    if (count := schema.with_role("num_tokens")) is not None:
        return (np.arange(like.shape[1]) < features[count.name][:, np.newaxis]).astype(like.dtype)
    return np.ones_like(like)


def from_next(values_BL: np.ndarray, *, fill: int) -> np.ndarray:
    """Every position gets the value of the next one, the last one gets `fill`."""
    shifted_BL = np.full_like(values_BL, fill)
    shifted_BL[:, :-1] = values_BL[:, 1:]
    return shifted_BL


def example_weights(features: Mapping[str, np.ndarray], *, counts: np.ndarray) -> np.ndarray:
    """float32 [B, L]: the rows' weights where `counts` is 1 or True, 0 elsewhere."""
    weights: Any = features.get(input_plan.WEIGHT)
    weights_BL = counts.astype(np.float32)
    return weights_BL if weights is None else weights_BL * np.asarray(weights, np.float32)[:, np.newaxis]


def put(rows_BW: np.ndarray, values_BL: np.ndarray, *, at: np.ndarray, where: np.ndarray) -> None:
    """Writes values into the rows, at places `at` [B, L] where `where` is True."""
    rows, columns = np.nonzero(where)
    rows_BW[rows, at[rows, columns]] = values_BL[rows, columns]
