"""TensorFlow and Keras, imported when a command's options are in order, without what they print about themselves."""

from __future__ import annotations

import logging
import os

from pipelines.terminal import tensorflow_start
from tfrecord_io.errors import ConfigError
from tfrecord_io.ordering.settings import GCS_BLOCK_SIZE

__all__ = ["ask_for_exact_ranges", "load"]


def ask_for_exact_ranges() -> None:
    """Let TensorFlow ask gs:// for what is read and no more, unless the user has decided. Without effect after `load`.

    By default it asks for 64 MiB at each place that it reads from, which `global_records` explains.
    """
    os.environ.setdefault(GCS_BLOCK_SIZE, "0")


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
