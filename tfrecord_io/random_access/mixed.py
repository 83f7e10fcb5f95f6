"""Rows of several datasets as one sequence, in the proportions that were asked for.

    mixed = random_access.mix({"wiki": wiki["train"], "code": code["train"]}, weights={"wiki": 0.7, "code": 0.3})

Rates are kept by counting (see `mixing_plan`): among the first n rows, each dataset has its share to within one. Each
is read in its own order, and again from its beginning when it ends. With 0.7 and 0.3:

    row        0 1 2 3 4 5 6 7 8 9 │ 10 ...
    dataset    w w c w w c w w w c │ w  ...
    its row    0 1 0 2 3 1 4 5 6 2 │ 7  ...        wiki's and code's own rows, without a gap
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.mixing import common_manifest, mixing_plan
from tfrecord_io.random_access.rows import Row, Rows, RowSequence, row_numbers

__all__ = ["MixedRows", "mix"]


def mix(
    datasets: Mapping[str, Rows],
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float | None = None,
    maximum: int | None = None,
) -> MixedRows:
    """The datasets' rows as one sequence, as long as all of them together.

    Args:
        weights: for each dataset, in proportion to each other.
        temperature: rates by size, instead of weights, see `mixing_plan.rates`; with neither, in proportion to
            the numbers of rows.
        maximum: the size that larger datasets count as, instead of weights.

    Raises: ReaderError if there is no dataset, one has no rows, they do not go together, or for wrong weights.
    """
    if not datasets or not all(map(len, datasets.values())):
        empty = [name for name, rows in datasets.items() if not len(rows)]
        raise ReaderError(f"a mixture of the datasets {list(datasets)}, {empty} without rows, expected rows in each")
    sizes = {name: len(rows) for name, rows in datasets.items()}
    rates = mixing_plan.rates(sizes, weights=weights, temperature=temperature, maximum=maximum)
    return MixedRows(datasets, rates=rates)


class MixedRows(RowSequence):
    """Made by `mix`: a sequence as `Rows` is. `rates` are the shares of the datasets, `manifest` is common to them."""

    _of = "the mixture"

    def __init__(self, datasets: Mapping[str, Rows], *, rates: Mapping[str, float]) -> None:
        self.datasets, self.rates = dict(datasets), dict(rates)
        manifests = {name: rows.manifest for name, rows in datasets.items()}
        self.manifest = common_manifest.merge(manifests, rates=self.rates)
        turns_PK = mixing_plan.cycle(tuple(rates.items()), rows=1).rows_PK
        self._dataset_P = np.argmax(turns_PK, axis=1)
        self._per_cycle_K = turns_PK.sum(axis=0)
        # Rows of the same dataset before, in the same cycle.
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
        numbers_N = row_numbers(indices, count=len(self), of=self._of)
        dataset_N, row_N = self._origins(numbers_N)
        columns: Row = {
            feature.name: np.empty((len(numbers_N), *feature.shape), feature.array_dtype)
            for feature in self.manifest.schema.features
        }
        for at, rows in enumerate(self.datasets.values()):
            mine = np.flatnonzero(dataset_N == at)
            for name, values in rows.batch(row_N[mine]).items():
                columns[name][mine] = values
        return columns

    def origin(self, index: int) -> tuple[str, int]:
        """The dataset of a row, and the row's number there."""
        dataset_N, row_N = self._origins(np.array([index]))
        return list(self.datasets)[int(dataset_N[0])], int(row_N[0])

    def _origins(self, numbers_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of each row's dataset, and its row there."""
        cycle_N, turn_N = np.divmod(numbers_N, len(self._dataset_P))
        dataset_N = self._dataset_P[turn_N]
        sizes_K = np.array([len(rows) for rows in self.datasets.values()], np.int64)
        row_N = cycle_N * self._per_cycle_K[dataset_N] + self._before_P[turn_N]
        return dataset_N, row_N % sizes_K[dataset_N]
