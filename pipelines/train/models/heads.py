"""From a backbone's sequence to logits, and the names under which a model takes the dataset's features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from pipelines.train.config import Pooling
from pipelines.train.models import backbones, packed_rows
from pipelines.train.tasks import BoundTask
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import DECODER_INPUTS, DECODER_MASK, MASKED_POSITIONS
from tfrecord_io.schema import Role

__all__ = ["inputs_of", "taken", "with_head"]


def taken(model: keras.Model, features: Mapping[str, Any]) -> dict[str, Any]:
    """Select the features that the model takes. With `masked_positions` its logits are [B, P, V], else [B, L, V]."""
    try:
        names = model.input
    except (AttributeError, ValueError):  # a subclassed model, which takes any
        names = None
    if not isinstance(names, Mapping):
        names = features.keys() - {MASKED_POSITIONS}
    return {name: each for name, each in features.items() if name in names}


def inputs_of(manifest: Manifest, task: BoundTask) -> dict[str, Any]:
    """A Keras input for each feature that a model gets, int32, by the dataset's own names; L is None where the dataset
    has rows of several lengths.
    """
    schema = manifest.schema
    others: tuple[Role, ...] = ("token_type_ids", "segment_ids", "positions")
    found = (feature.name for role in others if (feature := schema.with_role(role)) is not None)
    names = [_ids_name(manifest), _mask_name(manifest), *found]
    lengths: dict[str, int | None] = dict.fromkeys(names, None if manifest.bucket_lengths else manifest.row_length)
    if task.name == "mlm":
        # Of every row the same number of positions, but not of every batch: an evaluation may use another share.
        lengths[MASKED_POSITIONS] = None
    if task.name == "seq2seq":
        target = schema.with_role("target_ids")
        assert target is not None, "the objective was bound, which needs it"
        lengths |= dict.fromkeys((DECODER_INPUTS, DECODER_MASK), target.num_values)
    return {name: keras.Input((length,), dtype="int32", name=name) for name, length in lengths.items()}


def _ids_name(manifest: Manifest) -> str:
    ids = manifest.schema.with_role("token_ids")
    assert ids is not None, "the objective was bound, which needs it"
    return ids.name


def _mask_name(manifest: Manifest) -> str:
    mask = input_plan.mask_name(manifest.schema)
    assert mask is not None, "as above"
    return mask


def with_head(backbone: Any, manifest: Manifest, task: BoundTask, *, pooling: Pooling) -> keras.Model:
    """The whole model."""
    inputs = inputs_of(manifest, task)
    if task.name == "seq2seq":
        logits = _target_logits(backbone, manifest, inputs)
    else:
        sequence_BLD = _sequence(backbone, manifest, inputs)
        if task.of_vocabulary:
            logits = _vocabulary_logits(backbone, sequence_BLD, inputs)
        else:
            mask = inputs[_mask_name(manifest)]
            states = sequence_BLD if task.per_token else _pool(sequence_BLD, mask, pooling=pooling)
            states = keras.layers.Dropout(getattr(backbone, "dropout", 0.0), name="head_dropout")(states)
            logits = keras.layers.Dense(task.num_outputs, dtype="float32", name="logits")(states)
    return keras.Model(inputs, logits, name=f"{backbone.name}_{task.name}")


def _sequence(backbone: Any, manifest: Manifest, inputs: dict[str, Any]) -> Any:
    """The backbone's states of all tokens, [B, L, D]."""
    ids = inputs[_ids_name(manifest)]
    schema = manifest.schema
    documents, positions = schema.with_role("segment_ids"), schema.with_role("positions")
    if documents is not None and positions is not None:
        apart = packed_rows.keeping_apart(backbone)
        return apart({"token_ids": ids, "documents": inputs[documents.name], "positions": inputs[positions.name]})
    types = schema.with_role("token_type_ids")
    feeds = {"token_ids": ids, "padding_mask": inputs[_mask_name(manifest)]}
    if "segment_ids" in backbone.input:
        feeds["segment_ids"] = ops.zeros_like(ids) if types is None else inputs[types.name]
    found = backbone(feeds)
    return found["sequence_output"] if isinstance(found, dict) else found


def _vocabulary_logits(backbone: Any, sequence_BLD: Any, inputs: dict[str, Any]) -> Any:
    """Logits by the embedding of the tokens, behind a layer of their own where hidden tokens are predicted."""
    if MASKED_POSITIONS in inputs:
        sequence_BLD = ops.take_along_axis(sequence_BLD, inputs[MASKED_POSITIONS][..., None], axis=1)
        width = sequence_BLD.shape[-1]
        sequence_BLD = keras.layers.Dense(width, activation="gelu", name="head_dense")(sequence_BLD)
        sequence_BLD = keras.layers.LayerNormalization(epsilon=1e-12, name="head_norm")(sequence_BLD)
    return backbone.token_embedding(sequence_BLD, reverse=True)


def _target_logits(backbone: Any, manifest: Manifest, inputs: dict[str, Any]) -> Any:
    """Logits [B, T, V] of an encoder with a decoder."""
    found = backbone(
        {
            "encoder_token_ids": inputs[_ids_name(manifest)],
            "encoder_padding_mask": inputs[_mask_name(manifest)],
            "decoder_token_ids": inputs[DECODER_INPUTS],
            "decoder_padding_mask": inputs[DECODER_MASK],
        }
    )
    states_BTD = found["decoder_sequence_output"]
    if backbones.scales_tied_logits(backbone):
        states_BTD = states_BTD * states_BTD.shape[-1] ** -0.5
    return backbone.token_embedding(states_BTD, reverse=True)


def _pool(sequence_BLD: Any, mask_BL: Any, *, pooling: Pooling) -> Any:
    """One vector a row: of the first token, of the last, or the mean of all. Works for padding on either side."""
    count_BL = ops.cumsum(mask_BL, axis=1)
    if pooling == "first":
        chosen_BL = ops.cast(ops.equal(count_BL, 1), "int32") * mask_BL
    elif pooling == "last":
        chosen_BL = ops.cast(ops.equal(count_BL, ops.sum(mask_BL, axis=1, keepdims=True)), "int32") * mask_BL
    else:
        chosen_BL = mask_BL
    share_BL = ops.cast(chosen_BL, sequence_BLD.dtype)
    # A row without any token would divide by 0; it has only padding, and its mean is 0.
    share_BL = share_BL / ops.maximum(ops.sum(share_BL, axis=1, keepdims=True), 1)
    return ops.einsum("bld,bl->bd", sequence_BLD, share_BL)
