"""Models that XLA cannot compile for a TPU, or that exceed its memory. Tests look for lines with a name as comment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfrecord_io.manifest import Manifest


def line_of(comment: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    [number] = [index for index, line in enumerate(lines, start=1) if line.endswith(f"# {comment}")]
    return f"rule_breakers.py:{number}"


class _Layer(keras.layers.Layer):
    """A layer made of a function from int32 [B, L] to float32 [B, 4]."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(name=function.__name__.strip("_"))
        self._function = function

    def call(self, ids_BL: Any) -> Any:
        return self._function(ids_BL)

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (shape[0], 4)


def _decides(ids_BL: Any) -> Any:
    if ops.sum(ids_BL) > 0:  # decides
        ids_BL = ids_BL + 1
    return ops.cast(ids_BL[:, :4], "float32")


def spells(ids_BL: Any) -> Any:
    words = tf.strings.as_string(ids_BL)  # spells
    return tf.cast(tf.strings.to_hash_bucket_fast(words[:, :4], 7), tf.float32)


def _grows(ids_BL: Any) -> Any:
    wide_BD = ops.cast(ops.tile(ids_BL, [1, 2048]), "float32") / 1000.0
    pairs_BDD = ops.softmax(wide_BD[:, :, None] * wide_BD[:, None, :], axis=-1)
    return ops.matmul(pairs_BDD, ops.softmax(pairs_BDD, axis=1))[:, 0, :4]


def decides(manifest: Manifest) -> keras.Model:
    return _model(manifest, _decides)


def grows(manifest: Manifest) -> keras.Model:
    return _model(manifest, _grows)


def _model(manifest: Manifest, function: Callable[[Any], Any]) -> keras.Model:
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: keras.Input((manifest.row_length,), dtype="int32", name=name) for name in names}
    return keras.Model(inputs, keras.layers.Dense(2)(_Layer(function)(inputs["input_ids"])))
