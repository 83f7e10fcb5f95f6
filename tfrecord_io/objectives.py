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
    gathered_…       inputs         as above, and masked_positions [2 4]
                     labels         [b [SEP]]                         what was there, at these P positions alone
                     weights        [1 0]                             0 where fewer than P were chosen
    causal_lm        inputs         [CLS] a  b  c  [SEP] [PAD]
                     labels           a   b  c [SEP] [PAD] [PAD]      the next token
                     weights          1   1  1  1    0     0          1 where both are tokens

The inputs are the features of the roles token_ids, attention_mask and token_type_ids, under their own names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfrecord_io import input_plan
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest, TokenizerFacts

__all__ = [
    "MASKED_POSITIONS",
    "BoundObjective",
    "Objective",
    "causal_lm",
    "classification",
    "gathered_masked_lm",
    "masked_lm",
]

# The input of `gathered_masked_lm` that is no feature of the dataset.
MASKED_POSITIONS = "masked_positions"

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


def gathered_masked_lm(probability: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1) -> Objective:
    """As `masked_lm`, for models that compute logits at P positions of each row instead of at all L: with a vocabulary
    of 30,000 that is most of the memory, and much of the time.

    Not each token by itself is chosen, but so many of a row: of n that can be, floor(probability * n + u), u uniform in
    [0, 1). That is probability * n in the mean, and at most P = ceil(probability * L), so that none is ever dropped.

    Returns: an objective whose inputs have `masked_positions` int32 [B, P] too: the chosen ones, in no order, then
        others of weight 0, so that each is a position of the row; labels int32 [B, P] and weights float32 [B, P].
    Raises: as `masked_lm`; ReaderError from `bind` if a feature has that name.
    """
    return _GatheredMaskedLM(probability=probability, mask_share=mask_share, random_share=random_share)


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
class _Masking:
    """What both forms of masked LM share: the numbers, what can be chosen, and what stands there instead."""

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

    def seen(
        self, ids: tf.Tensor, draw: tf.Tensor, *, below: float, vocabulary: _Vocabulary, seed: tf.Tensor
    ) -> tf.Tensor:
        """What the model sees in place of `ids`, decided by a draw that is uniform in [0, `below`)."""
        index = tf.random.stateless_uniform(
            ids.shape, seed, maxval=len(vocabulary.ordinary_ids), dtype=tf.int32, alg="philox"
        )
        drawn = tf.gather(tf.constant(vocabulary.ordinary_ids), index)
        seen = tf.where(draw < below * (self.mask_share + self.random_share), drawn, ids)
        return tf.where(draw < below * self.mask_share, vocabulary.mask_id, seen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MaskedLM(_Masking):
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, vocabulary = _TokenFeatures.of(manifest), _Vocabulary.of(manifest)

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            ids_BL = features[tokens.ids]
            draw_seed, token_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2, alg="philox"))
            # One draw decides both: given that it is below the probability, it is uniform up to there.
            draw_BL = tf.random.stateless_uniform(ids_BL.shape, draw_seed, alg="philox")
            chosen_BL = vocabulary.candidates(ids_BL, features[tokens.mask]) & (draw_BL < self.probability)
            seen_BL = self.seen(ids_BL, draw_BL, below=self.probability, vocabulary=vocabulary, seed=token_seed)
            hidden_BL = tf.where(chosen_BL, seen_BL, ids_BL)
            weights_BL = tf.cast(chosen_BL, tf.float32) * features[input_plan.WEIGHT][:, tf.newaxis]
            return {**tokens.select(features), tokens.ids: hidden_BL}, ids_BL, weights_BL

        return apply


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GatheredMaskedLM(_Masking):
    def bind(self, manifest: Manifest) -> BoundObjective:
        tokens, vocabulary = _TokenFeatures.of(manifest), _Vocabulary.of(manifest)
        if MASKED_POSITIONS in manifest.schema.names:
            raise ReaderError(
                f"dataset {manifest.name!r}: feature {MASKED_POSITIONS!r} has a name that gathered_masked_lm uses",
                remedy="build the dataset with this column renamed or left out, or choose masked_lm",
            )
        most = math.ceil(self.probability * manifest.row_length)

        def apply(features: dict[str, tf.Tensor], *, seed: tf.Tensor) -> Any:
            ids_BL = features[tokens.ids]
            order_seed, count_seed, draw_seed, token_seed = tf.unstack(
                tf.random.experimental.stateless_split(seed, 4, alg="philox")
            )
            candidate_BL = vocabulary.candidates(ids_BL, features[tokens.mask])
            positions_BP = _candidates_first(candidate_BL, most, seed=order_seed)
            chosen_BP = tf.range(most) < self._count(candidate_BL, most, seed=count_seed)[:, tf.newaxis]
            labels_BP = tf.gather(ids_BL, positions_BP, batch_dims=1)
            draw_BP = tf.random.stateless_uniform(labels_BP.shape, draw_seed, alg="philox")
            seen_BP = self.seen(labels_BP, draw_BP, below=1.0, vocabulary=vocabulary, seed=token_seed)
            hidden_BL = _replaced(ids_BL, positions_BP, tf.where(chosen_BP, seen_BP, labels_BP))
            weights_BP = tf.cast(chosen_BP, tf.float32) * features[input_plan.WEIGHT][:, tf.newaxis]
            inputs = {**tokens.select(features), tokens.ids: hidden_BL, MASKED_POSITIONS: positions_BP}
            return inputs, labels_BP, weights_BP

        return apply

    def _count(self, candidate_BL: tf.Tensor, most: int, *, seed: tf.Tensor) -> tf.Tensor:
        """int32 [B]: how many of each row are to be predicted."""
        candidates_B = tf.reduce_sum(tf.cast(candidate_BL, tf.int32), axis=1)
        draw_B = tf.random.stateless_uniform(candidates_B.shape, seed, alg="philox")
        count_B = tf.cast(tf.floor(self.probability * tf.cast(candidates_B, tf.float32) + draw_B), tf.int32)
        # A sum that float32 rounds up to the next whole number would be one too many.
        return tf.minimum(count_B, tf.minimum(candidates_B, most))


