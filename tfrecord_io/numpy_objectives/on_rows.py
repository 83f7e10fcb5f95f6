"""Objectives on rows that come with or without a batch: the next token, hidden tokens, and a target."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objective_parts.decoder import DECODER_INPUTS, DECODER_MASK, StartToken, start_id
from tfrecord_io.objective_parts.masking import Masking, Vocabulary
from tfrecord_io.objective_parts.tokens import TokenFeatures, check_free, required
from tfrecord_io.schema import Schema

__all__ = [
    "Arrays",
    "BoundObjective",
    "Objective",
    "Result",
    "causal_lm",
    "decoder_features",
    "example_weights",
    "masked_lm",
    "seq2seq",
]

Arrays = dict[str, np.ndarray]
# Inputs, labels and weights.
Result = tuple[Arrays, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundObjective:
    """An objective on the rows of a dataset: a function that can be pickled. `apply` takes a batch with a mask."""

    schema: Schema
    tokens: TokenFeatures
    apply: Callable[..., Result]

    def __call__(self, features: Mapping[str, np.ndarray], *, rng: np.random.Generator | None = None) -> Result:
        """(inputs, labels, weights) of a batch, or of one row.

        rng: makes the random choices; one of the system's entropy if it is not given.
        """
        single = features[self.tokens.ids].ndim == 1
        batch = {name: np.asarray(values)[np.newaxis] for name, values in features.items()} if single else {**features}
        if self.tokens.mask not in batch:
            batch[self.tokens.mask] = _token_mask(batch, self.schema, like=batch[self.tokens.ids])
        rng = np.random.default_rng() if rng is None else rng
        inputs, labels, weights = self.apply(batch, self.tokens, rng)
        if single:
            return {name: values[0] for name, values in inputs.items()}, labels[0], weights[0]
        return inputs, labels, weights

    def with_rng(self, features: Mapping[str, np.ndarray], rng: np.random.Generator) -> Result:
        """Return the transformation for `grain.MapDataset.random_map`, which passes a generator."""
        return self(features, rng=rng)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a model is to learn, before it is known from which dataset. `make` gives `BoundObjective.apply`."""

    make: Callable[[Manifest, TokenFeatures], Callable[..., Result]]

    def bind(self, manifest: Manifest) -> BoundObjective:
        """Return the function for rows of this dataset. Raises: ReaderError if the dataset does not allow it."""
        tokens = TokenFeatures.of(manifest)
        return BoundObjective(schema=manifest.schema, tokens=tokens, apply=self.make(manifest, tokens))


def _token_mask(features: Mapping[str, np.ndarray], schema: Schema, *, like: np.ndarray) -> np.ndarray:
    """1 on tokens, [B, L]: from their segments or their number, or all 1 where rows have no padding."""
    if (segments := schema.with_role("segment_ids")) is not None:
        return (features[segments.name] > 0).astype(like.dtype)
    if (count := schema.with_role("num_tokens")) is not None:
        return (np.arange(like.shape[1]) < features[count.name][:, np.newaxis]).astype(like.dtype)
    return np.ones_like(like)


def example_weights(features: Mapping[str, np.ndarray], *, counts: np.ndarray) -> np.ndarray:
    """float32 [B, L]: the rows' weights where `counts` is 1 or True, 0 elsewhere."""
    weights: Any = features.get(input_plan.WEIGHT)
    weights_BL = counts.astype(np.float32)
    return weights_BL if weights is None else weights_BL * np.asarray(weights, np.float32)[:, np.newaxis]


def causal_lm() -> Objective:
    """Predict the next token: labels [B, L] and weights float32 [B, L], see `objectives.causal_lm`."""
    return Objective(_bind_causal)


def _bind_causal(manifest: Manifest, tokens: TokenFeatures) -> Callable[..., Result]:
    loss_mask = manifest.schema.with_role("loss_mask")
    name = None if loss_mask is None else loss_mask.name
    return functools.partial(_next_token, pad_id=manifest.tokenizer.pad_id, loss_mask=name)


def _next_token(
    features: Arrays, tokens: TokenFeatures, rng: np.random.Generator, *, pad_id: int, loss_mask: str | None
) -> Result:
    del rng  # nothing is left to chance
    mask_BL = features[tokens.mask] > 0
    # With padding on the left, the last pad would predict the first token: both ends of a step must be tokens.
    counts_BL = mask_BL & _from_next(mask_BL, fill=0)
    if tokens.segments is not None:
        segment_BL = features[tokens.segments]
        counts_BL &= segment_BL == _from_next(segment_BL, fill=0)
    if loss_mask is not None:
        counts_BL &= _from_next(features[loss_mask], fill=0) > 0
    labels_BL = _from_next(features[tokens.ids], fill=pad_id)
    return tokens.select(features), labels_BL, example_weights(features, counts=counts_BL)


