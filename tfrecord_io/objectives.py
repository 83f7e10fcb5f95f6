"""From a batch of features to what a model is trained on: (inputs, labels, weights), in the graph.

An objective is configuration; `bind` checks it against a manifest and gives the function that the reader applies to
each batch. That function is deterministic: all its choices come from the stateless seed that it is given. Both have
static shapes, and the weights are what Keras calls sample weights: a loss is their weighted mean, and rows that only
fill up a batch (`example_weight` 0) count in none.

    a batch of 1 row, L = 6         [CLS] a  b  c  [SEP] [PAD]        (special tokens in brackets)

    classification   inputs         [CLS] a  b  c  [SEP] [PAD]        labels [B], weights [B]
    masked_lm        inputs         [CLS] a [MASK] c [SEP] [PAD]
                     labels         [CLS] a  b  c  [SEP] [PAD]        what was there
                     weights          0   0  1  0    0     0          1 where it is to be predicted
    causal_lm        inputs         [CLS] a  b  c  [SEP] [PAD]
                     labels           a   b  c [SEP] [PAD] [PAD]      the next token
                     weights          1   1  1  1    0     0          1 where both are tokens

The inputs are the features of the roles token_ids, attention_mask and token_type_ids, under their own names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfrecord_io import input_plan
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest, TokenizerFacts

__all__ = ["BoundObjective", "Objective", "causal_lm", "classification", "masked_lm"]

# (features, *, seed: int64 [2]) -> (inputs, labels, weights)
BoundObjective = Callable[..., tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]]


class Objective(Protocol):
    """What a model is to learn, before it is known from which dataset."""

    def bind(self, manifest: Manifest) -> BoundObjective:
        """The function for batches of this dataset. Raises: ReaderError if the dataset does not allow it."""
        ...


def classification() -> Objective:
    """Predict the label: labels int32 [B], or float32 [B] for regression; weights float32 [B]."""
    return _Classification()


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


def causal_lm() -> Objective:
    """Predict the next token: labels int32 [B, L] and weights float32 [B, L], 0 at the last position of each row."""
    return _CausalLM()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TokenFeatures:
    """Names under which the tokens' features stand in an element."""

    ids: str
    mask: str
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> _TokenFeatures:
        schema = manifest.schema
        ids, mask, types = (
            schema.with_role("token_ids"),
            input_plan.mask_name(schema),
            schema.with_role("token_type_ids"),
        )
        if ids is None or mask is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: no feature of role 'token_ids', every objective expects one",
                remedy="read it without objective",
            )
        inputs = (ids.name, mask) if types is None else (ids.name, mask, types.name)
        return cls(ids=ids.name, mask=mask, inputs=inputs)

    def select(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: features[name] for name in self.inputs}


@dataclasses.dataclass(frozen=True)
class _Classification:
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, label = _TokenFeatures.of(manifest), manifest.schema.with_role("label")
        if label is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: no label among the features {list(manifest.schema.names)}, "
                "classification expects one",
                remedy="build the dataset with --label-column, or choose another objective",
            )
        name = label.name

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            del seed  # nothing is left to chance
            return tokens.select(features), features[name], features[input_plan.WEIGHT]

        return apply


@dataclasses.dataclass(frozen=True)
class _CausalLM:
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, pad_id = _TokenFeatures.of(manifest), manifest.tokenizer.pad_id

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            del seed  # nothing is left to chance
            mask_BL = features[tokens.mask]
            # With padding on the left, the last pad would predict the first token: both ends of a step must be tokens.
            weights_BL = tf.cast(mask_BL * _shifted(mask_BL, fill=0), tf.float32)
            labels_BL = _shifted(features[tokens.ids], fill=pad_id)
            return tokens.select(features), labels_BL, weights_BL * features[input_plan.WEIGHT][:, tf.newaxis]

        return apply


def _shifted(values_BL: tf.Tensor, *, fill: int) -> tf.Tensor:
    """Every position gets the value of the next one, the last one gets `fill`."""
    return tf.pad(values_BL[:, 1:], [[0, 0], [0, 1]], constant_values=fill)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MaskedLM:
    probability: float
    mask_share: float
    random_share: float

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ReaderError(f"probability is {self.probability!r}, expected more than 0 and at most 1")
        for name, share in (("mask_share", self.mask_share), ("random_share", self.random_share)):
            if not 0 <= share <= 1:
                raise ReaderError(f"{name} is {share!r}, expected 0 to 1")
        if self.mask_share + self.random_share > 1 + 1e-9:  # 0.7 + 0.3 may be a little more
            raise ReaderError(f"mask_share {self.mask_share} + random_share {self.random_share}, expected at most 1")

    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, mask_id = _TokenFeatures.of(manifest), manifest.tokenizer.mask_id
        if mask_id is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: tokenizer {manifest.tokenizer.name!r} has no mask token, "
                "masked_lm expects one",
                remedy="build the dataset with a tokenizer that has one, or choose causal_lm",
            )
        special_V = _special(manifest.tokenizer)
        ordinary_ids = np.flatnonzero(~special_V).astype(np.int32)

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            ids_BL = features[tokens.ids]
            ordinary_BL = ~tf.gather(tf.constant(special_V), ids_BL)
            candidate_BL = ordinary_BL & tf.cast(features[tokens.mask], tf.bool)
            chosen_BL, hidden_BL = self._hide(ids_BL, candidate_BL, mask_id, ordinary_ids, seed)
            weights_BL = tf.cast(chosen_BL, tf.float32) * features[input_plan.WEIGHT][:, tf.newaxis]
            return {**tokens.select(features), tokens.ids: hidden_BL}, ids_BL, weights_BL

        return apply

    def _hide(
        self, ids_BL: tf.Tensor, candidate_BL: tf.Tensor, mask_id: int, ordinary_ids: np.ndarray, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Which positions are to be predicted, and the ids that the model sees."""
        draw_seed, token_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2, alg="philox"))
        # One draw decides both: given that it is below the probability, it is uniform up to there.
        draw_BL = tf.random.stateless_uniform(ids_BL.shape, draw_seed, alg="philox")
        masked_below = self.probability * self.mask_share
        random_below = self.probability * (self.mask_share + self.random_share)
        index_BL = tf.random.stateless_uniform(
            ids_BL.shape, token_seed, maxval=len(ordinary_ids), dtype=tf.int32, alg="philox"
        )
        random_BL = tf.gather(tf.constant(ordinary_ids), index_BL)
        seen_BL = tf.where(draw_BL < random_below, random_BL, ids_BL)
        seen_BL = tf.where(draw_BL < masked_below, mask_id, seen_BL)
        return candidate_BL & (draw_BL < self.probability), tf.where(candidate_BL, seen_BL, ids_BL)


def _special(tokenizer: TokenizerFacts) -> np.ndarray:
    """bool [V]: which ids are special."""
    size = max(tokenizer.vocab_size, *(special + 1 for special in tokenizer.special_ids), 1)
    special_V = np.zeros(size, np.bool_)
    special_V[list(tokenizer.special_ids)] = True
    return special_V
