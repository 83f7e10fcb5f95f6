"""A SavedModel: token ids in, logits out. Tokenizing stays outside, since no op of TensorFlow's does it alike."""

from __future__ import annotations

from pathlib import Path

import keras

__all__ = ["write_saved_model"]


def write_saved_model(model: keras.Model, folder: Path) -> None:
    """Writes the SavedModel; its signature `serving_default` takes the model's inputs by name, for any batch size."""
    model.export(str(folder), format="tf_saved_model", verbose=False)
