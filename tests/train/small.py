"""Models of a user's own, as `--model tests.train.small:NAME` builds them: small enough to train in a blink."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import segment_attention_mask


def bag(manifest: Manifest) -> keras.Model:
    return _bag(manifest)


def steady(manifest: Manifest) -> keras.Model:
    return _bag(manifest, dropout=0.0, any_length=True)


def spans(manifest: Manifest) -> keras.Model:
    """Says of each token how likely an answer begins and ends there, from the token alone."""
    inputs = {"input_ids": keras.Input((manifest.row_length,), dtype="int32", name="input_ids")}
    tokens_BLD = keras.layers.Embedding(manifest.tokenizer.vocab_size, 16)(inputs["input_ids"])
    return keras.Model(inputs, keras.layers.Dense(2)(tokens_BLD))


def score(manifest: Manifest) -> keras.Model:
    return _bag(manifest, num_outputs=1, dropout=0.0)


def normed(manifest: Manifest) -> keras.Model:
    model = bag(manifest)
    return keras.Model(model.input, keras.layers.BatchNormalization()(model.output))


def narrow(manifest: Manifest) -> keras.Model:
    return _bag(manifest, vocab_size=10)


def wide(manifest: Manifest) -> keras.Model:
    return _bag(manifest, num_outputs=3)


def everywhere(manifest: Manifest) -> keras.Model:
    inputs = {"input_ids": keras.Input((manifest.row_length,), dtype="int32", name="input_ids")}
    return keras.Model(inputs, _tokens(manifest)(inputs["input_ids"]))


def next_tokens(manifest: Manifest) -> keras.Model:
    """Predicts the next token of a pair's answers from the token alone."""
    inputs = {"token_ids": keras.Input((manifest.row_length,), dtype="int32", name="token_ids")}
    return keras.Model(inputs, _tokens(manifest)(inputs["token_ids"]))


# What `shifted` adds to its weights; a test changes it.
shift = 0.1


def shifted(manifest: Manifest) -> keras.Model:
    """As `next_tokens`, with weights that follow from `shift`."""
    model = next_tokens(manifest)
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(list(variable.shape)).normal(scale=shift, size=variable.shape))
    return model


def answer(manifest: Manifest) -> keras.Model:
    """As `bag` to a number, for a pair's answers."""
    inputs = {n: keras.Input((manifest.row_length,), dtype="int32", name=n) for n in ("token_ids", "padding_mask")}
    tokens_BLD = keras.layers.Embedding(manifest.tokenizer.vocab_size, 8)(inputs["token_ids"])
    mask_BL = ops.cast(inputs["padding_mask"], tokens_BLD.dtype)
    return keras.Model(inputs, keras.layers.Dense(1)(ops.einsum("bld,bl->bd", tokens_BLD, mask_BL)))


def apart(manifest: Manifest) -> keras.Model:
    """One layer of attention; a token sees the earlier tokens of its document."""
    names = ("input_ids", "segment_ids", "positions")
    inputs = {name: keras.Input((manifest.row_length,), dtype="int32", name=name) for name in names}
    embedding = keras.layers.Embedding(manifest.tokenizer.vocab_size, 16)
    places = keras.layers.Embedding(manifest.row_length, 16)
    states = embedding(inputs["input_ids"]) + places(inputs["positions"])
    mask = keras.layers.Lambda(lambda ids: segment_attention_mask(ids, causal=True))(inputs["segment_ids"])
    states = states + keras.layers.MultiHeadAttention(2, 8)(states, states, attention_mask=mask)
    return keras.Model(inputs, keras.layers.Dense(manifest.tokenizer.vocab_size)(states))


def at_positions(manifest: Manifest) -> keras.Model:
    """Like `everywhere`, but only at the positions to predict."""
    inputs = {
        "input_ids": keras.Input((manifest.row_length,), dtype="int32", name="input_ids"),
        "masked_positions": keras.Input((None,), dtype="int32", name="masked_positions"),
    }
    return keras.Model(
        inputs, _tokens(manifest)(ops.take_along_axis(inputs["input_ids"], inputs["masked_positions"], axis=1))
    )


def broken(manifest: Manifest) -> keras.Model:
    raise KeyError(manifest.name)


def nothing(manifest: Manifest) -> Any:
    return manifest


def _tokens(manifest: Manifest) -> keras.Model:
    vocab_size = manifest.tokenizer.vocab_size
    return keras.Sequential([keras.layers.Embedding(vocab_size, 8), keras.layers.Dense(vocab_size)])


def _bag(
    manifest: Manifest, *, vocab_size: int = 0, num_outputs: int = 0, dropout: float = 0.2, any_length: bool = False
) -> keras.Model:
    length = None if any_length else manifest.row_length
    inputs = {name: keras.Input((length,), dtype="int32", name=name) for name in ("input_ids", "attention_mask")}
    inputs["token_type_ids"] = keras.Input((length,), dtype="int32", name="token_type_ids")
    tokens_BLD = keras.layers.Embedding(vocab_size or manifest.tokenizer.vocab_size, 16)(inputs["input_ids"])
    # Keras 3.12 refuses an input that nothing is connected to.
    mask_BL = ops.cast(inputs["attention_mask"] + 0 * inputs["token_type_ids"], tokens_BLD.dtype)
    mean_BD = ops.einsum("bld,bl->bd", tokens_BLD, mask_BL) / ops.sum(mask_BL, axis=1, keepdims=True)
    head = keras.layers.Dense(num_outputs or len(manifest.label_names or ()))
    return keras.Model(inputs, head(keras.layers.Dropout(dropout)(mean_BD)))
