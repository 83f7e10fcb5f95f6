"""Read global batches for training without TensorFlow, equal to the reader's with order="global".

    batches = random_access.global_batches(rows, global_batch_size=256, seed=0)
    batches[step]                                       {"input_ids": int64 [256, L], ...}
    batches.part(step, replica=3, replicas=8)           {"input_ids": int64 [32, L], ...}
    batches.indices(step)                               int64 [256]: row numbers

    grain.MapDataset.range(start, steps).map(batches)                                     in Grain
    torch.utils.data.DataLoader(batches, batch_size=None, sampler=range(start, steps))    in PyTorch

Steps begin at 0. Any process can make any part of any batch. Apply objectives to the whole batch, with
`rng=np.random.default_rng([seed, step])`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.input_pipeline.host_plan import Host, Shuffle
from tfrecord_io.mixing import common_manifest, mixing_plan
from tfrecord_io.mixing.mixing_plan import source_seed
from tfrecord_io.ordering import global_order
from tfrecord_io.ordering.global_order import GlobalOrder
from tfrecord_io.random_access.rows import Row, Rows, unfilled
from tfrecord_io.schema import Schema


def global_batches(
    rows: Rows | Mapping[str, Rows],
    *,
    global_batch_size: int,
    seed: int = 0,
    shuffle: Shuffle | None = None,
    weights: Mapping[str, float] | None = None,
    stages: Mapping[int, Mapping[str, float]] | None = None,
    temperature: float | None = None,
    maximum: int | None = None,
) -> GlobalBatches:
    """Return the endless, shuffled batches of a dataset or mixture, as a sequence by step.

    Args:
        rows: the rows of one dataset, or {name: rows} of several. Other arguments are as in `mixture.Mixture` and its
            `input_fn`.

    Raises:
        ReaderError: a dataset has no rows, an argument is invalid, or the datasets do not fit together.
    """
    host_plan.check_positive("global_batch_size", global_batch_size)
    host_plan.check_seed(seed)
    datasets = {"": rows} if isinstance(rows, Rows) else dict(rows)
    if not datasets or not all(map(len, datasets.values())):
        raise ReaderError(f"{rows!r} has no rows, expected at least one row in each dataset")
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    rates = mixing_plan.rates(sizes, weights=weights, stages=stages, temperature=temperature, maximum=maximum)
    schema = common_manifest.merge({name: dataset.manifest for name, dataset in datasets.items()}, rates={}).schema
    schedule = mixing_plan.schedule(rates, rows=global_batch_size)
    orders = {
        (name, stage.first): GlobalOrder.of(
            dataset.manifest.splits[dataset.split].shards,
            compression=dataset.manifest.compression,
            seed=seed if isinstance(rows, Rows) else source_seed(seed, name),
            shuffle=shuffle or global_order.USUAL_SHUFFLE,
            schedule=schedule,
            stage=stage,
            part=part,
        )
        for stage in schedule
        for part, (name, dataset) in enumerate(datasets.items())
    }
    return GlobalBatches(datasets, orders, schema, global_batch_size)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GlobalBatches:
    """Training batches by step, made by `global_batches`. Can be pickled; threads and processes may share them."""

    _datasets: Mapping[str, Rows]
    _orders: Mapping[tuple[str, int], GlobalOrder]
    _schema: Schema
    _batch_rows: int

    def __getitem__(self, step: SupportsIndex) -> Row:
        """Return the batch of a step: arrays [global_batch_size, *shape] by feature name. Raises: as `part`."""
        return self.part(step)

    __call__ = __getitem__

    def part(self, step: SupportsIndex, *, replica: int = 0, replicas: int = 1) -> Row:
        """Return one replica's part of the batch: arrays [global_batch_size / replicas, *shape] by feature name.

        Raises:
            IndexError: the step or replica does not exist.
            ReaderError: the replicas cannot share the batch, or a shard cannot be read.
            CorruptRecordError: a record is damaged.
        """
        batch = unfilled(self._schema, host_plan.element_rows(self._batch_rows, Host(replicas=replicas)))
        for name, columns, numbers in self._placed(step, replica=replica, replicas=replicas):
            for feature, values in self._datasets[name].batch(numbers).items():
                batch[feature][columns] = values
        return batch

    def indices(self, step: SupportsIndex, *, replica: int = 0, replicas: int = 1) -> np.ndarray:
        """Return the row numbers of one replica's part of the batch, int64 [global_batch_size / replicas].

        Raises: as `part`; ReaderError for a mixture.
        """
        if len(self._datasets) > 1:
            raise ReaderError(
                f"the batches mix the datasets {list(self._datasets)}, expected one dataset, since row numbers do not "
                "identify the dataset",
                remedy="use origins(step), which also returns each row's dataset",
            )
        ((_, _, numbers),) = self._placed(step, replica=replica, replicas=replicas)
        return numbers

    def origins(self, step: SupportsIndex) -> list[tuple[str, int, int]]:
        """Return the dataset's name ("" without a mixture), shard and record of each row in the batch, from 0 on.

        The trainer's step 1 is step 0 here.
        """
        origins = [("", 0, 0)] * self._batch_rows
        for name, columns, numbers in self._placed(step, replica=0, replicas=1):
            for column, number in zip(columns.tolist(), numbers.tolist(), strict=True):
                origins[column] = (name, *self._datasets[name].locate(number))
        return origins

    def _placed(self, step: SupportsIndex, *, replica: int, replicas: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        at = step.__index__()
        if at < 0:
            raise IndexError(f"step is {at}, expected at least 0")
        size = host_plan.element_rows(self._batch_rows, Host(replicas=replicas))
        if not 0 <= replica < replicas:
            raise IndexError(f"replica is {replica}, expected 0 to {replicas - 1}")
        placed = []
        first = max(begin for _, begin in self._orders if begin <= at)
        for name, order in ((name, order) for (name, begin), order in self._orders.items() if begin == first):
            columns, rows = order.place(at)
            chosen = (columns >= replica * size) & (columns < (replica + 1) * size)
            placed.append((name, columns[chosen] - replica * size, rows[chosen]))
        return placed
