"""The batches of a training as the reader gives them with order="global", without TensorFlow.

    batches = random_access.global_batches(rows, global_batch_size=256, seed=0)
    batches[step]                                       {"input_ids": int64 [256, L], ...}: the batch of a step, from 0
    batches.part(step, replica=3, replicas=8)           {"input_ids": int64 [32, L], ...}: one replica's part of it
    batches.indices(step)                               int64 [256]: which rows

    grain.MapDataset.range(start, steps).map(batches)                                     in Grain
    torch.utils.data.DataLoader(batches, batch_size=None, sampler=range(start, steps))    in PyTorch

A batch is a function of seed and step, so any process can make any part of any batch, and a run goes on at any step
with any number of processes. Objectives: give them `rng=np.random.default_rng([seed, step])` on the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.input_pipeline.input_plan import Host, Shuffle
from tfrecord_io.mixing.mixing_plan import source_seed
from tfrecord_io.ordering import global_order
from tfrecord_io.ordering.global_order import GlobalOrder
from tfrecord_io.random_access.mixed import MixedRows
from tfrecord_io.random_access.rows import Row, Rows

__all__ = ["GlobalBatches", "global_batches"]


def global_batches(
    rows: Rows | MixedRows, *, global_batch_size: int, seed: int = 0, shuffle: Shuffle | None = None
) -> GlobalBatches:
    """Return the endless, shuffled batches of a dataset, or of a mixture: those of `reader` with the same arguments.

    Raises:
        ReaderError: There are no rows, an argument makes no sense, or a dataset's rate is too small for such a batch.
    """
    input_plan.check_positive("global_batch_size", global_batch_size)
    input_plan.check_seed(seed)
    if isinstance(rows, MixedRows):
        datasets, rates = rows.datasets, rows.rates
        seeds = {name: source_seed(seed, name) for name in datasets}
    else:
        datasets, rates, seeds = {"": rows}, {"": 1.0}, {"": seed}
    if not all(map(len, datasets.values())):
        raise ReaderError(f"{rows!r} has no rows, expected at least one")
    columns = global_order.batch_columns(rates, global_batch_size=global_batch_size)
    orders = {
        name: GlobalOrder.of(
            each.manifest.splits[each.split].shards,
            compression=each.manifest.compression,
            seed=seeds[name],
            shuffle=shuffle or global_order.USUAL_SHUFFLE,
            batches=batches,
        )
        for (name, each), batches in zip(datasets.items(), columns, strict=True)
    }
    return GlobalBatches(datasets, orders=orders, names=rows.manifest.schema.names, batch_rows=global_batch_size)


class GlobalBatches:
    """Made by `global_batches`. Can be pickled; threads and processes may read at the same time."""

    def __init__(
        self,
        datasets: Mapping[str, Rows],
        *,
        orders: Mapping[str, GlobalOrder],
        names: tuple[str, ...],
        batch_rows: int,
    ) -> None:
        self._datasets, self._orders = dict(datasets), dict(orders)
        self._names, self._batch_rows = names, batch_rows

    def __getitem__(self, step: SupportsIndex) -> Row:
        """The batch of a step, from 0: arrays [global_batch_size, *shape]. Raises: as `part`."""
        return self.part(step)

    __call__ = __getitem__

    def part(self, step: SupportsIndex, *, replica: int = 0, replicas: int = 1) -> Row:
        """One replica's part of the batch, arrays [global_batch_size / replicas, *shape].

        Raises:
            IndexError: There is no such step or replica.
            ReaderError: The batch cannot be divided, or as `Rows` says of what is read.
        """
        found: Row = {}
        size = input_plan.element_rows(self._batch_rows, Host(replicas=replicas))
        for name, columns, numbers in self._placed(step, replica=replica, replicas=replicas):
            rows = self._datasets[name].batch(numbers)
            for feature in self._names:
                values = rows[feature]
                found.setdefault(feature, np.empty((size, *values.shape[1:]), values.dtype))[columns] = values
        return found

    def indices(self, step: SupportsIndex, *, replica: int = 0, replicas: int = 1) -> np.ndarray:
        """The numbers of these rows, int64 [global_batch_size / replicas], where there is one dataset.

        Raises: as `part`; ReaderError of a mixture.
        """
        if len(self._datasets) > 1:
            raise ReaderError(
                f"the rows of a mixture of {list(self._datasets)}, expected one dataset: a number has no meaning in "
                "several",
                remedy="use origins(step), which gives the dataset of each row too",
            )
        ((_, _, numbers),) = self._placed(step, replica=replica, replicas=replicas)
        return numbers

    def origins(self, step: SupportsIndex) -> list[tuple[str, int]]:
        """The dataset of each row of the batch, and the row's number there; the name is empty without a mixture."""
        found = [("", 0)] * self._batch_rows
        for name, columns, numbers in self._placed(step, replica=0, replicas=1):
            for column, number in zip(columns.tolist(), numbers.tolist(), strict=True):
                found[column] = (name, number)
        return found

    def _placed(self, step: SupportsIndex, *, replica: int, replicas: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Of each dataset: places in this part of the batch, and the rows that are there, int64 [n] twice."""
        at = _whole(step)
        size = input_plan.element_rows(self._batch_rows, Host(replicas=replicas))
        if not 0 <= replica < replicas:
            raise IndexError(f"replica {replica}, expected one of {replicas}")
        found = []
        for name, order in self._orders.items():
            columns, rows = order.place(at)
            chosen = (columns >= replica * size) & (columns < (replica + 1) * size)
            found.append((name, columns[chosen] - replica * size, rows[chosen]))
        return found


def _whole(step: SupportsIndex) -> int:
    number = step.__index__()
    if number < 0:
        raise IndexError(f"step {number}, expected at least 0: a training has no end")
    return number
