"""Models as a training run leaves them, without the training run: their weights are the first ones, moved a little."""

import functools
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pyarrow.parquet as pq

from pipelines.train import model_files, models, run, setup
from pipelines.train.checkpoints import save_model
from pipelines.train.config import TrainConfig
from pipelines.train.models import backbones
from tests import building
from tests.building import Outcome
from tests.train import training


@functools.cache
def finished(task: str, model: str, *, data: Path | None = None, layers: int = 2, **changes: object) -> Path:
    """The folder of a finished model for `task`, made once. Shared: copy it before changing it. `layers`: of *-tiny."""
    folder = building.new_folder() / "model"
    folder.mkdir()
    options: dict[str, Any] = {"data": str(data or training.data()), "task": task, "model": model, **changes}
    job = setup.check(TrainConfig(**options, model_dir=str(folder), tpu="none"))
    keras.utils.set_random_seed(7)
    with mock.patch.dict(backbones._SIZES, tiny=(layers, 2, 128)):
        built = models.build(job.config, job.data.manifest, job.task)
    rng = np.random.default_rng(7)
    for variable in built.model.trainable_variables:  # biases are 0 at first, scales 1: one could be left out unseen
        variable.assign(variable + rng.normal(scale=0.05, size=variable.shape))
    save_model(built.model, str(folder), *model_files.FINAL)
    model_files.copy_tokenizer(job.data.root, str(folder / "tokenizer"))
    model_files.write(str(folder), run.describe(job, built=built, steps=8, metrics={"loss": 0.5}))
    return folder


def command(name: str, **options: object) -> Outcome:
    return training.run([name, *training.flags(**options)])


def done(name: str, **options: object) -> Outcome:
    outcome = command(name, **options)
    assert outcome.status == 0, outcome.err
    return outcome


def predicted(folder: Path, **options: object) -> list[dict[str, Any]]:
    done("predict", output=folder / "p.parquet", overwrite=True, tpu="none", **options)
    rows: list[dict[str, Any]] = pq.read_table(folder / "p.parquet").to_pylist()
    return rows
