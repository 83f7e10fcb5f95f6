"""What objectives share: their two interfaces, and the features that they find in a manifest by role."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from tfrecord_io import input_plan
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role

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

# What describes each token of a row to a model, besides its id and the mask.
_DESCRIPTIVE: tuple[Role, ...] = ("token_type_ids", "segment_ids", "positions")


class Objective(Protocol):
    """What a model is to learn, before it is known from which dataset."""

    def bind(self, manifest: Manifest) -> BoundObjective:
        """The function for batches of this dataset. Raises: ReaderError if the dataset does not allow it."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenFeatures:
    """Names under which the tokens' features stand in an element; `segments` is None if a row is one text."""

    ids: str
    mask: str
    segments: str | None
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> TokenFeatures:
        schema = manifest.schema
        ids, mask = schema.with_role("token_ids"), input_plan.mask_name(schema)
        if ids is None or mask is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: no feature of role 'token_ids', every objective expects one",
                remedy="read it without objective",
            )
        others = [feature.name for role in _DESCRIPTIVE if (feature := schema.with_role(role))]
        segments = schema.with_role("segment_ids")
        return cls(
            ids=ids.name,
            mask=mask,
            segments=None if segments is None else segments.name,
            inputs=(ids.name, mask, *others),
        )

    def select(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The features that every model gets."""
        return {name: features[name] for name in self.inputs}


def required(manifest: Manifest, role: Role, *, objective: str, remedy: str) -> str:
    """The name of the feature of that role. Raises: ReaderError if there is none."""
    feature = manifest.schema.with_role(role)
    if feature is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: no {role} among the features {list(manifest.schema.names)}, "
            f"{objective} expects one",
            remedy=f"{remedy}, or choose another objective",
        )
    return feature.name


def check_free(manifest: Manifest, *names: str, objective: str) -> None:
    """Raises: ReaderError if a feature has the name of an input that the objective makes itself."""
    for name in names:
        if name in manifest.schema.names:
            raise ReaderError(
                f"dataset {manifest.name!r}: feature {name!r} has a name that {objective} uses",
                remedy="build the dataset with this column renamed or left out, or choose another objective",
            )


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
