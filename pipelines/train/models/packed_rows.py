"""Rows of several documents: the layers of a backbone, put together so that no document sees another.

    a row           a b c | d e .        documents 1 1 1 1 2 2 0      positions 0 1 2 3 0 1 0
    who sees whom   tokens of one document; in a decoder, none that comes later; padding sees padding

KerasHub's backbones take a mask of padding alone, but their layers take any mask, and any positions. So the same layers
are connected anew, under the same names: weights, checkpoints and exports are those of an ordinary BERT or GPT-2. A
document gets the logits that it would get in a row of its own (arXiv:2107.02027); a test holds them together.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from pipelines.train.config import TrainConfig
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest

__all__ = ["keeping_apart", "require"]

_KNOWN = ("BertBackbone", "GPT2Backbone")


def require(backbone: Any, *, config: TrainConfig, manifest: Manifest) -> None:
    """Raises: ConfigError if documents that share a row would see each other."""
    if type(backbone).__name__ not in _KNOWN:
        raise ConfigError(
            f"dataset {manifest.name!r} has several documents in a row, and --model {config.model} has no way to keep "
            "them apart, expected BERT, GPT-2, or a model that takes segment_ids and positions",
            remedy="choose bert-SIZE or gpt2-SIZE or a preset of them, give your own --model package.module:build "
            "(tfrecord_io.objectives.segment_attention_mask makes its mask), or build the data with --layout concat or "
            "pad",
        )


def keeping_apart(backbone: Any) -> keras.Model:
    """The backbone from `token_ids`, `documents` (1, 2, ... and 0 on padding) and `positions`, int32 [B, L], to the
    sequence [B, L, D].
    """
    names = ("token_ids", "documents", "positions")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    documents = inputs["documents"]
    # Padding sees padding: a token that sees nothing would leave a softmax without a term.
    mask_BLL = ops.equal(ops.expand_dims(documents, axis=2), ops.expand_dims(documents, axis=1))
    sequence = (_bert if type(backbone).__name__ == "BertBackbone" else _gpt2)(backbone, inputs, mask_BLL)
    return keras.Model(inputs, sequence, name=backbone.name)


def _bert(backbone: Any, inputs: dict[str, Any], mask_BLL: Any) -> Any:
    tokens = backbone.token_embedding(inputs["token_ids"])
    places = backbone.position_embedding(tokens, positions=inputs["positions"])
    types = backbone.segment_embedding(ops.zeros_like(inputs["token_ids"]))
    states = backbone.embeddings_add((tokens, places, types))
    states = backbone.embeddings_dropout(backbone.embeddings_layer_norm(states))
    for layer in backbone.transformer_layers:
        states = layer(states, attention_mask=mask_BLL)
    return states


def _gpt2(backbone: Any, inputs: dict[str, Any], mask_BLL: Any) -> Any:
    tokens = backbone.token_embedding(inputs["token_ids"])
    places = backbone.position_embedding(tokens, positions=inputs["positions"])
    states = backbone.embeddings_dropout(backbone.embeddings_add((tokens, places)))
    for layer in backbone.transformer_layers:
        states = layer(states, decoder_attention_mask=mask_BLL)
    return backbone.layer_norm(states)
