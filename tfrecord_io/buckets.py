"""Read datasets with rows of several lengths. All rows of a batch have the same length, which is static.

    data = reader.open(root)                                  built with --bucket-lengths 64,128,256
    train = buckets.read(data, "train", tokens_per_batch=65_536, replicas=8, seed=0)
    train.rows(64), train.rows(256)                           1024, 256: the same number of tokens in each step

    distribute = strategy.distribute_datasets_from_function
    inputs = {length: iter(distribute(train.input_fn(length))) for length in train.lengths}
    for length in train.schedule():                           64, 256, 64, 128, ...
        step(next(inputs[length]))                            compiled once per length

    model.fit(train.dataset(), ...)                           the same batches for Keras, of shape [None, None]

Evaluation reads one row length after the other.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsIndex

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan, record_order
from tfrecord_io.input_pipeline.host_plan import Order, Shuffle
from tfrecord_io.mixture import source_seed
from tfrecord_io.objectives import Objective
from tfrecord_io.ordering import global_order
from tfrecord_io.reader import Data
from tfrecord_io.shown import some

__all__ = ["Buckets", "Rounds", "read"]


def read(
    data: Data,
    split: str,
    *,
    global_batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    replicas: int = 1,
    seed: int = 0,
    objective: Objective | None = None,
    training: bool | None = None,
    shuffle: Shuffle | None = None,
    order: Order = "hosts",
) -> Buckets:
    """Return the batches of a split with rows of several lengths.

    Give either `global_batch_size` or `tokens_per_batch`. Arguments without a description are as in
    `reader.Data.input_fn`.

    Args:
        global_batch_size: number of rows per step over all replicas, for every length.
        tokens_per_batch: maximum number of tokens per step over all replicas, including padding.
        replicas: the strategy's `num_replicas_in_sync`.

    Raises:
        ReaderError: all rows have one length, the split is missing or empty, or replicas cannot share a batch equally.
    """
    host_plan.check_seed(seed)
    host_plan.check_positive("replicas", replicas)
    if not data.manifest.bucket_lengths:
        raise ReaderError(
            f"{data.root}: all rows have {some(data.manifest.row_length, 'token')}, expected several lengths",
            remedy="read it with data.input_fn or data.dataset, or build it with --bucket-lengths",
        )
    if not data.num_examples(split):
        raise ReaderError(f"{data.root}: split {split!r} has no examples, expected at least one")
    datasets = {length: data.bucket(length) for length in data.manifest.bucket_lengths}
    parts = {length: part for length, part in datasets.items() if part.num_examples(split)}
    rows = _batch_rows(tuple(parts), replicas, global_batch_size=global_batch_size, tokens_per_batch=tokens_per_batch)
    return Buckets(
        parts=parts,
        split=split,
        batch_rows=rows,
        seed=seed,
        training=split == "train" if training is None else training,
        options={
            "order": order,
            "objective": objective,
            "shuffle": shuffle or (global_order.USUAL_SHUFFLE if order == "global" else Shuffle().shared(len(parts))),
        },
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buckets:
    """Batches of a split with rows of several lengths, made by `read`.

    parts: datasets by row length; each has only the rows of that length.
    batch_rows: number of rows in a batch, by row length.
    options: other arguments of `reader.Data.input_fn`.
    """

    parts: Mapping[int, Data]
    split: str
    batch_rows: Mapping[int, int]
    seed: int
    training: bool
    options: Mapping[str, Any]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Row lengths in tokens, ascending."""
        return tuple(self.parts)

    def rows(self, length: int) -> int:
        """Return the number of rows in a batch of this row length. Raises: ReaderError if no row has it."""
        self._part(length)
        return self.batch_rows[length]

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per pass over the examples: exact in evaluation; in training an average, at least 1."""
        if not self.training:
            return sum(self._evaluation_steps)
        return max(1, round(sum(data.num_examples(self.split) / self.rows(at) for at, data in self.parts.items())))

    def input_fn(
        self, length: int, *, start_step: SupportsIndex = 0
    ) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """Return an input function for the batches of one row length, as `reader.Data.input_fn`.

        It skips the batches of that length in the first `start_step` steps of `schedule`.
        """
        data = self._part(length)
        return data.input_fn(
            self.split,
            global_batch_size=self.batch_rows[length],
            seed=source_seed(self.seed, str(length)),
            training=self.training,
            start_step=self.steps_before(start_step)[length],
            **self.options,
        )

    def schedule(self, start_step: SupportsIndex = 0) -> Iterator[int]:
        """Yield the row length of each step, from `start_step` on; in training, without end."""
        first = host_plan.whole_step(start_step)
        if not self.training:
            yield from np.repeat(self.lengths, self._evaluation_steps)[first:].tolist()
            return
        begun, within = self._rounds.locate(first)
        for number in itertools.count(begun):
            order = self._order(number)[within if number == begun else 0 :]
            yield from (self.lengths[at] for at in order.tolist())

    def steps_before(self, step: SupportsIndex) -> dict[int, int]:
        """Return how many of the first `step` batches in `schedule` have each row length."""
        last = host_plan.whole_step(step)
        if not self.training:
            edges = np.cumsum([0, *self._evaluation_steps])
            counts = np.diff(np.minimum(edges, last))
        else:
            number, within = self._rounds.locate(last)
            begun = np.bincount(self._order(number)[:within], minlength=len(self.lengths))
            counts = begun + np.array(self._rounds.batches_before(number))
        return dict(zip(self.lengths, counts.tolist(), strict=True))

    def dataset(self, *, start_step: SupportsIndex = 0) -> tf.data.Dataset:
        """Return all batches in the order of `schedule`, for Keras in one process. Static shapes are [None, None]."""
        step = host_plan.whole_step(start_step)
        here = tf.distribute.InputContext(num_input_pipelines=1, num_replicas_in_sync=1)
        streams = [self.input_fn(length, start_step=step)(here) for length in self.lengths]
        slices = tf.data.Dataset.from_tensor_slices
        if self.training:
            number, within = self._rounds.locate(step)
            rounds = tf.data.Dataset.counter(number)
            choices = rounds.flat_map(lambda number: slices(self._shuffled(number))).skip(within)
            return tf.data.Dataset.choose_from_datasets(streams, choices, stop_on_empty_dataset=True)
        order = [self.lengths.index(length) for length in self.schedule(step)]
        batches = tf.data.Dataset.choose_from_datasets(streams, slices(tf.constant(order, tf.int64)))
        return batches.apply(tf.data.experimental.assert_cardinality(len(order)))

    @functools.cached_property
    def _rounds(self) -> Rounds:
        return Rounds(
            rows=tuple(data.num_examples(self.split) for data in self.parts.values()),
            batch_rows=tuple(self.batch_rows[length] for length in self.lengths),
        )

    def _order(self, number: int) -> np.ndarray:
        order: np.ndarray = record_order.on_client(lambda: self._shuffled(tf.constant(number, tf.int64)).numpy())
        return order

    def _shuffled(self, number: tf.Tensor) -> tf.Tensor:
        rows, batch = tf.constant(self._rounds.rows, tf.int64), tf.constant(self._rounds.batch_rows, tf.int64)
        counts = (number + 1) * rows // batch - number * rows // batch
        buckets = tf.repeat(tf.range(len(self.lengths), dtype=tf.int64), counts)
        stream = record_order.random_stream(self.seed, record_order.BUCKET_ORDER, number)
        return tf.random.experimental.stateless_shuffle(buckets, stream)

    @functools.cached_property
    def _evaluation_steps(self) -> list[int]:
        rows = self.batch_rows
        return [data.evaluation_steps(self.split, global_batch_size=rows[at]) for at, data in self.parts.items()]

    def _part(self, length: int) -> Data:
        if length not in self.parts:
            raise ReaderError(
                f"split {self.split!r} has no rows of length {length}, expected one of {list(self.parts)}"
            )
        return self.parts[length]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds:
    """Numbers of batches in rounds of training. A round is one pass over all rows, with batches in random order.

    A pass is seldom a whole number of batches, so the first r rounds have floor(r * rows / batch_rows) batches of a
    row length. `rows` and `batch_rows` have one entry per length: its rows in the split and in a batch.
    """

    rows: tuple[int, ...]
    batch_rows: tuple[int, ...]

    def batches_before(self, number: int) -> tuple[int, ...]:
        return tuple(number * rows // batch for rows, batch in zip(self.rows, self.batch_rows, strict=True))

    def locate(self, step: int) -> tuple[int, int]:
        """Return the number of the round that contains a step, and the number of earlier steps in the round."""
        number = bisect.bisect_right(range(1 << 62), step, key=lambda past: sum(self.batches_before(past))) - 1
        return number, step - sum(self.batches_before(number))


def _batch_rows(
    lengths: tuple[int, ...], replicas: int, *, global_batch_size: int | None, tokens_per_batch: int | None
) -> dict[int, int]:
    if (global_batch_size is None) == (tokens_per_batch is None):
        raise ReaderError(
            f"global_batch_size is {global_batch_size}, tokens_per_batch is {tokens_per_batch}, expected one of them",
            remedy="give either the number of rows per batch or the number of tokens",
        )
    if global_batch_size is not None:
        host_plan.element_rows(global_batch_size, host_plan.Host(replicas=replicas))
        return dict.fromkeys(lengths, global_batch_size)
    assert tokens_per_batch is not None, "one of the two is given"
    host_plan.check_positive("tokens_per_batch", tokens_per_batch)
    if tokens_per_batch < (least := lengths[-1] * replicas):
        raise ReaderError(
            f"tokens_per_batch is {tokens_per_batch}, expected at least {least}: one row of "
            f"{some(lengths[-1], 'token')} per replica, for {some(replicas, 'replica')}",
            remedy="give more tokens, or train on fewer replicas",
        )
    return {length: tokens_per_batch // length // replicas * replicas for length in lengths}
