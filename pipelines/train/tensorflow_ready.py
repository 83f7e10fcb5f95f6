"""TensorFlow and Keras, imported when a command's options are in order, without what they print about themselves.

TensorFlow reads on any backend; with JAX it gets no accelerator.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Literal

from pipelines.terminal import tensorflow_start
from tfrecord_io.errors import ConfigError
from tfrecord_io.ordering.settings import GCS_BLOCK_SIZE

__all__ = ["ask_for_exact_ranges", "load"]


def ask_for_exact_ranges() -> None:
    """Let TensorFlow ask gs:// for what is read and no more, unless the user has decided. Without effect after `load`.

    By default it asks for 64 MiB at each place that it reads from, which `global_records` explains.
    """
    os.environ.setdefault(GCS_BLOCK_SIZE, "0")


def load(*, verbose: bool, backend: Literal["tensorflow", "jax"] = "tensorflow") -> None:
    """Import TensorFlow, and Keras with a backend. Raises: ConfigError if they cannot be imported."""
    os.environ["KERAS_BACKEND"] = backend  # TensorFlow imports Keras
    try:
        tensorflow_start.load(verbose=verbose)
        import keras  # noqa: F401

        if backend == "jax":
            importlib.import_module("orbax.checkpoint")
            import tensorflow as tf

            tf.config.set_visible_devices([], "GPU")
            tf.config.set_visible_devices([], "TPU")
    except ImportError as error:
        raise ConfigError(
            f"this command needs TensorFlow and Keras, which cannot be imported ({error})"
            if backend == "tensorflow"
            else f"--backend jax needs TensorFlow, Keras, JAX and Orbax, of which one cannot be imported ({error})",
            remedy=f"run `pip install '.[{'train' if backend == 'tensorflow' else 'jax'}]'`",
        ) from error
    if not verbose:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
