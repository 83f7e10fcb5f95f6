"""Engines, which drive the devices: TensorFlow's strategies or JAX, by the backend that Keras was imported with;
and the batches that they get, one stream of them, or one for each length of rows.

    engine ─► learner      a model on the devices, with its optimizer's state and its step
           ─► saves        a folder of checkpoints
           ─► train, evaluate, predict

All else of a training is written once: tasks, models, losses, AdamW, what is logged, what is kept and when.

    rows of one length         {64: input_fn}                      64, 64, 64, 64, ...
    a dataset with buckets     {32: input_fn, 64: input_fn}        64, 32, 64, 64, ...      see `tfrecord_io.buckets`

Every element has a static shape, so each length is a compiled step of its own.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from pipelines.train import models, setup
from pipelines.train.checkpoints import Saves
from pipelines.train.metrics import Evaluated
from pipelines.train.models import BuiltModel
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import Learner
from tfrecord_io import buckets
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline.input_functions import InputFunctions
from tfrecord_io.reader import Data

# (steps taken, loss of the last of them) -> whether to go on
AfterCall = Callable[[int, float], bool]
# Input functions of the reader by length of rows, and the length of each step's batch, from the first.
Feed = tuple[Mapping[int, Any], Iterator[int]]


class DeviceEngine(Protocol):
    """Devices that train together, in `replicas` equal parts. `is_first`: whether this process writes for all.

    `input_parts`: in how many parts the reader makes a batch, if that need not be one for each replica; else 0.
    """

    replicas: int
    input_parts: int
    hardware: str
    is_first: bool
    peak_flops: float  # of one device in a second, 0 if that is not known

    @property
    def hosts(self) -> int:
        """Machines that read."""

    def learner(self, job: TrainingSetup) -> Learner:
        """The model of a training, with random or pretrained weights. Raises: ConfigError if there is no such model."""

    def current(self, learner: Any) -> keras.Model:
        """The Keras model with the learner's present weights."""

    def saves(self, learner: Any, folder: str, *, keep: int) -> Saves:
        """The checkpoints in a folder, of which the newest `keep` stay."""

    def train(self, learner: Any, feed: Feed, *, until: int, steps_per_call: int, after_call: AfterCall) -> None:
        """Take steps until step `until`, in calls of `steps_per_call` steps, unless `after_call` ends it."""

    def evaluate(self, learner: Any, feed: Feed) -> Evaluated:
        """One pass over all that the feed has: the task's sums, and what it needs of each row."""

    def place_model(self, load: Callable[[], BuiltModel]) -> keras.Model:
        """Load a model to predict with."""

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """The function from the features of a batch, of the shapes of `like`, to the outputs for its rows, in order.

        `outputs(call, features)` gives them on the devices, where `call` takes features to logits.
        """

    def anywhere(self, here: bool) -> bool:
        """Return whether something is so on any of the processes that train together; all must ask."""


def built(job: TrainingSetup) -> BuiltModel:
    """Build the model of a training, with Keras set up as asked. Raises: ConfigError if there is no such model."""
    config = job.config
    keras.utils.set_random_seed(config.seed % 2**32)
    keras.mixed_precision.set_global_policy(
        "mixed_bfloat16" if config.precision == "bfloat16" else keras.config.floatx()
    )
    found = models.build(config, job.data.manifest, job.task)
    if not found.model.trainable_variables:
        raise ConfigError(f"--model {config.model}: it has no weights to train")
    return found


def feed(
    job: TrainingSetup, engine: DeviceEngine, data: InputFunctions, split: str, *, training: bool, start_step: int = 0
) -> Feed:
    """Return the batches of a split: without end from step `start_step` on, or those that have every example once."""
    config, length = job.config, data.manifest.row_length
    sizes: dict[str, Any] = {"global_batch_size": config.global_batch_size, "order": config.order}
    given = {**sizes, "seed": config.seed, "objective": job.task.objective, "training": training}
    if isinstance(data, Data) and data.manifest.bucket_lengths:
        found = buckets.read(data, split, **given, replicas=engine.replicas, hosts=engine.hosts)
        input_fns = {length: found.input_fn(length, start_step=start_step) for length in found.lengths}
        return input_fns, found.schedule(start_step)
    input_fn = data.input_fn(split, **given, start_step=start_step)
    if training:
        return {length: input_fn}, itertools.repeat(length)
    assert isinstance(data, Data), "only training is mixed"
    return {length: input_fn}, itertools.repeat(length, data.evaluation_steps(split, **sizes, num_hosts=engine.hosts))


def element_specs(job: TrainingSetup, *, replicas: int) -> list[Any]:
    """Return what one replica gets of a batch, for each length of rows."""
    config, context = job.config, tf.distribute.InputContext(num_replicas_in_sync=replicas)
    specs = []
    for part in setup.by_length(job.data).values():
        # A length may be missing in the training split, and not in another.
        splits = [config.train_split, *part.splits]
        split = next(name for name in splits if name in part.splits and part.num_examples(name))
        input_fn = part.input_fn(
            split,
            global_batch_size=config.global_batch_size,
            objective=job.task.objective,
            training=split == config.train_split,
        )
        specs.append(input_fn(context).element_spec)
    return specs
