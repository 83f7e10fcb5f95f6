"""The batches of a training and of an evaluation: one stream of them, or one for each length of rows.

    rows of one length         {64: stream}                      64, 64, 64, 64, ...
    a dataset with buckets     {32: stream, 64: stream}          64, 32, 64, 64, ...      see `tfrecord_io.buckets`

Every element has a static shape, so each length is a compiled step of its own.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from pipelines.train import datasets
from pipelines.train.config import TrainConfig
from pipelines.train.engines import Engine, Feed
from pipelines.train.tasks import BoundTask
from tfrecord_io import buckets
from tfrecord_io.buckets import Buckets
from tfrecord_io.input_pipeline.input_functions import InputFunctions
from tfrecord_io.reader import Data

__all__ = ["Feeds", "element_specs"]


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
    for part in datasets.by_length(data).values():
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
