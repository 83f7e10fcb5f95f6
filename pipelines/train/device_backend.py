"""Interface of the TensorFlow and JAX backends, and the batches that they read.

Each row length has its own stream of batches and compiled step.
"""

from __future__ import annotations

import dataclasses
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
from tfrecord_io.errors import ConfigError, FingerprintMismatchError
from tfrecord_io.format import json_fields
from tfrecord_io.input_pipeline.base import InputFunctions
from tfrecord_io.reader import Data
from tfrecord_io.shown import some

# (steps taken, loss of the last step) -> whether to continue
AfterCall = Callable[[int, float], bool]
# Input functions by row length, and an iterator over the row lengths of the steps.
Feed = tuple[Mapping[int, Any], Iterator[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputParts:
    """Number of hosts that read a batch, and number of parts of a batch (0 in TensorFlow: one per replica).

    Batches depend on the number of hosts, and masks on the number of parts, so a training run records both when it
    begins. If it resumes on fewer hosts, each reads several streams; on more hosts, several read the same stream.
    TensorFlow cannot resume on another number of hosts. With --order global, batches depend on neither number.
    """

    hosts: int
    parts: int = 0

    def kept(self, recorded: Mapping[str, Any], *, order: str, model_dir: str) -> InputParts:
        """Return the hosts and parts to resume with. `recorded`: `hosts` and `parts` when the training run began.

        Raises: FingerprintMismatchError if the present number of hosts cannot make the same batches.
        """
        began = InputParts(**{name: json_fields.count(recorded[name]) for name in ("hosts", "parts")})
        if order == "global" or (began.parts % self.hosts == 0 if began.parts else began.hosts == self.hosts):
            return self if order == "global" else began
        fitting = [hosts for hosts in range(1, began.parts + 1) if began.parts % hosts == 0] or [began.hosts]
        raise FingerprintMismatchError(
            f"--model-dir {model_dir} contains a training run that began on {some(began.hosts, 'host')}, but this run "
            f"has {self.hosts}; with --order hosts, batches depend on the hosts, expected "
            f"{' or '.join(map(str, fitting))}",
            remedy="continue on such a number of hosts, or start in another --model-dir with --order global, "
            "which allows any number",
        )

    def read(self, make: Callable[[tf.distribute.InputContext], tf.data.Dataset], *, host: int, hosts: int) -> Any:
        """Return a `tf.data` dataset with one host's share of each global batch: arrays [parts / hosts, rows, ...].

        `make`: input function of one stream of batches. `host`: number of the host, from 0, of `hosts`.
        """
        parts_per_stream = self.parts // self.hosts
        first, last = (self.parts // hosts * at for at in (host, host + 1))

        def stream(former: int) -> tf.data.Dataset:
            context = tf.distribute.InputContext(
                num_input_pipelines=self.hosts, input_pipeline_id=former, num_replicas_in_sync=self.parts
            )
            own = slice(max(0, first - former * parts_per_stream), last - former * parts_per_stream)
            steps = make(context).batch(parts_per_stream, drop_remainder=True)
            return steps.map(lambda *step: tf.nest.map_structure(lambda values: values[own], step))

        streams = tuple(map(stream, range(first // parts_per_stream, (last - 1) // parts_per_stream + 1)))
        joined = tf.data.Dataset.zip(streams)
        return joined.map(lambda *steps: tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *steps))


class DeviceBackend(Protocol):
    """Devices of a training run or prediction. A learner is a model in training.

    `hardware`: the devices in words. `is_first`: whether this process writes files and messages for all processes.
    """

    replicas: int
    input_parts: InputParts
    hardware: str
    is_first: bool
    peak_flops: float  # per second and device, 0 if unknown

    def learner(self, job: TrainingSetup) -> Learner:
        """Build a training run's model and optimizer. Raises: ConfigError."""

    def current(self, learner: Any) -> keras.Model:
        """Return a learner's model, with its current weights."""

    def frozen(self, learner: Any) -> list[np.ndarray]:
        """Return the weights of a learner's reference model, or [] if it has none."""

    def saves(self, learner: Any, folder: str, *, keep: int) -> Saves:
        """Open a folder for the newest `keep` checkpoints of a learner."""

    def train(self, learner: Any, feed: Feed, *, until: int, steps_per_call: int, after_call: AfterCall) -> None:
        """Train a learner until step `until`, or until `after_call` returns False.

        `after_call` is called every `steps_per_call` steps. `feed`: result of the function `feed`.
        """

    def evaluate(self, learner: Any, feed: Feed) -> Evaluated:
        """Evaluate a learner on all batches of `feed`, a result of the function `feed`."""

    def place_model(self, load: Callable[[], BuiltModel]) -> keras.Model:
        """Return the model that `load` makes, placed on the devices for predictions."""

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """Return a function from the features of a batch to `outputs(call, features)`, computed on the devices.

        `call` maps features to the model's logits. `like`: the features of a batch, for their shapes and dtypes.
        """

    def anywhere(self, here: bool) -> bool:
        """Return whether `here` is true in any process. All processes must call this together."""


def built(job: TrainingSetup) -> BuiltModel:
    """Set Keras' seed and precision, and build the model of a training run. Raises: ConfigError."""
    config = job.config
    keras.utils.set_random_seed(config.seed % 2**32)
    keras.mixed_precision.set_global_policy(
        "mixed_bfloat16" if config.precision == "bfloat16" else keras.config.floatx()
    )
    model = models.build(config, job.data.manifest, job.task)
    if not model.model.trainable_variables:
        raise ConfigError(f"--model {config.model}: the model has no weights to train", remedy="give another --model")
    if not job.task.kind.reference:
        return model
    return dataclasses.replace(model, reference=models.reference_of(config, job.data.manifest, job.task, model))


def feed(
    job: TrainingSetup, backend: DeviceBackend, data: InputFunctions, split: str, *, training: bool, start_step: int = 0
) -> Feed:
    """Return the input functions of a split of `data` by row length, and the row length of each step.

    In training, the batches are endless, from `start_step` on. In evaluation, every example occurs once.
    """
    config, length = job.config, data.manifest.row_length
    options: dict[str, Any] = {"global_batch_size": config.global_batch_size, "order": config.order}
    options |= {"seed": config.seed, "objective": job.task.objective, "training": training}
    if isinstance(data, Data) and data.manifest.bucket_lengths:
        batches = buckets.read(data, split, **options, replicas=backend.replicas)
        input_fns = {length: batches.input_fn(length, start_step=start_step) for length in batches.lengths}
        return input_fns, batches.schedule(start_step)
    total = config.steps if training else None
    input_fn = data.input_fn(split, **options, start_step=start_step, steps=total)
    if training:
        return {length: input_fn}, itertools.repeat(length)
    assert isinstance(data, Data), "only training is mixed"
    steps = data.evaluation_steps(split, global_batch_size=config.global_batch_size)
    return {length: input_fn}, itertools.repeat(length, steps)


def element_specs(job: TrainingSetup, *, replicas: int) -> list[Any]:
    """Return, for each row length of the data, TensorSpecs of one replica's part of a batch."""
    config, context = job.config, tf.distribute.InputContext(num_replicas_in_sync=replicas)
    specs = []
    for part in setup.by_length(job.data).values():
        # The training split may lack a length that another split has.
        splits = [config.train_split, *part.splits]
        split = next(name for name in splits if name in part.splits and part.num_examples(name))
        options: dict[str, Any] = {"objective": job.task.objective, "training": split == config.train_split}
        input_fn = part.input_fn(split, global_batch_size=config.global_batch_size, **options)
        specs.append(input_fn(context).element_spec)
    return specs
