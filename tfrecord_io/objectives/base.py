"""Types and operations that objectives share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role, Schema, Side

# Roles of a model's inputs besides ids and mask.
_DESCRIPTIVE: tuple[Role, ...] = ("token_type_ids", "segment_ids", "positions")

Features = Mapping[str, Any]
# Inputs, labels and weights; several labels are a dict.
Result = tuple[dict[str, Any], Any, Any]
# Function of features, which include a mask, and operations (`NumpyOps` or `TensorOps`).
Apply = Callable[[Features, Any], Result]


class Objective(Protocol):
    def bind(self, manifest: Manifest) -> BoundObjective:
        """Return a function of this dataset's batches. Raises: ReaderError if the dataset lacks what it needs."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenFeatures:
    """Names of the features that contain, describe or mark a dataset's tokens.

    segments: the feature that numbers the documents of a row; None if a row is one text.
    inputs: all features that are inputs of a model.
    learned: the feature that is 1 on the tokens to learn; "" if all tokens are learned.
    """

    ids: str
    mask: str
    segments: str | None
    inputs: tuple[str, ...]
    learned: str = ""

    @classmethod
    def of(cls, manifest: Manifest, *, side: Side = "input") -> TokenFeatures:
        """Return the names for one token sequence (`side`). Raises: ReaderError if the dataset does not have it."""
        schema = manifest.schema
        ids, stored = schema.ids_of(side), schema.mask_of(side)
        if ids is None:
            layout, objective = ("another layout", "preference") if side == "input" else ("preference", "causal_lm")
            raise ReaderError(
                f"dataset {manifest.name!r}: no {side} token ids among the features {list(schema.names)}",
                remedy=f"build the dataset with --layout {layout}, or choose another objective, such as {objective}",
            )
        mask = host_plan.mask_name(schema) if stored is None else stored.name
        more = [feature.name for role in _DESCRIPTIVE if side == "input" and (feature := schema.with_role(role))]
        segments, learned = schema.with_role("segment_ids"), schema.loss_mask_of(side)
        return cls(
            ids=ids.name,
            mask=mask,
            segments=None if segments is None else segments.name,
            inputs=(ids.name, mask, *more),
            learned="" if learned is None else learned.name,
        )

    def select(self, features: Features) -> dict[str, Any]:
        return {name: features[name] for name in self.inputs}


@dataclasses.dataclass(frozen=True)
class BoundObjective:
    """A function that turns batches of one dataset into (inputs, labels, weights). Can be pickled."""

    schema: Schema
    tokens: TokenFeatures
    apply: Apply

    def __call__(self, features: Features, *, seed: Any = None, rng: np.random.Generator | None = None) -> Result:
        """Return (inputs, labels, weights) of a batch.

        Args:
            features: tensors of a batch, or arrays of a batch or one row, by feature name. Without `example_weight`,
                rows have weight 1.
            seed: for tensors, a seed for stateless random operations: int64 [2], or the result of `by_row`.
            rng: generator of random numbers for arrays; by default, a new one.
        """
        if seed is not None:  # only tensors need TensorFlow
            from tfrecord_io.objectives.tensor_ops import TensorOps, in_graph

            if host_plan.WEIGHT not in features:
                features = {**features, host_plan.WEIGHT: TensorOps.floats(features[self.tokens.ids][:, 0] >= 0)}
            return in_graph(self.apply)(features, TensorOps(seed))
        single = np.ndim(features[self.tokens.ids]) == 1
        batch = {name: np.asarray(values)[np.newaxis] if single else values for name, values in features.items()}
        ops = NumpyOps(np.random.default_rng() if rng is None else rng)
        batch.setdefault(host_plan.WEIGHT, np.ones(len(batch[self.tokens.ids]), np.float32))
        if self.tokens.mask not in batch:
            batch[self.tokens.mask] = token_mask(batch, self.schema, ops)
        inputs, labels, weights = self.apply(batch, ops)
        if not single:
            return inputs, labels, weights
        return _first_row(inputs), _first_row(labels), _first_row(weights)

    def with_rng(self, features: Features, rng: np.random.Generator) -> Result:
        """Call the objective on arrays, with the arguments of functions in `grain.MapDataset.random_map`."""
        return self(features, rng=rng)


def _first_row(values: Any) -> Any:
    return {name: array[0] for name, array in values.items()} if isinstance(values, dict) else values[0]


