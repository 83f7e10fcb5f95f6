"""Predictions of `seq2seq`: the text that is generated for each row, at most as long as targets are in the dataset.

    column     type    meaning
    generated  string  greedy, or with `--beams K` the best of a beam search
    target     string  that of the dataset

The decoder begins as in training, and ends at the end-of-text token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from keras import ops

from pipelines.train.predict import decoding
from pipelines.train.predict.predictors.base import Call, Predictor
from tfrecord_io.objectives import DECODER_INPUTS, DECODER_MASK
from tfrecord_io.objectives.decoder import StartToken, start_id
from tfrecord_io.objectives.tokens import required

__all__ = ["TargetPredictor"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetPredictor(Predictor):
    """Generates a target for each row."""

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.load_tokenizer()

    @functools.cached_property
    def _target(self) -> tuple[str, str, int]:
        """The features of the target, and its length T."""
        explained = {"objective": "predicting targets", "remedy": "build the data with --layout seq2seq"}
        ids, mask = (
            required(self.manifest, "target_ids", **explained),
            required(self.manifest, "target_mask", **explained),
        )
        length = next(each.num_values for each in self.manifest.schema.features if each.name == ids)
        return ids, mask, length

    @property
    def _start(self) -> StartToken:
        start = self.trained.decoder_start
        return "pad" if start is None or start == "auto" else start

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        (_, _, length), facts = self._target, self.manifest.tokenizer
        rows, beams = features[self.tokens.ids].shape[0], self.config.beams
        repeated = {name: ops.repeat(features[name], beams, axis=0) for name in self.tokens.inputs}

        def next_logits(ids: Any, lengths: Any) -> Any:
            mask = ops.cast(ops.arange(length) < lengths[:, None], "int32")
            logits = call({**repeated, DECODER_INPUTS: ids, DECODER_MASK: mask})
            return decoding.of_place(logits, lengths - 1)

        start = start_id(self.manifest, self._start)
        ids = ops.convert_to_tensor([[start] + [facts.pad_id] * (length - 1)] * rows, dtype="int32")
        given: dict[str, Any] = {"steps": length - 1, "eos_id": facts.eos_id}
        ones = ops.ones([rows], "int32")
        if beams == 1:
            found = decoding.greedy_search(next_logits, ids, ones, **given)
        else:
            found = decoding.beam_search(next_logits, ids, ones, beams=beams, **given)
        return {"ids": found.ids, "lengths": found.lengths}

    def columns(self, outputs: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
        target, mask, _ = self._target
        pairs = zip(outputs["ids"], outputs["lengths"].tolist(), strict=True)
        made = [ids[1:count].tolist() for ids, count in pairs]
        given = [ids[kept > 0].tolist() for ids, kept in zip(features[target], features[mask], strict=True)]
        return {"generated": self._texts(made), "target": self._texts(given)}

    def _texts(self, runs: list[list[int]]) -> pa.Array:
        return pa.array([str(self._tokenizer.decode(run, skip_special_tokens=True)) for run in runs], pa.string())
