"""Mix several prepared datasets: batches have rows of every dataset, in fixed proportions.

    mixed = Mixture({"wiki": reader.open(A), "code": reader.open(B)}, weights={"wiki": 0.7, "code": 0.3})
    mixed = Mixture({"de": reader.open(C), "sw": reader.open(D)}, temperature=3.0)
    mixed = Mixture(datasets, stages={0: {"wiki": 0.8, "code": 0.2}, 1000: {"wiki": 0.5, "code": 0.5}})
    mixed.input_fn("train", global_batch_size=1024, seed=0)       for strategy.distribute_datasets_from_function
    mixed.dataset("train", global_batch_size=1024)                for Keras fit

At every step, each dataset has supplied its share of the rows so far, to within one row (with several hosts, two rows
on each; a change of the weights may add one or two). Each has its own epochs and shuffling, as if it were read alone.
Only training is mixed; evaluate each dataset separately.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.input_pipeline.base import InputFunctions
from tfrecord_io.input_pipeline.host_plan import Shuffle
from tfrecord_io.input_pipeline.shard_reading import SplitShards
from tfrecord_io.manifest import Manifest
from tfrecord_io.mixing import common_manifest, mixing_plan
from tfrecord_io.mixing.mixing_plan import Rates, Schedule, source_seed
from tfrecord_io.objectives import BoundObjective, Objective
from tfrecord_io.reader import Data
from tfrecord_io.shown import some

__all__ = ["Mixture", "source_seed"]


@dataclasses.dataclass(frozen=True)
class Mixture(InputFunctions):
    """Several opened datasets, read as one (see `InputFunctions`).

    datasets: the datasets by name. The order of a dataset's rows depends on its name.
    weights: relative frequencies of the datasets; by default their numbers of examples.
    stages: instead of weights, {first step: weights}, from step 0 on. A weight may be 0 in some stages.
    temperature, maximum: instead of weights, frequencies min(examples, maximum) ** (1 / temperature).
    most_epochs: maximum number of epochs of some datasets; see `steps` of `input_fn`.
    manifest: the merged manifest. Its fingerprint does not cover later stages, since a resumed run may change them.

    Without `shuffle`, the datasets share the usual number of open shards and the usual window (`Shuffle.shared`).

    Raises: ReaderError if the datasets do not fit together, or the weights are invalid.
    """

    datasets: Mapping[str, Data]
    weights: Mapping[str, float] | None = dataclasses.field(default=None, kw_only=True)
    stages: Mapping[int, Mapping[str, float]] | None = dataclasses.field(default=None, kw_only=True)
    most_epochs: Mapping[str, float] = dataclasses.field(default_factory=dict, kw_only=True)
    temperature: float | None = dataclasses.field(default=None, kw_only=True)
    maximum: int | None = dataclasses.field(default=None, kw_only=True)
    manifest: Manifest = dataclasses.field(init=False, repr=False)
    root: str = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.datasets:
            raise ReaderError("the mixture has no datasets, expected at least one")
        self._shares(dict.fromkeys(self.datasets, 1))  # raises for invalid weights and temperatures
        for name, most in self.most_epochs.items():
            if name not in self.datasets or not mixing_plan.is_positive(most):
                raise ReaderError(
                    f"most_epochs is {most!r} for {name!r}, expected a number above 0 for one of {list(self.datasets)}"
                )
        weights = self.weights if self.stages is None else self.stages[0]
        rates: dict[str, Any] = {"weights": weights and {name: float(w) for name, w in weights.items()}}
        by_size = {"temperature": self.temperature, "maximum": self.maximum}
        rates |= {name: None if value is None else float(value) for name, value in by_size.items()}
        object.__setattr__(self, "manifest", common_manifest.merge(self._manifests, rates=rates))
        object.__setattr__(self, "root", " + ".join(data.root for data in self.datasets.values()))

    def rates(self, split: str, *, step: int = 0) -> dict[str, float]:
        """Return each dataset's share of the training rows at a step. Shares add up to 1.

        Raises: ReaderError if a dataset has no such split, or the split is empty.
        """
        stages = self._rates(split)
        return dict(stages[max(first for first in stages if first <= step)])

    def epochs(self, split: str, *, global_batch_size: int, step: int) -> dict[str, float]:
        """Return the number of epochs of each dataset in the first `step` global batches. Raises: as `rates`."""
        shares = self.describe(split, global_batch_size=global_batch_size, steps=step)
        return {name: share["epochs"] for name, share in shares.items()}

    def describe(self, split: str, *, global_batch_size: int, steps: int) -> dict[str, dict[str, float]]:
        """Return the numbers of "rows", "tokens" and "epochs" of each dataset in the first `steps` global batches.

        Rows are exact for order="global"; otherwise each host may differ by two rows. Tokens, without padding, are
        estimated from the dataset's mean. Raises: as `rates`.
        """
        rows_K = self._schedule(split, global_batch_size).rows_before(steps)
        return {
            name: {
                "rows": rows,
                "tokens": round(rows * data.tokens_per_example(split)),
                "epochs": rows / data.num_examples(split),
            }
            for (name, data), rows in zip(self.datasets.items(), rows_K, strict=True)
        }

    def tokens_per_example(self, split: str, *, step: int = 0) -> float:
        """Return the mean number of tokens, without padding, in a training example at a step. Raises: as `rates`."""
        return math.fsum(
            rate * self.datasets[name].tokens_per_example(split) for name, rate in self.rates(split, step=step).items()
        )

    @property
    def _manifests(self) -> dict[str, Manifest]:
        return {name: data.manifest for name, data in self.datasets.items()}

    def _rates(self, split: str) -> Rates:
        for name, data in self.datasets.items():
            if split not in data.splits:
                raise ReaderError(
                    f"dataset {name!r} ({data.root}) has no split {split!r}, only {list(data.splits)}",
                    remedy=f"choose a split that all datasets have: {list(self.splits)}",
                )
            data.source(split)  # raises if the split is empty
        return self._shares({name: data.num_examples(split) for name, data in self.datasets.items()})

    def _shares(self, num_examples: Mapping[str, int]) -> Rates:
        names = ("weights", "stages", "temperature", "maximum")
        return mixing_plan.rates(num_examples, **{name: getattr(self, name) for name in names})

    def _schedule(self, split: str, global_batch_size: int) -> Schedule:
        host_plan.check_positive("global_batch_size", global_batch_size)
        return mixing_plan.schedule(self._rates(split), rows=global_batch_size)

    def _end_step(self, split: str, *, global_batch_size: int, start_step: int, steps: int | None) -> int | None:
        if not self.most_epochs:
            return None
        most = self.most_epochs
        most_rows = [most.get(name, math.inf) * data.num_examples(split) for name, data in self.datasets.items()]
        end, part = self._schedule(split, global_batch_size).last_within(most_rows)
        wanted = start_step + 1 if steps is None else steps
        if wanted > end:
            name = list(self.datasets)[part]
            raise ReaderError(
                f"dataset {name!r} reaches its maximum of {most[name]:g} epochs after "
                f"{some(end, 'step')}, expected at least {some(wanted, 'step')}",
                remedy="give it less weight or more epochs, or train for fewer steps",
            )
        return end

    def _sources(self, split: str, *, seed: int, training: bool) -> tuple[SplitShards, ...]:
        if not training:
            raise ReaderError(
                f"evaluation on split {split!r} of a mixture, expected training: a mixture cannot be evaluated",
                remedy="evaluate each dataset by itself: for name, data in mixture.datasets.items(): "
                f"data.dataset({split!r}, …); or give training=True to train on this split",
            )
        self._rates(split)  # raises if a dataset lacks the split
        return tuple(data.source(split, seed=source_seed(seed, name)) for name, data in self.datasets.items())

    def _bound(self, objective: Objective) -> BoundObjective:
        return common_manifest.bind(objective, self.manifest, manifests=self._manifests)

    def _usual_shuffle(self) -> Shuffle:
        return Shuffle().shared(len(self.datasets))
