"""Generating a target from a row: `objectives.seq2seq` in NumPy, where the examples are."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.manifest import Manifest
from tfrecord_io.numpy_objectives.base import Arrays, BoundObjective, Objective, Result, example_weights
from tfrecord_io.objective_parts.decoder import DECODER_INPUTS, DECODER_MASK, StartToken, start_id
from tfrecord_io.objective_parts.tokens import TokenFeatures, check_free, required

__all__ = ["decoder_features", "seq2seq"]


def seq2seq(*, decoder_start_id: StartToken | int = "pad") -> Objective:
    """Generate the target: labels [B, T] and weights float32 [B, T], 1 on tokens of the target.

    Args, inputs and what is raised: as `objectives.seq2seq`.
    """
    return _Seq2Seq(decoder_start_id=decoder_start_id)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seq2Seq:
    decoder_start_id: StartToken | int

    def bind(self, manifest: Manifest) -> BoundObjective:
        what = {"objective": "seq2seq", "remedy": "build the dataset with --layout seq2seq"}
        target, mask = required(manifest, "target_ids", **what), required(manifest, "target_mask", **what)
        check_free(manifest, DECODER_INPUTS, DECODER_MASK, objective="seq2seq")
        return _BoundSeq2Seq(
            schema=manifest.schema,
            tokens=TokenFeatures.of(manifest),
            target=target,
            target_mask=mask,
            start=start_id(manifest, self.decoder_start_id),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BoundSeq2Seq(BoundObjective):
    target: str
    target_mask: str
    start: int

    def apply(self, features: Arrays, *, rng: np.random.Generator) -> Result:
        del rng  # nothing is left to chance
        labels_BT, mask_BT = features[self.target], features[self.target_mask]
        inputs = {**self.tokens.select(features), **decoder_features(labels_BT, mask_BT, start=self.start)}
        return inputs, labels_BT, example_weights(features, counts=mask_BT)
