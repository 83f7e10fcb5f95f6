"""Mixed rows of several datasets as one sequence, and the global batches of a training.

    mixed = random_access.mix({"wiki": wiki["train"], "code": code["train"]}, weights={"wiki": 0.7, "code": 0.3})

Rates are kept by counting (see `mixing_plan`): among the first n rows, each dataset has its share to within one. Each
dataset is read in its own order, and starts again when it ends. With 0.7 and 0.3:

    row        0 1 2 3 4 5 6 7 8 9 │ 10 ...
    dataset    w w c w w c w w w c │ w  ...
    its row    0 1 0 2 3 1 4 5 6 2 │ 7  ...        wiki's and code's own rows, without a gap

    batches = random_access.global_batches(rows, global_batch_size=256, seed=0)
    batches[step]                                       {"input_ids": int64 [256, L], ...}: the batch of a step, from 0
    batches.part(step, replica=3, replicas=8)           {"input_ids": int64 [32, L], ...}: one replica's part of it
    batches.indices(step)                               int64 [256]: which rows

    grain.MapDataset.range(start, steps).map(batches)                                     in Grain
    torch.utils.data.DataLoader(batches, batch_size=None, sampler=range(start, steps))    in PyTorch

The batches equal the reader's with order="global", but need no TensorFlow. A batch is a function of seed and
step, so any process can make any part of any batch, and a run can continue at any step with any number of processes.
Apply objectives to the whole batch, with `rng=np.random.default_rng([seed, step])`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.input_pipeline.input_plan import Host, Shuffle
from tfrecord_io.mixing import common_manifest, mixing_plan
from tfrecord_io.mixing.mixing_plan import source_seed
from tfrecord_io.ordering import global_order
from tfrecord_io.ordering.global_order import GlobalOrder
from tfrecord_io.random_access.rows import Row, Rows, RowSequence, unfilled
from tfrecord_io.schema import Schema


def mix(
    datasets: Mapping[str, Rows],
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float | None = None,
    maximum: int | None = None,
) -> MixedRows:
    """Mix the datasets' rows into one sequence, as long as all of them together.

    Args:
        weights: one for each dataset; rates are proportional to them.
        temperature: rates by size, instead of weights, see `mixing_plan.rates`; with neither, in proportion to
            the numbers of rows.
        maximum: the size that larger datasets count as, instead of weights.

    Raises: ReaderError if there is no dataset, one has no rows, they do not fit together, or for wrong weights.
    """
    if not datasets or not all(map(len, datasets.values())):
        empty = [name for name, rows in datasets.items() if not len(rows)]
        raise ReaderError(f"a mixture of the datasets {list(datasets)}, {empty} without rows, expected rows in each")
    sizes = {name: len(rows) for name, rows in datasets.items()}
    rates = mixing_plan.rates(sizes, weights=weights, temperature=temperature, maximum=maximum)
    return MixedRows(datasets, rates=rates)


class MixedRows(RowSequence):
    """Mixed sequence of rows, made by `mix`: `rates` are the datasets' shares, `manifest` merges their manifests."""

    def __init__(self, datasets: Mapping[str, Rows], *, rates: Mapping[str, float]) -> None:
        self.datasets, self.rates = dict(datasets), dict(rates)
        manifests = {name: rows.manifest for name, rows in datasets.items()}
        self.manifest = common_manifest.merge(manifests, rates=self.rates)
        turns_PK = mixing_plan.cycle(tuple(rates.items()), rows=1).rows_PK
        self._dataset_P = np.argmax(turns_PK, axis=1)
        self._per_cycle_K = turns_PK.sum(axis=0)
        # The number of earlier rows of the same dataset in the same cycle.
        self._before_P = (np.cumsum(turns_PK, axis=0) - turns_PK)[np.arange(len(turns_PK)), self._dataset_P]

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {self.rates[name]:.4g}" for name in self.datasets)
        return f"MixedRows({shares}; {len(self):,} rows, {self.manifest.fingerprint[:12]})"

    def __len__(self) -> int:
        return sum(map(len, self.datasets.values()))

    def _one(self, number: int) -> Row:
        name, at = self.origin(number)
        row = self.datasets[name][at]
        return {feature: row[feature] for feature in self.manifest.schema.names}

    def batch(self, indices: Sequence[SupportsIndex] | np.ndarray) -> Row:
        numbers_N = self._numbers(indices)
        dataset_N, row_N = self._origins(numbers_N)
        columns = unfilled(self.manifest.schema, len(numbers_N))
        for at, rows in enumerate(self.datasets.values()):
            mine = np.flatnonzero(dataset_N == at)
            for name, values in rows.batch(row_N[mine]).items():
                columns[name][mine] = values
        return columns

    def origin(self, index: int) -> tuple[str, int]:
        """Return the name of a row's dataset, and the row's number there."""
        dataset_N, row_N = self._origins(np.array([index]))
        return list(self.datasets)[int(dataset_N[0])], int(row_N[0])

    def _origins(self, numbers_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each row's dataset, and the row's number there."""
        cycle_N, turn_N = np.divmod(numbers_N, len(self._dataset_P))
        dataset_N = self._dataset_P[turn_N]
        sizes_K = np.array([len(rows) for rows in self.datasets.values()], np.int64)
        row_N = cycle_N * self._per_cycle_K[dataset_N] + self._before_P[turn_N]
        return dataset_N, row_N % sizes_K[dataset_N]


def global_batches(
    rows: Rows | MixedRows, *, global_batch_size: int, seed: int = 0, shuffle: Shuffle | None = None
) -> GlobalBatches:
    """Return the endless, shuffled batches of a dataset or mixture, equal to the reader's with order="global".

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
    cycle = mixing_plan.cycle(tuple(rates.items()), rows=global_batch_size)
    orders = {
        name: GlobalOrder.of(
            each.manifest.splits[each.split].shards,
            compression=each.manifest.compression,
            seed=seeds[name],
            shuffle=shuffle or global_order.USUAL_SHUFFLE,
            cycle=cycle,
            part=part,
        )
        for part, (name, each) in enumerate(datasets.items())
    }
    return GlobalBatches(datasets, orders=orders, schema=rows.manifest.schema, batch_rows=global_batch_size)


class GlobalBatches:
    """Batches made by `global_batches`; can be pickled, and read by threads and processes at the same time."""

    def __init__(
        self, datasets: Mapping[str, Rows], *, orders: Mapping[str, GlobalOrder], schema: Schema, batch_rows: int
    ) -> None:
        self._datasets, self._orders = dict(datasets), dict(orders)
        self._schema, self._batch_rows = schema, batch_rows

    def __getitem__(self, step: SupportsIndex) -> Row:
        """Return the batch of a step, from 0: arrays [global_batch_size, *shape]. Raises: as `part`."""
        return self.part(step)

    __call__ = __getitem__

    def part(self, step: SupportsIndex, *, replica: int = 0, replicas: int = 1) -> Row:
        """Return one replica's part of the batch, arrays [global_batch_size / replicas, *shape].

        Raises:
            IndexError: There is no such step or replica.
            ReaderError: The batch cannot be divided, or as `Rows` raises it.
        """
        found = unfilled(self._schema, input_plan.element_rows(self._batch_rows, Host(replicas=replicas)))
        for name, columns, numbers in self._placed(step, replica=replica, replicas=replicas):
            for feature, values in self._datasets[name].batch(numbers).items():
                found[feature][columns] = values
        return found

    def indices(self, step: SupportsIndex, *, replica: int = 0, replicas: int = 1) -> np.ndarray:
        """Return the row numbers of one replica's part of the batch, int64 [global_batch_size / replicas].

        Raises: as `part`; ReaderError for a mixture.
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
        """Return the dataset's name ("" without a mixture) and the row number there for each row of the batch."""
        found = [("", 0)] * self._batch_rows
        for name, columns, numbers in self._placed(step, replica=0, replicas=1):
            for column, number in zip(columns.tolist(), numbers.tolist(), strict=True):
                found[column] = (name, number)
        return found

    def _placed(self, step: SupportsIndex, *, replica: int, replicas: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return each dataset's name, its columns in this part of the batch, and its rows there, int64 [n] twice."""
        at = step.__index__()
        if at < 0:
            raise IndexError(f"step {at}, expected at least 0: a training has no end")
        size = input_plan.element_rows(self._batch_rows, Host(replicas=replicas))
        if not 0 <= replica < replicas:
            raise IndexError(f"replica {replica}, expected one of {replicas}")
        found = []
        for name, order in self._orders.items():
            columns, rows = order.place(at)
            chosen = (columns >= replica * size) & (columns < (replica + 1) * size)
            found.append((name, columns[chosen] - replica * size, rows[chosen]))
        return found