def _candidates_first(candidate_BL: tf.Tensor, count: int, *, seed: tf.Tensor) -> tf.Tensor:
    """int32 [B, count]: different positions of each row, candidates in random order before all others."""
    draw_BL = tf.random.stateless_uniform(candidate_BL.shape, seed, alg="philox")
    return tf.math.top_k(tf.where(candidate_BL, 1.0 - draw_BL, -1.0), k=count).indices


def _replaced(values_BL: tf.Tensor, positions_BP: tf.Tensor, by_BP: tf.Tensor) -> tf.Tensor:
    """The values, with others at some positions, which differ within a row."""
    row_BP = tf.broadcast_to(tf.range(positions_BP.shape[0])[:, tf.newaxis], positions_BP.shape)
    return tf.tensor_scatter_nd_update(values_BL, tf.stack([row_BP, positions_BP], axis=-1), by_BP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Vocabulary:
    """What masking has to know of the ids: which are special (bool [V]), all others, and the mask token."""

    special_V: np.ndarray
    ordinary_ids: np.ndarray
    mask_id: int

    @classmethod
    def of(cls, manifest: Manifest) -> _Vocabulary:
        mask_id = manifest.tokenizer.mask_id
        if mask_id is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: tokenizer {manifest.tokenizer.name!r} has no mask token, "
                "masked_lm expects one",
                remedy="build the dataset with a tokenizer that has one, or choose causal_lm",
            )
        special_V = _special(manifest.tokenizer)
        return cls(special_V=special_V, ordinary_ids=np.flatnonzero(~special_V).astype(np.int32), mask_id=mask_id)

    def candidates(self, ids_BL: tf.Tensor, mask_BL: tf.Tensor) -> tf.Tensor:
        """bool [B, L]: which tokens can be chosen: neither padding nor special."""
        return ~tf.gather(tf.constant(self.special_V), ids_BL) & tf.cast(mask_BL, tf.bool)


def _special(tokenizer: TokenizerFacts) -> np.ndarray:
    """bool [V]: which ids are special."""
    size = max(tokenizer.vocab_size, *(special + 1 for special in tokenizer.special_ids), 1)
    special_V = np.zeros(size, np.bool_)
    special_V[list(tokenizer.special_ids)] = True
    return special_V