@dataclasses.dataclass(frozen=True)
class Unbound:
    make: Callable[[Manifest, TokenFeatures], Apply]
    side: Side = "input"

    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens = TokenFeatures.of(manifest, side=self.side)
        return BoundObjective(manifest.schema, tokens, self.make(manifest, tokens))


def token_weights(features: Features, counts_BL: Any, ops: Any) -> Any:
    """Return each token's weight, float32 [B, L]: the row's weight where `counts_BL` is true, otherwise 0."""
    return ops.floats(counts_BL) * ops.floats(features[host_plan.WEIGHT])[:, None]


def required(manifest: Manifest, *roles: Role, objective: str, remedy: str) -> list[str]:
    """Return the names of the features with these roles. Raises: ReaderError if the dataset lacks one."""
    features = {role: manifest.schema.with_role(role) for role in roles}
    for role, feature in features.items():
        if feature is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: {objective} needs a feature of role {role}, found "
                f"{list(manifest.schema.names)}",
                remedy=f"{remedy}, or choose another objective",
            )
    return [feature.name for feature in features.values() if feature]


def check_free(manifest: Manifest, *names: str, objective: str) -> None:
    for name in names:
        if name in manifest.schema.names:
            raise ReaderError(
                f"dataset {manifest.name!r}: feature {name!r} has a name that {objective} reserves",
                remedy="build the dataset with this column renamed or left out, or choose another objective",
            )


def token_mask(features: Features, schema: Schema, ops: Any) -> Any:
    """Return the attention mask of rows that store none: integers [B, L], 1 on tokens, 0 on padding."""
    ids_BL = schema.values(features, "token_ids")
    assert ids_BL is not None, "the dataset has token ids"
    segments_BL, count_B = schema.values(features, "segment_ids"), schema.values(features, "num_tokens")
    if segments_BL is not None:
        return ops.integers(segments_BL > 0, ids_BL)
    if count_B is not None:
        return ops.integers(ops.arange(0, ids_BL.shape[1]) < count_B[:, None], ids_BL)
    return ids_BL * 0 + 1


class NumpyOps:
    """Operations of objectives, on arrays [B, n]. `TensorOps` has them for tensors."""

    maximum, minimum = staticmethod(np.maximum), staticmethod(np.minimum)
    arange, sort = staticmethod(np.arange), staticmethod(np.sort)
    table = staticmethod(lambda values, indices: values[indices])
    take = staticmethod(lambda values_BW, indices_BL: np.take_along_axis(values_BW, indices_BL, axis=1))
    total = staticmethod(lambda values_BL: values_BL.sum(axis=1))
    cumsum = staticmethod(lambda values_BL: np.cumsum(values_BL, axis=1))
    # An array of one value, with the rows and dtype of `like`.
    full = staticmethod(lambda width, fill, like: np.full((len(like), width), fill, like.dtype))
    concat = staticmethod(lambda parts: np.concatenate(parts, axis=1))
    largest = staticmethod(lambda values_BL, count: np.argsort(-values_BL, axis=1)[:, :count])
    # Conversions to the dtype of `like`, and to float32.
    integers = staticmethod(lambda values, like: np.asarray(values).astype(like.dtype))
    floats = staticmethod(lambda values: np.asarray(values).astype(np.float32))

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def split(self, count: int) -> list[Any]:
        return [self] * count

    def uniform(self, shape: Any) -> Any:
        return self._rng.random(shape, np.float32)

    def ranks(self, shape: Any) -> Any:
        return self._rng.random(shape)

    def chosen_from(self, values: np.ndarray, shape: Any) -> Any:
        return values[self._rng.integers(0, len(values), shape)]

    @staticmethod
    def replaced(values_BW: Any, places_BP: Any, by_BP: Any) -> Any:
        replaced_BW = values_BW.copy()
        np.put_along_axis(replaced_BW, places_BP, by_BP, axis=1)
        return replaced_BW

    @staticmethod
    def where(chosen: Any, values: Any, others: Any) -> Any:
        """Return `np.where` with the dtype of `others` if it is an array, otherwise with the dtype of `values`."""
        like = others if isinstance(others, np.ndarray) else values
        return np.where(chosen, values, others).astype(like.dtype, copy=False)


def shifted(values_BL: Any, fill: int, ops: Any) -> Any:
    return ops.concat([ops.full(1, fill, values_BL), values_BL[:, :-1]])


def shifted_left(values_BL: Any, fill: int, ops: Any) -> Any:
    return ops.concat([values_BL[:, 1:], ops.full(1, fill, values_BL)])
