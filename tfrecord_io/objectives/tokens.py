"""The features that objectives find in a manifest by role."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role, Schema

__all__ = ["TokenFeatures", "check_free", "required", "token_mask"]

# What describes each token of a row to a model, besides its id and the mask.
_DESCRIPTIVE: tuple[Role, ...] = ("token_type_ids", "segment_ids", "positions")


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

    def select(self, features: Mapping[str, Any]) -> dict[str, Any]:
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


def token_mask(features: Mapping[str, Any], schema: Schema, ops: Any) -> Any:
    """Make the mask of rows that are stored without one, integers [B, L], 1 on tokens: from their segments or their
    number, or all 1 where rows have no padding. `ops`: as in `array_ops`.
    """
    ids_BL = schema.values(features, "token_ids")
    assert ids_BL is not None, "only asked for with token ids"
    segments_BL, count_B = schema.values(features, "segment_ids"), schema.values(features, "num_tokens")
    if segments_BL is not None:
        return ops.integers(segments_BL > 0, ids_BL)
    if count_B is not None:
        return ops.integers(ops.arange(0, ids_BL.shape[1]) < count_B[:, None], ids_BL)
    return ids_BL * 0 + 1
