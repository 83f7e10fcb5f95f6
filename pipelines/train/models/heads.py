"""Build a model's inputs, and its head, which maps the backbone's states to logits."""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from pipelines.train.config import Pooling
from pipelines.train.models import backbones
from pipelines.train.models.families import family_of
from pipelines.train.tasks import BoundTask
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import DECODER_INPUTS, DECODER_MASK, MASKED_POSITIONS
from tfrecord_io.objectives.base import TokenFeatures


def taken(model: keras.Model, features: Mapping[str, Any]) -> dict[str, Any]:
    """Select the features, by name, that the model takes.

    For mlm, logits are [B, P, V] if it takes `masked_positions` [B, P], otherwise [B, L, V].
    """
    names = features.keys() - {MASKED_POSITIONS}
    with contextlib.suppress(AttributeError, ValueError):  # from a subclassed model
        names = set(model.input) if isinstance(model.input, Mapping) else names
    return {name: values for name, values in features.items() if name in names}


def inputs_of(manifest: Manifest, task: BoundTask) -> dict[str, Any]:
    """Create a model's Keras inputs, int32 [B, L], by feature name. L is None if rows have several lengths."""
    names = task.tokens(manifest).inputs
    lengths: dict[str, int | None] = dict.fromkeys(names, None if manifest.bucket_lengths else manifest.row_length)
    if task.kind.head == "masked":
        # Evaluations may mask another share.
        lengths[MASKED_POSITIONS] = None
    if task.kind.backbone == "encoder-decoder":
        target = manifest.schema.with_role("target_ids")
        assert target is not None, "the bound objective needs targets"
        lengths |= dict.fromkeys((DECODER_INPUTS, DECODER_MASK), target.num_values)
    return {name: keras.Input((length,), dtype="int32", name=name) for name, length in lengths.items()}


def with_head(
    backbone: Any, manifest: Manifest, task: BoundTask, *, pooling: Pooling, has_bias: bool = False
) -> keras.Model:
    """Return a backbone with the task's head. `has_bias`: whether the output layer for mlm has a bias."""
    inputs = inputs_of(manifest, task)
    tokens = task.tokens(manifest)
    core, feeds = _fed(backbone, manifest, inputs, tokens)
    if task.of_vocabulary:
        if task.kind.head == "masked":
            feeds[MASKED_POSITIONS] = inputs[MASKED_POSITIONS]
        logits = _language_model(backbone, core, task, has_bias=has_bias)(feeds)
    else:
        outputs, mask = core(feeds), inputs[tokens.mask]
        pooled = outputs.get("pooled_output") if isinstance(outputs, dict) else None
        if task.kind.head == "tokens":
            states = _sequence(outputs)
        elif pooling == "first" and pooled is not None and manifest.tokenizer.padding_side == "right":
            # The first token and the checkpoint's pooler (BERT, arXiv:1810.04805, section 3.1). In rows padded on the
            # left, the first token is padding.
            states = pooled
        else:
            states = _pool(_sequence(outputs), mask, pooling=pooling)
        states = keras.layers.Dropout(getattr(backbone, "dropout", 0.0), name="head_dropout")(states)
        logits = keras.layers.Dense(task.num_outputs, dtype=keras.config.floatx(), name="logits")(states)
    return keras.Model(inputs, logits, name=f"{backbone.name}_{task.name}")


def _fed(
    backbone: Any, manifest: Manifest, inputs: dict[str, Any], tokens: TokenFeatures
) -> tuple[keras.Model, dict[str, Any]]:
    schema = manifest.schema
    ids, mask = inputs[tokens.ids], inputs[tokens.mask]
    if DECODER_INPUTS in inputs:
        return backbones.connected(backbone), {
            "encoder_token_ids": ids,
            "encoder_padding_mask": mask,
            "decoder_token_ids": inputs[DECODER_INPUTS],
            "decoder_padding_mask": inputs[DECODER_MASK],
        }
    documents, positions = schema.with_role("segment_ids"), schema.with_role("positions")
    if documents is not None and positions is not None:
        apart = backbones.keeping_apart(backbone)
        return apart, {"token_ids": ids, "documents": inputs[documents.name], "positions": inputs[positions.name]}
    types = schema.with_role("token_type_ids")
    feeds = {"token_ids": ids, "padding_mask": mask}
    if "segment_ids" in backbone.input:
        feeds["segment_ids"] = ops.zeros_like(ids) if types is None else inputs[types.name]
    return backbones.connected(backbone), feeds


def _sequence(outputs: Any) -> Any:
    if not isinstance(outputs, dict):
        return outputs
    return outputs.get("decoder_sequence_output", outputs.get("sequence_output"))


def _language_model(backbone: Any, core: keras.Model, task: BoundTask, *, has_bias: bool) -> keras.Model:
    # The model is flat: Keras would load a layer shared with a nested model as two layers, one without weights.
    inputs, states = dict(core.input), _sequence(core.output)
    if task.kind.head == "masked":
        inputs[MASKED_POSITIONS] = keras.Input((None,), dtype="int32", name=MASKED_POSITIONS)
        states = ops.take_along_axis(states, inputs[MASKED_POSITIONS][..., None], axis=1)
        states = keras.layers.Dense(backbone.token_embedding.output_dim, name="head_dense")(states)
        # An exported model has the same activation and epsilon in all layers.
        activation = backbones.activation_of(backbone)
        states = ops.relu(states) if activation == "relu" else ops.gelu(states, approximate=activation != "gelu")
        epsilon = family_of(backbone).head_epsilon
        states = keras.layers.LayerNormalization(epsilon=epsilon, name="head_norm")(states)
    if backbones.scales_tied_logits(backbone):
        states = states * states.shape[-1] ** -0.5
    logits = backbone.token_embedding(states, reverse=True)
    if has_bias:  # Keras has no bias layer
        bias = keras.layers.Dense(logits.shape[-1], kernel_initializer="zeros", name="head_bias")
        logits = logits + bias(ops.zeros_like(states[..., :1]))
    model = keras.Model(inputs, logits, name=f"{backbone.name}_logits")
    # Under the policy bfloat16, Keras would not cast the embedding, a layer with integer inputs (autocast=False), and
    # would compute the logits in float32.
    model.dtype_policy = keras.config.floatx()
    return model


def _pool(sequence_BLD: Any, mask_BL: Any, *, pooling: Pooling) -> Any:
    count_BL = ops.cumsum(mask_BL, axis=1)  # padding may be on either side
    if pooling == "first":
        chosen_BL = ops.cast(ops.equal(count_BL, 1), "int32") * mask_BL
    elif pooling == "last":
        chosen_BL = ops.cast(ops.equal(count_BL, ops.sum(mask_BL, axis=1, keepdims=True)), "int32") * mask_BL
    else:
        chosen_BL = mask_BL
    share_BL = ops.cast(chosen_BL, sequence_BLD.dtype)
    # The mean of a row with only padding is 0.
    share_BL = share_BL / ops.maximum(ops.sum(share_BL, axis=1, keepdims=True), 1)
    return ops.einsum("bld,bl->bd", sequence_BLD, share_BL)
