"""The engine of the backend that Keras was imported with."""

from __future__ import annotations

import keras

from pipelines.train.config import TrainConfig
from pipelines.train.engines import Engine
from pipelines.train.errors import TrainingError
from pipelines.train.predict.config import PredictConfig
from pipelines.train.targets import Target

__all__ = ["opened"]


def opened(target: Target, config: TrainConfig | PredictConfig) -> Engine:
    """The engine on a target. Must come before anything else uses devices. Raises: DeviceError if there are none."""
    backend = keras.backend.backend()
    if config.backend not in ("auto", backend):
        raise TrainingError(
            f"--backend {config.backend}, but Keras was imported with {backend}",
            remedy=f"set KERAS_BACKEND={config.backend} before Keras or TensorFlow is imported",
        )
    if backend == "jax":
        from pipelines.train.on_jax.engine import JaxEngine

        return JaxEngine(target, replicas=config.replicas)
    from pipelines.train.on_tensorflow.engine import TensorFlowEngine

    return TensorFlowEngine(target, replicas=config.replicas, zone=config.zone, project=config.project)
