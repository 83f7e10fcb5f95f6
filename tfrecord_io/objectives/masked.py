"""Predicting tokens that were hidden, on rows of one text or of several: the worked example is the package's.

Both forms choose among the tokens that are neither special nor padding, by stateless draws. On packed rows the tokens
are chosen in the row as a whole, and segment_ids and positions go on to the model.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from tfrecord_io.manifest import Manifest
from tfrecord_io.objective_parts.masking import Masking, Vocabulary
from tfrecord_io.objectives import draws
from tfrecord_io.objectives.base import BoundObjective, Objective, TokenFeatures, check_free, example_weights, replaced

__all__ = ["MASKED_POSITIONS", "gathered_masked_lm", "masked_lm"]

# The input of `gathered_masked_lm` that is no feature of the dataset.
MASKED_POSITIONS = "masked_positions"


def masked_lm(probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1) -> Objective:
    """Predict tokens that were hidden (BERT, arXiv:1810.04805, section 3.1), chosen anew for each batch.

    Args:
        probability: for each token to be predicted; special tokens and padding never are.
        mask_share: of these, become the mask token.
        random_share: of these, become a random token that is not special; the rest stay as they are.

    Returns: an objective with labels int32 [B, L] and weights float32 [B, L].
    Raises: ReaderError if a number is no probability, or the shares add up to more than 1.
    """
    return _MaskedLM(probability=probability, mask_share=mask_share, random_share=random_share)


def gathered_masked_lm(probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1) -> Objective:
    """Masked language modelling as in `masked_lm`, for models that compute logits at P positions of each row instead of
    at all L: with a vocabulary of 30,000 that is most of the memory, and much of the time.

    Not each token by itself is chosen, but so many of a row: of n that can be, floor(probability * n + u), u uniform in
    [0, 1). That is probability * n in the mean, and at most P = ceil(probability * L), so that none is ever dropped.

    Returns an objective whose inputs have `masked_positions` int32 [B, P] too: the chosen ones, in no order, then
    others of weight 0, so that each is a position of the row; labels int32 [B, P] and weights float32 [B, P].

    Raises: as `masked_lm`; ReaderError from `bind` if a feature has that name.
    """
    return _GatheredMaskedLM(probability=probability, mask_share=mask_share, random_share=random_share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MaskedLM(Masking):
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, vocabulary = TokenFeatures.of(manifest), Vocabulary.of(manifest)

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            ids_BL = features[tokens.ids]
            draw_seed, token_seed = draws.split(seed, 2)
            # One draw decides both: given that it is below the probability, it is uniform up to there.
            draw_BL = draws.uniform(ids_BL.shape, draw_seed)
            chosen_BL = _candidates(vocabulary, ids_BL, features[tokens.mask]) & (draw_BL < self.probability)
            seen_BL = _seen(self, ids_BL, draw_BL, below=self.probability, vocabulary=vocabulary, seed=token_seed)
            hidden_BL = tf.where(chosen_BL, seen_BL, ids_BL)
            inputs = {**tokens.select(features), tokens.ids: hidden_BL}
            return inputs, ids_BL, example_weights(features, counts=chosen_BL)

        return apply


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GatheredMaskedLM(Masking):
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, vocabulary = TokenFeatures.of(manifest), Vocabulary.of(manifest)
        check_free(manifest, MASKED_POSITIONS, objective="gathered_masked_lm")
        most = math.ceil(self.probability * manifest.row_length)

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            ids_BL = features[tokens.ids]
            order_seed, count_seed, draw_seed, token_seed = draws.split(seed, 4)
            candidate_BL = _candidates(vocabulary, ids_BL, features[tokens.mask])
            positions_BP = _candidates_first(candidate_BL, most, seed=order_seed)
            chosen_BP = tf.range(most) < self._count(candidate_BL, most, seed=count_seed)[:, tf.newaxis]
            labels_BP = tf.gather(ids_BL, positions_BP, batch_dims=1)
            draw_BP = draws.uniform(labels_BP.shape, draw_seed)
            seen_BP = _seen(self, labels_BP, draw_BP, below=1.0, vocabulary=vocabulary, seed=token_seed)
            hidden_BL = replaced(ids_BL, positions_BP, tf.where(chosen_BP, seen_BP, labels_BP))
            inputs = {**tokens.select(features), tokens.ids: hidden_BL, MASKED_POSITIONS: positions_BP}
            return inputs, labels_BP, example_weights(features, counts=chosen_BP)

        return apply

    def _count(self, candidate_BL: tf.Tensor, most: int, *, seed: tf.Tensor) -> tf.Tensor:
        """int32 [B]: how many of each row are to be predicted."""
        candidates_B = tf.reduce_sum(tf.cast(candidate_BL, tf.int32), axis=1)
        draw_B = draws.uniform(candidates_B.shape, seed)
        count_B = tf.cast(tf.floor(self.probability * tf.cast(candidates_B, tf.float32) + draw_B), tf.int32)
        # A sum that float32 rounds up to the next whole number would be one too many.
        return tf.minimum(count_B, tf.minimum(candidates_B, most))


def _candidates_first(candidate_BL: tf.Tensor, count: int, *, seed: tf.Tensor) -> tf.Tensor:
    """int32 [B, count]: different positions of each row, candidates in random order before all others."""
    draw_BL = draws.uniform(candidate_BL.shape, seed)
    return tf.math.top_k(tf.where(candidate_BL, 1.0 - draw_BL, -1.0), k=count).indices


def _candidates(vocabulary: Vocabulary, ids_BL: tf.Tensor, mask_BL: tf.Tensor) -> tf.Tensor:
    """bool [B, L]: which tokens can be chosen: neither padding nor special."""
    return ~tf.gather(tf.constant(vocabulary.special_V), ids_BL) & tf.cast(mask_BL, tf.bool)


def _seen(
    masking: Masking, ids: tf.Tensor, draw: tf.Tensor, *, below: float, vocabulary: Vocabulary, seed: tf.Tensor
) -> tf.Tensor:
    """What the model sees in place of `ids`, decided by a draw that is uniform in [0, `below`)."""
    index = draws.uniform(ids.shape, seed, maxval=len(vocabulary.ordinary_ids))
    drawn = tf.gather(tf.constant(vocabulary.ordinary_ids), index)
    seen = tf.where(draw < below * (masking.mask_share + masking.random_share), drawn, ids)
    return tf.where(draw < below * masking.mask_share, vocabulary.mask_id, seen)
