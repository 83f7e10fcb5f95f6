"""Objectives that hide tokens, but no special tokens or padding, and predict them."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import base

MASKED_POSITIONS = "masked_positions"


def masked_lm(probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1) -> base.Objective:
    """Predict hidden tokens (BERT, arXiv:1810.04805, section 3.1), drawn again for each batch.

    Labels are int32 [B, L], weights float32 [B, L], 1 on predicted tokens.

    Args:
        probability: probability that a token is predicted.
        mask_share: share of the predicted tokens that become the mask token.
        random_share: share of the predicted tokens that become a random ordinary token. Others stay unchanged.

    Raises: ReaderError if a number is not a probability, or the shares add up to more than 1.
    """
    return _masked(False, probability=probability, mask_share=mask_share, random_share=random_share)


def gathered_masked_lm(
    probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1
) -> base.Objective:
    """Predict hidden tokens as in `masked_lm`, for models that compute logits at only P positions per row.

    Inputs include `masked_positions`, int32 [B, P]: the predicted positions in random order, then others with weight 0.
    Labels are int32 [B, P], weights float32 [B, P].

    P = ceil(probability * L). Of a row's n tokens that are neither special nor padding, floor(probability * n + u) are
    predicted, with u uniform in [0, 1).

    Raises: as `masked_lm`; ReaderError from `bind` if a feature has the name `masked_positions`.
    """
    return _masked(True, probability=probability, mask_share=mask_share, random_share=random_share)


def _masked(gathered: bool, *, probability: float, mask_share: float, random_share: float) -> base.Objective:
    if not 0 < probability <= 1:
        raise ReaderError(f"probability is {probability!r}, expected a number above 0, at most 1")
    for name, share in (("mask_share", mask_share), ("random_share", random_share)):
        if not 0 <= share <= 1:
            raise ReaderError(f"{name} is {share!r}, expected a number from 0 to 1")
    if mask_share + random_share > 1 + 1e-9:  # 0.7 + 0.3 may slightly exceed 1
        raise ReaderError(f"mask_share is {mask_share} and random_share {random_share}, expected a sum of at most 1")

    make = functools.partial(_on_dataset, gathered=gathered, probability=probability)
    return base.Unbound(functools.partial(make, mask_share=mask_share, random_share=random_share))


def _on_dataset(
    manifest: Manifest, tokens: base.TokenFeatures, *, gathered: bool, probability: float, **shares: float
) -> base.Apply:
    facts = manifest.tokenizer
    if facts.mask_id is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: tokenizer {facts.name!r} has no mask token, which masked_lm needs",
            remedy="build the dataset with a tokenizer that has a mask token, or choose causal_lm",
        )
    special_V = np.zeros(max(facts.vocab_size, *(special + 1 for special in facts.special_ids), 1), np.bool_)
    special_V[list(facts.special_ids)] = True
    hiding = _Hiding(
        tokens=tokens,
        special_V=special_V,
        ordinary_ids=np.flatnonzero(~special_V).astype(np.int32),
        mask_id=facts.mask_id,
        probability=probability,
        **shares,
    )
    if not gathered:
        return hiding.in_place
    base.check_free(manifest, MASKED_POSITIONS, objective="gathered_masked_lm")
    return functools.partial(hiding.gathered, most=math.ceil(probability * manifest.row_length))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Hiding:
    tokens: base.TokenFeatures
    probability: float
    mask_share: float
    random_share: float
    special_V: np.ndarray
    ordinary_ids: np.ndarray
    mask_id: int

    def in_place(self, features: base.Features, ops: Any) -> base.Result:
        ids_BL, probability = features[self.tokens.ids], self.probability
        draws, token_draws = ops.split(2)
        # The draws of chosen tokens are uniform in [0, probability), and `_seen` reuses them.
        draw_BL = draws.uniform(ids_BL.shape)
        chosen_BL = self._candidates(features, ops) & (draw_BL < probability)
        seen_BL = self._seen(ids_BL, draw_BL, below=probability, ops=token_draws)
        inputs = {**self.tokens.select(features), self.tokens.ids: ops.where(chosen_BL, seen_BL, ids_BL)}
        return inputs, ids_BL, base.token_weights(features, chosen_BL, ops)

    def gathered(self, features: base.Features, ops: Any, *, most: int) -> base.Result:
        ids_BL, candidate_BL = features[self.tokens.ids], self._candidates(features, ops)
        order_draws, count_draws, draws, token_draws = ops.split(4)
        # Candidates in random order come before all others.
        rank_BL = ops.where(candidate_BL, 1.0 - order_draws.ranks(ids_BL.shape), -1.0)
        positions_BP = ops.largest(rank_BL, most)
        candidates_B = ops.total(candidate_BL)
        exact_B = self.probability * ops.floats(candidates_B) + count_draws.uniform(candidates_B.shape)
        # float32 may round up to the next whole number.
        count_B = ops.minimum(ops.integers(exact_B // 1, candidates_B), ops.minimum(candidates_B, most))
        chosen_BP = ops.arange(0, most) < count_B[:, None]
        labels_BP = ops.take(ids_BL, positions_BP)
        seen_BP = self._seen(labels_BP, draws.uniform(labels_BP.shape), below=1.0, ops=token_draws)
        hidden_BL = ops.replaced(ids_BL, positions_BP, ops.where(chosen_BP, seen_BP, labels_BP))
        inputs = {**self.tokens.select(features), self.tokens.ids: hidden_BL, MASKED_POSITIONS: positions_BP}
        return inputs, labels_BP, base.token_weights(features, chosen_BP, ops)

    def _candidates(self, features: base.Features, ops: Any) -> Any:
        return ~ops.table(self.special_V, features[self.tokens.ids]) & (features[self.tokens.mask] > 0)

    def _seen(self, ids: Any, draw: Any, *, below: float, ops: Any) -> Any:
        # `draw` is uniform in [0, below).
        drawn = ops.chosen_from(self.ordinary_ids, ids.shape)
        seen = ops.where(draw < below * (self.mask_share + self.random_share), drawn, ids)
        return ops.where(draw < below * self.mask_share, self.mask_id, seen)