def _from_next(values_BL: np.ndarray, *, fill: int) -> np.ndarray:
    """Give every position the value of the next one, and the last one `fill`."""
    shifted_BL = np.full_like(values_BL, fill)
    shifted_BL[:, :-1] = values_BL[:, 1:]
    return shifted_BL


def masked_lm(probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1) -> Objective:
    """Predict tokens that were hidden (BERT, arXiv:1810.04805, section 3.1), chosen anew at each call.

    Args and what is raised: as `objectives.masked_lm`.

    Returns: an objective with labels [B, L] and weights float32 [B, L].
    """
    masking = Masking(probability=probability, mask_share=mask_share, random_share=random_share)
    return Objective(functools.partial(_bind_masked, masking=masking))


def _bind_masked(manifest: Manifest, tokens: TokenFeatures, *, masking: Masking) -> Callable[..., Result]:
    return functools.partial(_hidden_tokens, masking=masking, vocabulary=Vocabulary.of(manifest))


def _hidden_tokens(
    features: Arrays, tokens: TokenFeatures, rng: np.random.Generator, *, masking: Masking, vocabulary: Vocabulary
) -> Result:
    ids_BL, below = features[tokens.ids], masking.probability
    # One draw decides both: given that it is below the probability, it is uniform up to there.
    draw_BL = rng.random(ids_BL.shape, np.float32)
    chosen_BL = ~vocabulary.special_V[ids_BL] & (features[tokens.mask] > 0) & (draw_BL < below)
    drawn_BL = rng.choice(vocabulary.ordinary_ids, ids_BL.shape)
    hidden_BL = ids_BL.copy()
    replaced_BL = chosen_BL & (draw_BL < below * (masking.mask_share + masking.random_share))
    hidden_BL[replaced_BL] = drawn_BL[replaced_BL]
    hidden_BL[chosen_BL & (draw_BL < below * masking.mask_share)] = vocabulary.mask_id
    inputs = {**tokens.select(features), tokens.ids: hidden_BL}
    return inputs, ids_BL, example_weights(features, counts=chosen_BL)


def seq2seq(*, decoder_start_id: StartToken | int = "pad") -> Objective:
    """Generate the target: labels [B, T] and weights float32 [B, T], 1 on tokens of the target.

    Args, inputs and what is raised: as `objectives.seq2seq`.
    """
    return Objective(functools.partial(_bind_seq2seq, decoder_start_id=decoder_start_id))


def _bind_seq2seq(
    manifest: Manifest, tokens: TokenFeatures, *, decoder_start_id: StartToken | int
) -> Callable[..., Result]:
    what = {"objective": "seq2seq", "remedy": "build the dataset with --layout seq2seq"}
    target, mask = required(manifest, "target_ids", **what), required(manifest, "target_mask", **what)
    check_free(manifest, DECODER_INPUTS, DECODER_MASK, objective="seq2seq")
    return functools.partial(_target, target=target, mask=mask, start=start_id(manifest, decoder_start_id))


def _target(
    features: Arrays, tokens: TokenFeatures, rng: np.random.Generator, *, target: str, mask: str, start: int
) -> Result:
    del rng  # nothing is left to chance
    labels_BT, mask_BT = features[target], features[mask]
    inputs = {**tokens.select(features), **decoder_features(labels_BT, mask_BT, start=start)}
    return inputs, labels_BT, example_weights(features, counts=mask_BT)


def decoder_features(target_ids_BT: np.ndarray, target_mask_BT: np.ndarray, *, start: int) -> Arrays:
    """The decoder's inputs, [B, T]: each place has the target's token before it, the first token has `start`."""
    before_BT, shifted_BT = _from_before(target_mask_BT), _from_before(target_ids_BT)
    first_BT = target_mask_BT > before_BT
    first_BT[:, 0] = True
    shifted_BT[first_BT] = start
    return {DECODER_INPUTS: shifted_BT, DECODER_MASK: np.maximum(target_mask_BT, before_BT)}


def _from_before(values_BT: np.ndarray) -> np.ndarray:
    shifted_BT = np.zeros_like(values_BT)
    shifted_BT[:, 1:] = values_BT[:, :-1]
    return shifted_BT
