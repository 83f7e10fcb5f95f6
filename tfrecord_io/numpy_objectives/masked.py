"""Predicting tokens that were hidden: `objectives.masked_lm` in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.numpy_objectives.base import Arrays, BoundObjective, Objective, Result, example_weights
from tfrecord_io.objective_parts.masking import Masking, Vocabulary
from tfrecord_io.objective_parts.tokens import TokenFeatures

__all__ = ["masked_lm"]


def masked_lm(probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1) -> Objective:
    """Predict tokens that were hidden (BERT, arXiv:1810.04805, section 3.1), chosen anew at each call.

    Args and what is raised: as `objectives.masked_lm`.

    Returns: an objective with labels [B, L] and weights float32 [B, L].
    """
    return _MaskedLM(probability=probability, mask_share=mask_share, random_share=random_share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MaskedLM(Masking):
    def bind(self, manifest: Manifest) -> BoundObjective:
        return _BoundMaskedLM(
            schema=manifest.schema,
            tokens=TokenFeatures.of(manifest),
            masking=self,
            vocabulary=Vocabulary.of(manifest),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _BoundMaskedLM(BoundObjective):
    masking: Masking
    vocabulary: Vocabulary

    def apply(self, features: Arrays, *, rng: np.random.Generator) -> Result:
        ids_BL, masking = features[self.tokens.ids], self.masking
        # One draw decides both: given that it is below the probability, it is uniform up to there.
        draw_BL = rng.random(ids_BL.shape, np.float32)
        chosen_BL = ~self.vocabulary.special_V[ids_BL] & (features[self.tokens.mask] > 0)
        chosen_BL &= draw_BL < masking.probability
        drawn_BL = rng.choice(self.vocabulary.ordinary_ids, ids_BL.shape)
        below = masking.probability
        hidden_BL = ids_BL.copy()
        replaced_BL = chosen_BL & (draw_BL < below * (masking.mask_share + masking.random_share))
        hidden_BL[replaced_BL] = drawn_BL[replaced_BL]
        hidden_BL[chosen_BL & (draw_BL < below * masking.mask_share)] = self.vocabulary.mask_id
        inputs = {**self.tokens.select(features), self.tokens.ids: hidden_BL}
        return inputs, ids_BL, example_weights(features, counts=chosen_BL)
