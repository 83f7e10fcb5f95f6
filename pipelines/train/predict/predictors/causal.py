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

from pipelines.train.predict import decoding
from pipelines.train.predict.predictors.base import Call, Predictor
from tfrecord_io import objectives
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline import input_plan

__all__ = ["CausalPredictor"]


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

    def outputs(self, call: Call, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found = self._losses(call, features)
        return {**found, **self._generated(call, features)} if self.config.generate else found

    def _losses(self, call: Call, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        apply = objectives.causal_lm().bind(self.manifest)
        weight_B = tf.ones_like(features[self.tokens.ids][:, 0], tf.float32)
        inputs, labels_BL, weights_BL = apply({**features, input_plan.WEIGHT: weight_B}, seed=tf.zeros([2], tf.int64))
        logits_BLV = tf.cast(call(inputs), tf.float32)
        losses_BL = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_BL, logits=logits_BLV)
        return {
            "loss": tf.reduce_sum(tf.math.multiply_no_nan(losses_BL, weights_BL), axis=1),
            "tokens": tf.reduce_sum(weights_BL, axis=1),
        }

    def _generated(self, call: Call, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens, config = self.tokens, self.config
        ids, lengths = self._prompts(features[tokens.ids], features[tokens.mask])

        def next_logits(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
            mask = tf.cast(tf.range(ids.shape[1]) < lengths[:, tf.newaxis], tf.int32)
            others = {name: tf.zeros_like(ids) for name in tokens.inputs}
            logits = call({**others, tokens.ids: ids, tokens.mask: mask})
            return tf.gather(logits, tf.maximum(lengths - 1, 0), batch_dims=1)

        given: dict[str, Any] = {"steps": config.generate, "eos_id": self._end_id}
        if config.beams == 1:
            found = decoding.greedy_search(next_logits, ids, lengths, **given)
        else:
            found = decoding.beam_search(next_logits, ids, lengths, beams=config.beams, **given)
        return {"ids": found.ids, "from": lengths, "to": found.lengths}

    def _prompts(self, ids_BL: tf.Tensor, mask_BL: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows' last tokens, as many as leave room, moved to the left, without an end-of-text token at the end."""
        length, eos_id = ids_BL.shape[1], self._end_id
        place_BL = tf.range(1, length + 1) * tf.cast(mask_BL > 0, tf.int32)
        stop_B = tf.reduce_max(place_BL, axis=1)
        if eos_id is not None:
            last_B = tf.gather(ids_BL, tf.maximum(stop_B - 1, 0), batch_dims=1)
            stop_B -= tf.cast((last_B == eos_id) & (stop_B > 1), tf.int32)
        # Padding on the left comes before the first token.
        first_B = tf.argmax(tf.cast(mask_BL > 0, tf.int32), axis=1, output_type=tf.int32)
        count_B = tf.minimum(tf.maximum(stop_B - first_B, 0), length - self.config.generate)
        from_BL = tf.minimum((stop_B - count_B)[:, tf.newaxis] + tf.range(length), length - 1)
        moved_BL = tf.gather(ids_BL, from_BL, batch_dims=1)
        inside_BL = tf.range(length) < count_B[:, tf.newaxis]
        return tf.where(inside_BL, moved_BL, self.manifest.tokenizer.pad_id), count_B

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
