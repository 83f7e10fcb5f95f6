"""Import Keras with the chosen backend, and open its devices.

TensorFlow reads the data for both backends. With JAX, TensorFlow uses no accelerators.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Literal

from pipelines.terminal import tensorflow_start
from pipelines.train import targets
from pipelines.train.config import PredictConfig, TrainConfig
from pipelines.train.targets import Target
from tfrecord_io.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.train.device_backend import DeviceBackend


def load(*, verbose: bool, backend: Literal["tensorflow", "jax"] = "tensorflow") -> None:
    """Import TensorFlow, and Keras with `backend`. `verbose`: show their logs. Raises: ConfigError."""
    os.environ["KERAS_BACKEND"] = backend  # before TensorFlow, which imports Keras
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
            else f"--backend jax needs TensorFlow, Keras, JAX and Orbax, but an import failed ({error})",
            remedy=f"run `pip install '.[{'train' if backend == 'tensorflow' else 'jax'}]'`",
        ) from error
    if not verbose:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)


def opened(target: Target, config: TrainConfig | PredictConfig) -> DeviceBackend:
    """Open the devices of a target; call this before anything uses them. Warn on stderr if `--tpu auto` found no TPU.

    Raises: DeviceError if the devices cannot be reached; ConfigError if they are too few, or cannot divide a batch.
    """
    import keras

    if keras.backend.backend() == "jax":
        from pipelines.train.on_jax.backend import JaxBackend

        backend: DeviceBackend = JaxBackend(target, replicas=config.replicas)
    else:
        from pipelines.train.on_tensorflow.backend import TensorFlowBackend

        backend = TensorFlowBackend(target, replicas=config.replicas, zone=config.zone, project=config.project)
    activity = "training" if isinstance(config, TrainConfig) else "predicting"
    for line in targets.missed_tpu(target, f"{activity} on {backend.hardware}"):  # before a model is loaded
        print(line, file=sys.stderr, flush=True)
    config.require_equal_parts(backend.replicas)
    return backend
