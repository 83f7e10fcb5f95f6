"""Mixtures of several prepared datasets, whose batches have rows of all of them in given proportions.

    mixed = Mixture({"wiki": reader.open(A), "code": reader.open(B)}, weights={"wiki": 0.7, "code": 0.3})
    mixed = Mixture({"de": reader.open(C), "sw": reader.open(D)}, temperature=3.0)
    mixed.input_fn("train", global_batch_size=1024, seed=0)       for strategy.distribute_datasets_from_function
    mixed.dataset("train", global_batch_size=1024)                for Keras fit

Rates are proportional to weights, or to (number of examples) ** (1 / temperature). They are kept by counting, not by
chance: at every step, each dataset has given its share of all rows so far to within one row. With 0.7 and 0.3, and
elements (one replica's part of a batch) of 4 rows:

    element          0          1          2          3          4      │
    rows of wiki     3          3          3          3          2      │  14 of 20: 0.7, and again from the start
    rows of code     1          1          1          1          2      │   6
                     w w c w    c w w w    w w w c    w c w w    c w w c     their order within an element is random
                     │ │   │      │ │ │
                     0 1   2      3 4 5 ...          wiki's own endless, shuffled stream of records, without a gap

So each dataset is read as if it were alone, in its own epochs and with its own shuffling (by `source_seed`): one may be
in its tenth epoch while another is still in its first. The rows of each before a step are computed (`mixing_plan`), so
`start_step` costs as little as it does for one dataset, times their number.

With several hosts, each keeps to the rates by itself, to within two rows, since hosts begin at different elements of
the cycle: a dataset with one row in ten elements does not come on all hosts at the same time.

Only training is mixed. A mean over a mixture depends on the rates and says little about any dataset: evaluate
`datasets[name]` one after the other.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.input_pipeline.input_functions import InputFunctions
from tfrecord_io.input_pipeline.input_plan import Shuffle
from tfrecord_io.input_pipeline.input_source import SplitShards
from tfrecord_io.manifest import Manifest
from tfrecord_io.mixing import common_manifest, mixing_plan
from tfrecord_io.mixing.mixing_plan import source_seed
from tfrecord_io.objectives import BoundObjective, Objective
from tfrecord_io.reader import Data

__all__ = ["Mixture", "source_seed"]


@dataclasses.dataclass(frozen=True)
class Mixture(InputFunctions):
    """Opened datasets, under names of your choice, that are read as one (see the module and `InputFunctions`).

    A name is part of the seed of its dataset's order: adding another dataset leaves that order as it was.

    weights: one for each dataset; rates are proportional to them.
    temperature, maximum: instead of weights, rates by size, see `mixing_plan.rates`; with neither of the three,
        in proportion to the numbers of examples.
    manifest: the merged manifest of all datasets; its fingerprint covers the rates too.

    Without `shuffle`, the datasets share the usual number of open shards, at least 4 each, and the usual window, at
    least 1,024 records each; buffers are shared, too.

    Raises: ReaderError if the datasets do not fit together (`common_manifest`), or for wrong weights.
    """

    datasets: Mapping[str, Data]
    weights: Mapping[str, float] | None = dataclasses.field(default=None, kw_only=True)
    temperature: float | None = dataclasses.field(default=None, kw_only=True)
    maximum: int | None = dataclasses.field(default=None, kw_only=True)
    manifest: Manifest = dataclasses.field(init=False, repr=False)
    root: str = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.datasets:
            raise ReaderError("a mixture of no datasets, expected at least one")
        self._rates(dict.fromkeys(self.datasets, 1))  # refuses invalid weights and temperatures
        # As plain JSON: a NumPy number becomes a Python number.
        rates: dict[str, Any] = {"weights": self.weights and {name: float(w) for name, w in self.weights.items()}}
        for name in ("temperature", "maximum"):
            rates[name] = None if getattr(self, name) is None else float(getattr(self, name))
        object.__setattr__(self, "manifest", common_manifest.merge(self._manifests, rates=rates))
        object.__setattr__(self, "root", " + ".join(data.root for data in self.datasets.values()))

    def rates(self, split: str) -> dict[str, float]:
        """Return each dataset's share of training rows, sum 1. Raises: ReaderError if a split is missing or empty."""
        for name, data in self.datasets.items():
            if split not in data.splits:
                raise ReaderError(
                    f"dataset {name!r} ({data.root}) has no split {split!r}, but {list(data.splits)}",
                    remedy=f"choose a split that all datasets have: {list(self.splits)}",
                )
            data.source(split)
        return self._rates({name: data.num_examples(split) for name, data in self.datasets.items()})

    def epochs(self, split: str, *, global_batch_size: int, step: int) -> dict[str, float]:
        """Return the epochs of each dataset that are read in `step` global batches; above 1, its examples repeat."""
        input_plan.check_positive("global_batch_size", global_batch_size)
        rows = step * global_batch_size
        return {name: rows * rate / self.datasets[name].num_examples(split) for name, rate in self.rates(split).items()}

    def tokens_per_example(self, split: str) -> float:
        """Return the mean number of tokens in a training example, without padding. Raises: ReaderError as `rates`."""
        return math.fsum(
            rate * self.datasets[name].tokens_per_example(split) for name, rate in self.rates(split).items()
        )

    @property
    def _manifests(self) -> dict[str, Manifest]:
        return {name: data.manifest for name, data in self.datasets.items()}

    def _rates(self, num_examples: Mapping[str, int]) -> dict[str, float]:
        return mixing_plan.rates(num_examples, weights=self.weights, temperature=self.temperature, maximum=self.maximum)

    def _sources(self, split: str, *, seed: int, training: bool) -> tuple[SplitShards, ...]:
        if not training:
            raise ReaderError(
                f"an evaluation of split {split!r} of a mixture, expected training: only that is mixed",
                remedy="evaluate each dataset by itself: for name, data in mixture.datasets.items(): "
                f"data.dataset({split!r}, …); or give training=True, if it is to be trained on",
            )
        rates = self.rates(split)
        return tuple(
            dataclasses.replace(data.source(split, seed=source_seed(seed, name)), name=name, rate=rates[name])
            for name, data in self.datasets.items()
        )

    def _bound(self, objective: Objective) -> BoundObjective:
        return common_manifest.bind(objective, self.manifest, manifests=self._manifests)

    def _usual_shuffle(self) -> Shuffle:
        return Shuffle().shared(len(self.datasets))
