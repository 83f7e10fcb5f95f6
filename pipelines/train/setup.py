"""Setup of a training, checked before any device is touched: mistakes show in a second, not after a wait for
a TPU.

    --tpu ─► target        which accelerator, and whether its host sees the paths
    --data ─► manifest     shards there and whole ─► splits ─► task
    --model-dir            empty, or of this very training
    on a TPU only          the input pipelines themselves, built on this machine and looked at (`tfrecord_io.readiness`)

Only the last builds a graph. On a host it would come too soon: a CPU can be split only before TensorFlow has used it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipelines.train import checkpoints, datasets, targets, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.models import names
from pipelines.train.targets import Target
from pipelines.train.tasks import BoundTask
from tfrecord_io import manifest, readiness
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline.input_functions import InputFunctions

__all__ = ["TrainingSetup", "check", "identity"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A training that can begin. `warnings` are for people: what works on this TPU, but costs more than it has to."""

    config: TrainConfig
    target: Target
    data: InputFunctions
    eval_split: str | None
    task: BoundTask
    warnings: tuple[str, ...]


def check(config: TrainConfig) -> TrainingSetup:
    """Raises: PrepError of the kind that says what is wrong."""
    config.require_model_dir()
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    for option, path in (*(("--data", folder) for folder in config.data_folders), ("--model-dir", config.model_dir)):
        targets.require_reachable_path(target, option=option, path=path)
    data = datasets.open_data(config)
    eval_split = _eval_split(config, data)
    datasets.require_labels(config, data, eval_split=eval_split)
    config = datasets.with_num_labels(config, data, eval_split=eval_split)
    config = config.sized(rows=data.num_examples(config.train_split))
    config = dataclasses.replace(config, precision=targets.precision(config.precision, is_tpu=target.is_tpu))
    task = tasks.bind(config, data.manifest)
    names.require_known(config.model)
    _refuse_dataset(config.model_dir)
    checkpoints.belongs_to(config.model_dir, identity=identity(config, data))
    warnings: tuple[str, ...] = ()
    if target.is_tpu:
        inputs = [(part, config.train_split, True) for part in datasets.by_length(data).values()]
        if eval_split is not None:
            for each in datasets.evaluated(data, eval_split).values():
                inputs += [(part, eval_split, False) for part in datasets.by_length(each).values()]
        inputs = [(part, split, endless) for part, split, endless in inputs if part.num_examples(split)]
        warnings = tuple(_unfit(config, inputs, task, target=target))
    return TrainingSetup(config=config, target=target, data=data, eval_split=eval_split, task=task, warnings=warnings)


def _refuse_dataset(model_dir: str) -> None:
    """Raises: ConfigError if the folder for the model is one of prepared data."""
    if tf.io.gfile.exists(f"{model_dir.rstrip('/')}/{manifest.FILE_NAME}"):
        raise ConfigError(
            f"--model-dir {model_dir} holds a prepared dataset, expected a folder for checkpoints and the model alone",
            remedy="give another --model-dir",
        )


def _unfit(
    config: TrainConfig, inputs: Iterable[tuple[InputFunctions, str, bool]], task: BoundTask, *, target: Target
) -> list[str]:
    """Lines on what is not as good as it could be. Raises: ReaderError for what cannot run on the TPU at all."""
    findings = [
        finding
        for data, split, endless in inputs
        for finding in readiness.check_data(
            data,
            split,
            global_batch_size=config.global_batch_size,
            tpu="node" if target.kind == "tpu-node" else "vm",
            num_replicas=config.replicas or 1,  # how many it has is not known before it is reached
            objective=task.objective,
            training=endless,
            order=config.order,
            start_step=checkpoints.last_step(config.model_dir) if endless else 0,
        )
    ]
    readiness.require(findings)
    return readiness.describe(dict.fromkeys(findings)).splitlines() if findings else []


def identity(config: TrainConfig, data: InputFunctions) -> Mapping[str, Any]:
    """Return what a folder of checkpoints is for, see `checkpoints`."""
    # Trainings of TensorFlow, which was the only one, do not name it.
    backend = {} if keras.backend.backend() == "tensorflow" else {"backend": keras.backend.backend()}
    return {"data": data.manifest.fingerprint, **backend, **config.identity()}


def _eval_split(config: TrainConfig, data: InputFunctions) -> str | None:
    datasets.require_split(data, config.train_split, option="--train-split", all_have_it=True)
    if config.eval_split is None:
        usual = [name for name in ("validation", "test") if datasets.has_labels(config, data, name)]
        found = next((name for name in usual if name != config.train_split), None)
        if found is None and (config.early_stopping or config.keep_best):
            option = "--early-stopping" if config.early_stopping else "--keep-best"
            raise ConfigError(
                f"{option}, but {data.root} has neither a validation nor a test split to evaluate",
                remedy=f"give --eval-split, one of {[name for name in data.splits if data.num_examples(name)]}, or "
                "build the data with --hold-out",
            )
        return found
    datasets.require_split(data, config.eval_split, option="--eval-split")
    return config.eval_split
