"""A replica step on one replica, and a batch for it: what a training repeats, without the training."""

from __future__ import annotations

from typing import Any

import keras

from pipelines.train import models, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.on_tensorflow.replica_step import ReplicaStep
from pipelines.train.steps.adamw import AdamW
from tfrecord_io.reader import Data

__all__ = ["prepared"]


def prepared(data: Data, *, batch_size: int = 4, **changes: Any) -> tuple[ReplicaStep, Any]:
    """The step of a training with these options, always with the same weights, and its first batch."""
    config = TrainConfig(data=data.root, model_dir="unused", tpu="none", **changes)
    bound = tasks.bind(config, data.manifest)
    batches = data.dataset("train", global_batch_size=batch_size, objective=bound.objective)
    keras.utils.set_random_seed(0)
    replica_step = ReplicaStep(
        models.build(config, data.manifest, bound),
        task=bound,
        optimizer=AdamW(rate=1e-3, warmup=0, steps=10, decay=0.0, clip_norm=1.0),
        seed=0,
        batch_specs=[batches.element_spec],
        accumulate=config.accumulate,
    )
    return replica_step, next(iter(batches))
