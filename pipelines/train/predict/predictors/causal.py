"""Predictions of `clm`: how well the model knows each row, and with `--generate N` how it goes on.

    column      type     meaning
    tokens      int32    tokens of the row that were predicted from what precedes them
    loss        float32  the mean of their negative log probabilities; null for rows without any
    perplexity  float32  exp(loss)
    generated   string   with --generate: at most N tokens after the row, up to the end-of-text token

A row that has no room for N more tokens loses as many of its first ones before it goes on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from keras import ops

from pipelines.train.predict import decoding
from pipelines.train.predict.predictors.base import Call, Predictor
from tfrecord_io import objectives
from tfrecord_io.errors import ConfigError

__all__ = ["CausalPredictor"]

# What a token is to predict, and its weight, among the features on the devices.
_LABELS, _WEIGHTS = "causal/labels", "causal/weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalPredictor(Predictor):
    """Predicts each token of a row from those before it, and goes on after the last."""

    def __post_init__(self) -> None:
        length = self.manifest.row_length
        if self.config.generate >= length:
            raise ConfigError(
                f"--generate {self.config.generate}, but the model's rows have {length} tokens, the prompt included",
                remedy=f"give at most --generate {length - 1}",
            )
        if self.config.generate and self.tokens.segments is not None:
            raise ConfigError("--generate with packed rows, expected one text in a row")

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.load_tokenizer()

    @property
    def _end_id(self) -> int | None:
        """The token that ends a text: [SEP], where a tokenizer has no other."""
        facts = self.manifest.tokenizer
        return facts.sep_id if facts.eos_id is None else facts.eos_id

    def device_features(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        apply = objectives.causal_lm().bind(self.manifest)
        inputs, labels, weights = apply(
            {name: tf.constant(each) for name, each in features.items()}, seed=tf.zeros([2], tf.int64)
        )
        return {name: each.numpy() for name, each in {**inputs, _LABELS: labels, _WEIGHTS: weights}.items()}

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        found = self._losses(call, features)
        return {**found, **self._generated(call, features)} if self.config.generate else found

    def _losses(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        weights_BL = features[_WEIGHTS]
        logits_BLV = ops.cast(call(features), "float32")
        losses_BL = ops.sparse_categorical_crossentropy(features[_LABELS], logits_BLV, from_logits=True)
        return {
            "loss": ops.sum(ops.where(weights_BL > 0, losses_BL * weights_BL, 0.0), axis=1),
            "tokens": ops.sum(weights_BL, axis=1),
        }

    def _generated(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        tokens, config = self.tokens, self.config
        ids, lengths = self._prompts(features[tokens.ids], features[tokens.mask])

        def next_logits(ids: Any, lengths: Any) -> Any:
            mask = ops.cast(ops.arange(ids.shape[1]) < lengths[:, None], "int32")
            others = {name: ops.zeros_like(ids) for name in tokens.inputs}
            logits = call({**others, tokens.ids: ids, tokens.mask: mask})
            return decoding.of_place(logits, ops.maximum(lengths - 1, 0))

        given: dict[str, Any] = {"steps": config.generate, "eos_id": self._end_id}
        if config.beams == 1:
            found = decoding.greedy_search(next_logits, ids, lengths, **given)
        else:
            found = decoding.beam_search(next_logits, ids, lengths, beams=config.beams, **given)
        return {"ids": found.ids, "from": lengths, "to": found.lengths}

    def _prompts(self, ids_BL: Any, mask_BL: Any) -> tuple[Any, Any]:
        """The rows' last tokens, as many as leave room, moved to the left, without an end-of-text token at the end."""
        length, eos_id = ids_BL.shape[1], self._end_id
        inside_BL = ops.cast(mask_BL > 0, "int32")
        stop_B = ops.max(ops.arange(1, length + 1) * inside_BL, axis=1)
        if eos_id is not None:
            last_B = ops.take_along_axis(ids_BL, ops.maximum(stop_B - 1, 0)[:, None], axis=1)[:, 0]
            stop_B -= ops.cast(ops.equal(last_B, eos_id) & (stop_B > 1), "int32")
        # Padding on the left comes before the first token.
        first_B = ops.argmax(inside_BL, axis=1)
        count_B = ops.minimum(ops.maximum(stop_B - first_B, 0), length - self.config.generate)
        from_BL = ops.minimum((stop_B - count_B)[:, None] + ops.arange(length), length - 1)
        moved_BL = ops.take_along_axis(ids_BL, from_BL, axis=1)
        return ops.where(ops.arange(length) < count_B[:, None], moved_BL, self.manifest.tokenizer.pad_id), count_B

    def columns(self, outputs: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
        counts = outputs["tokens"]
        means = outputs["loss"] / np.maximum(counts, 1)
        found = {
            "tokens": pa.array(counts.astype(np.int32)),
            "loss": pa.array(means.astype(np.float32), mask=counts == 0),
            "perplexity": pa.array(np.exp(np.minimum(means, 80)).astype(np.float32), mask=counts == 0),
        }
        if self.config.generate:
            spans = zip(outputs["ids"], outputs["from"].tolist(), outputs["to"].tolist(), strict=True)
            runs = [ids[start:stop].tolist() for ids, start, stop in spans]
            texts = [str(self._tokenizer.decode(run, skip_special_tokens=True)) for run in runs]
            found["generated"] = pa.array(texts, pa.string())
        return found
