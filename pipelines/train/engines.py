"""Engines, which drive the devices: TensorFlow's strategies or JAX, by the backend that Keras was imported with;
and the batches that they get, one stream of them, or one for each length of rows.

    engine ─► learner      a model on the devices, with its optimizer's state and its step
           ─► feed         batches on the devices, from input functions of the reader
           ─► saves        a folder of checkpoints
           ─► train, evaluate, predict

All else of a training is written once: tasks, models, losses, AdamW, what is logged, what is kept and when.

    rows of one length         {64: stream}                      64, 64, 64, 64, ...
    a dataset with buckets     {32: stream, 64: stream}          64, 32, 64, 64, ...      see `tfrecord_io.buckets`

Every element has a static shape, so each length is a compiled step of its own.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from pipelines.train import models, setup
from pipelines.train.checkpoints import Saves
from pipelines.train.config import TrainConfig
from pipelines.train.metrics import Evaluated
from pipelines.train.models import Built
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import AdamW
from pipelines.train.tasks import BoundTask
from tfrecord_io import buckets
from tfrecord_io.buckets import Buckets
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline.input_functions import InputFunctions
from tfrecord_io.reader import Data

# (steps taken, loss of the last of them) -> whether to go on
AfterCall = Callable[[int, float], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feed:
    """`streams`: batches by length of rows; `schedule`: the length of each step's batch, from the first."""

    streams: Mapping[int, Any]
    schedule: Iterator[int]


class Learner(Protocol):
    """A model in training, on all devices."""

    built: Built
    flops: float  # that one device has done in this process, 0 where they are not counted

    @property
    def step(self) -> int:
        """Steps taken, restored ones included."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""


class Engine(Protocol):
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

    def feed(self, input_fns: Mapping[int, Any], schedule: Iterator[int]) -> Feed:
        """Batches for the devices, from the reader's input functions by length of rows."""

    def train(self, learner: Any, feed: Feed, *, until: int, steps_per_call: int, after_call: AfterCall) -> None:
        """Take steps until step `until`, in calls of `steps_per_call` steps, unless `after_call` ends it."""

    def evaluate(self, learner: Any, feed: Feed) -> Evaluated:
        """One pass over all that the feed has: the task's sums, and what it needs of each row."""

    def place_model(self, load: Callable[[], Built]) -> keras.Model:
        """Load a model to predict with."""

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """The function from the features of a batch, of the shapes of `like`, to the outputs for its rows, in order.

        `outputs(call, features)` gives them on the devices, where `call` takes features to logits.
        """

    def anywhere(self, here: bool) -> bool:
        """Return whether something is so on any of the processes that train together; all must ask."""


def built(job: TrainingSetup) -> Built:
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


def optimizer(config: TrainConfig) -> AdamW:
    """The optimizer's rule of a training."""
    return AdamW(
        rate=config.learning_rate,
        warmup=config.warmup,
        steps=config.total_steps,
        decay=config.weight_decay,
        clip_norm=config.clip_norm,
        schedule=config.schedule,
    )


class Feeds:
    """Makes the feeds of one training."""

    def __init__(self, config: TrainConfig, *, task: BoundTask, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._given: dict[str, Any] = {
            "global_batch_size": config.global_batch_size,
            "seed": config.seed,
            "objective": task.objective,
            "order": config.order,
        }

    def training(self, data: InputFunctions, *, start_step: int) -> Feed:
        """Batches without end, from step `start_step` on."""
        split, length = self._config.train_split, data.manifest.row_length
        if isinstance(data, Data) and data.manifest.bucket_lengths:
            lengths = self._buckets(data, split, training=True)
            streams = {each: lengths.input_fn(each, start_step=start_step) for each in lengths.lengths}
            return self._engine.feed(streams, lengths.schedule(start_step))
        stream = data.input_fn(split, **self._given, training=True, start_step=start_step)
        return self._engine.feed({length: stream}, itertools.repeat(length))

    def evaluation(self, data: Data, split: str) -> Feed:
        """Batches that have every example once."""
        length, given, hosts = data.manifest.row_length, self._given, self._engine.hosts
        if data.manifest.bucket_lengths:
            lengths = self._buckets(data, split, training=False)
            return self._engine.feed({each: lengths.input_fn(each) for each in lengths.lengths}, lengths.schedule())
        sizes = {name: given[name] for name in ("global_batch_size", "order")}
        steps = data.evaluation_steps(split, **sizes, num_hosts=hosts)
        stream = data.input_fn(split, **given, training=False)
        return self._engine.feed({length: stream}, itertools.repeat(length, steps))

    def _buckets(self, data: Data, split: str, *, training: bool) -> Buckets:
        engine = self._engine
        return buckets.read(data, split, **self._given, replicas=engine.replicas, hosts=engine.hosts, training=training)


def element_specs(data: InputFunctions, config: TrainConfig, task: BoundTask, *, replicas: int) -> list[Any]:
    """Return what one replica gets of a batch, for each length of rows."""
    context = tf.distribute.InputContext(num_replicas_in_sync=replicas)
    specs = []
    for part in setup.by_length(data).values():
        # A length may be missing in the training split, and not in another.
        splits = [config.train_split, *part.splits]
        split = next(name for name in splits if name in part.splits and part.num_examples(name))
        input_fn = part.input_fn(
            split,
            global_batch_size=config.global_batch_size,
            objective=task.objective,
            training=split == config.train_split,
        )
        specs.append(input_fn(context).element_spec)
    return specs
