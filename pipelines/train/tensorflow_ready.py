"""TensorFlow and Keras, imported when a command's options are in order, without what they print about themselves."""

from __future__ import annotations

import logging
import os

from pipelines.terminal import tensorflow_start
from tfrecord_io.errors import ConfigError

__all__ = ["load"]


def load(*, verbose: bool) -> None:
    """Import TensorFlow, and make Keras use it. Raises: ConfigError if they cannot be imported."""
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the only one that knows tf.distribute
    try:
        tensorflow_start.load(verbose=verbose)
        import keras  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"this command needs TensorFlow and Keras, which cannot be imported ({error})",
            remedy="run `pip install '.[train]'`",
        ) from error
    if not verbose:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
