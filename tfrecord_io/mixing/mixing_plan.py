"""Schedule of a mixture: the number of rows of each dataset in each element (arithmetic of `mixture`, no TensorFlow).

A rate is a dataset's share of the rows; the B rows of an element times a rate is seldom a whole number. So the schedule
is an endlessly repeated cycle of elements with a whole number of rows from each dataset. With rates 0.5, 0.3 and 0.2
and B = 4, five elements are such a cycle:

    element     0    1    2    3    4   │  0  ...
    a           2    2    2    2    2   │  2            10 of 20 rows
    b           2    1    1    1    1   │  2             6
    c           0    1    1    1    1   │  0             4

After any number n of elements, each dataset has had n * B * rate rows to within one: this is its quota. Row j of a
dataset is released when the quota exceeds j - 1, and due when the quota reaches j. Rows are taken by earliest deadline,
which meets all deadlines if any schedule does (the fractional quotas show that one does; Tijdeman, The chairman
assignment problem, Discrete Mathematics 32, 1980, has the sharper bound). In a cycle, a division and a sum give the
rows of each dataset before any element, so a run can start anywhere.

If the weights change during a training, each stage has its own cycle and begins with its first element.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import math
import numbers
from collections.abc import Mapping, Sequence

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan

# The graph contains the cycle as a vector of rows for each dataset: at most 32 KB each.
_MOST_ELEMENTS = 4096
# A rate counts as met if it is missed by at most this many rows in an element: less than a row in a billion elements.
_EXACT = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cycle:
    """Number of rows of each of K datasets in each of P elements: int64 [P, K], with the same sum in every element."""

    rows_PK: np.ndarray

    def rows_before(self, element: int) -> tuple[int, ...]:
        """Count the rows of each dataset before element `element` of the endlessly repeated cycle."""
        cycles, within = divmod(element, len(self.rows_PK))
        in_cycle, in_part = self.rows_PK.sum(axis=0), self.rows_PK[:within].sum(axis=0)
        # Python's integers: a step may be so late that int64 cannot hold the product.
        return tuple(cycles * int(all_) + int(part) for all_, part in zip(in_cycle, in_part, strict=True))

    def from_element(self, element: int) -> Cycle:
        """Return this cycle rotated, so that it begins with element `element` of the endless repetition."""
        return Cycle(rows_PK=np.roll(self.rows_PK, -(element % len(self.rows_PK)), axis=0))

    def of_host(self, index: int, *, count: int) -> Cycle:
        """Return a host's cycle: hosts start at different elements, so that a rare dataset is not on all at once."""
        return self.from_element(index * len(self.rows_PK) // count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Elements [first, last) of a training, which have the rows of `cycle`; `last` is None in the last stage.

    before: the rows of each of K datasets in earlier stages.
    """

    first: int
    last: int | None
    cycle: Cycle
    before: tuple[int, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.cycle.rows_PK.any(axis=0)).tolist())

    def rows_before(self, element: int) -> tuple[int, ...]:
        """Count the rows of each dataset before an element of this stage, or before its end."""
        own = self.cycle.rows_before(element - self.first)
        return tuple(before + rows for before, rows in zip(self.before, own, strict=True))

    def from_element(self, element: int) -> Stage:
        """Return the rest of the stage, from `element` on."""
        begin = max(self.first, element)
        cycle, before = self.cycle.from_element(begin - self.first), self.rows_before(begin)
        return Stage(first=begin, last=self.last, cycle=cycle, before=before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Stages of a training, in order."""

    stages: tuple[Stage, ...]

    def stage_of(self, element: int) -> Stage:
        return self.stages[bisect.bisect_right(self.stages, element, key=lambda stage: stage.first) - 1]

    def rows_before(self, element: int) -> tuple[int, ...]:
        """Count the rows of each dataset before an element."""
        return self.stage_of(element).rows_before(element)

    def remaining(self, element: int) -> list[Stage]:
        """Return the stages from an element on, the first of them without its earlier elements."""
        left = (stage for stage in self.stages if stage.last is None or stage.last > element)
        return [stage.from_element(element) for stage in left]

    def last_within(self, most_rows: Sequence[float]) -> tuple[int, int]:
        """Return the largest number of elements with at most `most_rows` of each dataset, and the dataset of the next.

        Without a limit that is reached in 2**62 elements, return 2**62.
        """

        def elements_within(part: int) -> int:
            return bisect.bisect_right(
                range(1, 1 << 62), most_rows[part], key=lambda element: self.rows_before(element)[part]
            )

        limits = [(elements_within(part), part) for part, most in enumerate(most_rows) if most < math.inf]
        return min(limits, default=(1 << 62, 0))


# Each stage's rates, in the order of the datasets, by the step at which it begins; the first begins at 0.
Rates = Mapping[int, Sequence[tuple[str, float]]]


def schedule(rates: Rates, *, rows: int, elements: int = 1, host: int = 0, hosts: int = 1) -> Schedule:
    """Return the schedule of elements of `rows` rows, `elements` for each step, of one of several hosts.

    Raises: ReaderError as `cycle`.
    """
    stages: list[Stage] = []
    firsts = [step * elements for step in rates]
    for shares, first, last in zip(rates.values(), firsts, [*firsts[1:], None], strict=True):
        before = stages[-1].rows_before(first) if stages else (0,) * len(shares)
        found = cycle(tuple(shares), rows=rows).of_host(host, count=hosts)
        stages.append(Stage(first=first, last=last, cycle=found, before=before))
    return Schedule(stages=tuple(stages))


def stages_of(
    num_examples: Mapping[str, int],
    *,
    stages: Mapping[int, Mapping[str, float]] | None,
    weights: Mapping[str, float] | None,
    temperature: float | None,
    maximum: int | None,
) -> dict[int, dict[str, float]]:
    """Return each stage's `rates`, by the step at which it begins; one stage without `stages`. Raises: as both."""
    if stages is None:
        return {0: rates(num_examples, weights=weights, temperature=temperature, maximum=maximum)}
    if weights is not None or temperature is not None or maximum is not None:
        raise ReaderError(
            "stages together with weights, a temperature or a maximum, expected stages alone",
            remedy="give the weights from step 0 as the first stage; a temperature's are in Mixture.rates",
        )
    return stage_rates(list(num_examples), stages)


def stage_rates(names: Sequence[str], stages: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    """Return each stage's share of rows by dataset, by the step at which it begins.

    Raises: ReaderError if the first does not begin at 0, steps do not rise, or a stage has no weight for a dataset, one
        for another name, one that is not a number of at least 0, or only weights of 0.
    """
    steps = list(stages)
    if not all(isinstance(step, int) and not isinstance(step, bool) for step in steps) or steps[:1] != [0]:
        raise ReaderError(
            f"stages begin at {steps}, expected steps that begin with 0", remedy="give the weights from step 0 on"
        )
    if steps != sorted(set(steps)):
        raise ReaderError(f"stages begin at {steps}, expected rising steps", remedy="write them in order")
    for step, weights in stages.items():
        _check_weights(names, weights, when=f" from step {step} on", least="a number of at least 0")
        if not any(weights.values()):
            raise ReaderError(
                f"all weights from step {step} on are 0, expected one above 0", remedy="give one dataset a weight"
            )
    for name in names:
        if not any(weights[name] for weights in stages.values()):
            raise ReaderError(
                f"the weight of dataset {name!r} is 0 in all stages, expected a number above 0 in one",
                remedy="leave out a dataset that is not to be read",
            )
    return {step: _shares({name: float(weights[name]) for name in names}) for step, weights in stages.items()}


def rates(
    num_examples: Mapping[str, int],
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float | None = None,
    maximum: int | None = None,
) -> dict[str, float]:
    """Return each dataset's share of the rows: in proportion to its weight, or by size.

    By size it is min(num_examples, maximum) ** (1 / temperature). At temperature 1, the default, every example comes as
    often as any other; the higher it is, the more equal are the rates. No dataset counts as larger than `maximum`
    examples. (T5, arXiv:1910.10683, section 3.5.2.)

    Raises: ReaderError if both are given, a weight is missing, of no dataset, or not a positive number, the temperature
        is not a positive number, or `maximum` not a whole number of at least 1.
    """
    names = list(num_examples)
    if weights is not None:
        if temperature is not None or maximum is not None:
            raise ReaderError(
                "weights together with a temperature or a maximum, expected one or the other",
                remedy="leave out the weights, or both others",
            )
        _check_weights(names, weights)
        return _shares({name: float(weights[name]) for name in names})
    temperature = 1.0 if temperature is None else temperature
    if not is_positive(temperature):
        raise ReaderError(f"temperature is {temperature!r}, expected a number above 0: 1 means by size, more evens out")
    if maximum is not None:
        host_plan.check_positive("maximum", maximum)
    sizes = {name: count if maximum is None else min(count, maximum) for name, count in num_examples.items()}
    largest = max(sizes.values())
    # Relative to the largest size, so that no power overflows.
    return _shares({name: (size / largest) ** (1 / temperature) for name, size in sizes.items()})


def cycle(shares: tuple[tuple[str, float], ...], *, rows: int) -> Cycle:
    """Return the shortest cycle of elements of `rows` rows that gives the datasets `shares` (name, rate) of the rows.

    If no cycle of at most 4,096 elements does, return the closest one: off by less than 1 row in 4,096 elements.

    Raises: ReaderError if a rate is less than a row in 4,096 elements.
    """
    quotas_K = rows * np.array([share for _, share in shares], np.float64)
    elements = np.arange(1, _MOST_ELEMENTS + 1, dtype=np.int64)
    exact_PK = elements[:, np.newaxis] * quotas_K
    totals_PK = _whole(exact_PK, elements * rows)
    off_P = np.abs(totals_PK - exact_PK).max(axis=1) / elements
    off_P[(totals_PK[:, quotas_K > 0] < 1).any(axis=1)] = np.inf
    if np.isinf(off_P.min()):
        name, least = min((share for share in shares if share[1]), key=lambda share: share[1])
        raise ReaderError(
            f"dataset {name!r} has a share of {least:.3g} of the rows, expected at least one row in {_MOST_ELEMENTS} "
            f"elements of {rows} rows",
            remedy="give it more weight, a larger batch or a higher temperature, or leave it out",
        )
    best = int(np.argmax(off_P <= max(off_P.min(), _EXACT)))
    spread = _spread(totals_PK[best].tolist(), num_elements=best + 1, rows=rows)
    return Cycle(rows_PK=np.array(spread, np.int64))


def source_seed(seed: int, name: str) -> int:
    """Return the seed that decides the order of dataset `name` within a mixture of seed `seed`.

    Training on that dataset alone with this seed, and a `shuffle` of the same sizes, gives its rows in the order in
    which the elements of the mixture take them.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1


def is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and 0 < float(value) < math.inf


def _check_weights(
    names: Sequence[str], weights: Mapping[str, float], *, when: str = "", least: str = "a number above 0"
) -> None:
    if weights.keys() != set(names):
        raise ReaderError(
            f"weights{when} for {list(weights)}, expected one for each of the datasets {list(names)}",
            remedy="give each dataset a weight" + ("; 0 leaves it out of a stage" if when else ", or leave it out"),
        )
    for name, weight in weights.items():
        is_zero = bool(when) and weight == 0 and not isinstance(weight, bool)
        if not is_positive(weight) and not is_zero:
            raise ReaderError(
                f"the weight of dataset {name!r}{when} is {weight!r}, expected {least}",
                remedy="use 0 for a dataset that is not read in a stage"
                if when
                else "leave out a dataset that is not read",
            )


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(values.values())
    return {name: value / total for name, value in values.items()}


def _whole(exact_PK: np.ndarray, sums_P: np.ndarray) -> np.ndarray:
    """Round each line to whole numbers with a given sum: down, then up where the cut was largest."""
    whole_PK = np.floor(exact_PK).astype(np.int64)
    order_PK = np.argsort(whole_PK - exact_PK, axis=1, kind="stable")
    rank_PK = np.argsort(order_PK, axis=1, kind="stable")
    short_P1 = (sums_P - whole_PK.sum(axis=1))[:, np.newaxis]
    return whole_PK + (rank_PK < short_P1)


def _spread(totals: Sequence[int], *, num_elements: int, rows: int) -> list[list[int]]:
    """Spread the datasets' totals over elements, so that each has its quota to within one row before any element."""
    taken = [0] * len(totals)
    elements = []
    for element in range(1, num_elements + 1):
        # The rows that are due by the end of this element.
        take = [max(total * element // num_elements - had, 0) for total, had in zip(totals, taken, strict=True)]
        waiting = []
        for at, total in enumerate(totals):
            had = taken[at] + take[at]
            if had * num_elements < total * element:
                # The quota includes a part of another row, which is due in the element of this number.
                waiting.append((-(-(had + 1) * num_elements // total), at))
        for _, at in sorted(waiting)[: rows - sum(take)]:
            take[at] += 1
        taken = [had + now for had, now in zip(taken, take, strict=True)]
        elements.append(take)
    return elements
