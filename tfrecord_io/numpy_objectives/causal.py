"""Predicting the next token: `objectives.causal` in NumPy, where the examples are."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.numpy_objectives.base import Arrays, BoundObjective, Objective, Result, example_weights, from_next
from tfrecord_io.objective_parts.tokens import TokenFeatures

__all__ = ["causal_lm", "segment_attention_mask"]


def causal_lm() -> Objective:
    """Predict the next token: labels [B, L] and weights float32 [B, L], see `objectives.causal_lm`."""
    return _CausalLM()


def segment_attention_mask(segment_ids_BL: np.ndarray, *, causal: bool) -> np.ndarray:
    """Return which tokens of packed rows attend to each other, bool [B, L, L], as `objectives` does."""
    seen_BLL = segment_ids_BL[:, :, np.newaxis] == segment_ids_BL[:, np.newaxis, :]
    mask_BLL: np.ndarray = seen_BLL & (segment_ids_BL > 0)[:, np.newaxis, :]
    return np.tril(mask_BLL) if causal else mask_BLL


@dataclasses.dataclass(frozen=True)
class _CausalLM:
    def bind(self, manifest: Manifest) -> BoundObjective:
        loss_mask = manifest.schema.with_role("loss_mask")
        return _BoundCausalLM(
            schema=manifest.schema,
            tokens=TokenFeatures.of(manifest),
            pad_id=manifest.tokenizer.pad_id,
            loss_mask=None if loss_mask is None else loss_mask.name,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BoundCausalLM(BoundObjective):
    pad_id: int
    loss_mask: str | None

    def apply(self, features: Arrays, *, rng: np.random.Generator) -> Result:
        del rng  # nothing is left to chance
        mask_BL = features[self.tokens.mask] > 0
        # With padding on the left, the last pad would predict the first token: both ends of a step must be tokens.
        counts_BL = mask_BL & from_next(mask_BL, fill=0)
        if self.tokens.segments is not None:
            segment_BL = features[self.tokens.segments]
            counts_BL &= segment_BL == from_next(segment_BL, fill=0)
        if self.loss_mask is not None:
            counts_BL &= from_next(features[self.loss_mask], fill=0) > 0
        labels_BL = from_next(features[self.tokens.ids], fill=self.pad_id)
        return self.tokens.select(features), labels_BL, example_weights(features, counts=counts_BL)
