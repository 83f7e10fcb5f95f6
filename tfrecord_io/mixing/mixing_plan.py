"""Compute how many rows of each dataset each batch of a mixture has.

An element is a global batch, or one replica's part of it. Its B rows times a rate are seldom a whole number, so a cycle
of elements with whole numbers of rows is repeated. With rates 0.5, 0.3 and 0.2 and B = 4:

    element     0    1    2    3    4
    a           2    2    2    2    2       10 of 20 rows
    b           2    1    1    1    1        6
    c           0    1    1    1    1        4

After n elements, a dataset has had its quota of n * B * rate rows, to within one: row j comes after the quota exceeds
j - 1, and until it reaches j (Tijdeman, The chairman assignment problem, Discrete Mathematics 32, 1980).
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import math
import numbers
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.shown import some

# The graph contains the cycle, at most 32 KB per dataset.
_MOST_ELEMENTS = 4096
# Maximum error of a rate, in rows per element.
_EXACT = 1e-9
ENDLESS = 1 << 62


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Batches [first, last) of a training run, with constant weights. The last stage ends at `ENDLESS`.

    rows_PK: numbers of rows from each of K datasets in each of P batches, int64; this cycle repeats.
    before: number of rows of each dataset in earlier stages.
    """

    first: int
    last: int
    rows_PK: np.ndarray
    before: tuple[int, ...]

    def rows_before(self, element: int) -> tuple[int, ...]:
        """Return each dataset's number of rows before batch `element` of this stage. It may be the stage's end."""
        cycles, within = divmod(element - self.first, len(self.rows_PK))
        in_cycle, in_part = self.rows_PK.sum(axis=0).tolist(), self.rows_PK[:within].sum(axis=0).tolist()
        # Python integers, since the product may exceed int64.
        return tuple(b + cycles * c + p for b, c, p in zip(self.before, in_cycle, in_part, strict=True))

    def from_element(self, element: int) -> Stage:
        """Return the part of this stage from batch `element` on."""
        begin = max(self.first, element)
        rows_PK = np.roll(self.rows_PK, -((begin - self.first) % len(self.rows_PK)), axis=0)
        return Stage(first=begin, last=self.last, rows_PK=rows_PK, before=self.rows_before(begin))


class Schedule(tuple[Stage, ...]):
    """Stages of a training run, in order."""

    def rows_before(self, element: int) -> tuple[int, ...]:
        return next(stage for stage in self if stage.last > element).rows_before(element)

    def from_element(self, element: int) -> Schedule:
        return Schedule(stage.from_element(element) for stage in self if stage.last > element)

    def last_within(self, most_rows: Sequence[float]) -> tuple[int, int]:
        """Return the number of batches before a dataset exceeds its `most_rows`, and the index of this dataset."""

        def batches_within(part: int) -> int:
            return bisect.bisect_right(range(1, ENDLESS), most_rows[part], key=lambda at: self.rows_before(at)[part])

        return min((batches_within(part), part) for part in range(len(most_rows)))


# {first step of a stage: {dataset: share of the rows}}
Rates = Mapping[int, Mapping[str, float]]


def schedule(rates: Rates, *, rows: int, elements: int = 1, host: int = 0, hosts: int = 1) -> Schedule:
    """Return the stages of one host's batches of `rows` rows; a training step has `elements` of them on this host.

    Each host begins at another batch of a cycle, so that a rare dataset does not come on all hosts at once.

    Raises: as `cycle`.
    """
    stages: list[Stage] = []
    firsts = [step * elements for step in rates]
    for shares, first, last in zip(rates.values(), firsts, [*firsts[1:], ENDLESS], strict=True):
        before = stages[-1].rows_before(first) if stages else (0,) * len(shares)
        rows_PK = cycle(shares, rows=rows)
        rows_PK = np.roll(rows_PK, -(host * len(rows_PK) // hosts), axis=0)
        stages.append(Stage(first=first, last=last, rows_PK=rows_PK, before=before))
    return Schedule(stages)


def rates(
    num_examples: Mapping[str, int],
    *,
    weights: Mapping[str, float] | None = None,
    stages: Mapping[int, Mapping[str, float]] | None = None,
    temperature: float | None = None,
    maximum: int | None = None,
) -> dict[int, dict[str, float]]:
    """Return each dataset's share of the rows, as {first step of a stage: {dataset: share}}.

    Give `weights`, or `stages` with weights by first step, or `temperature` and `maximum`: then a share is proportional
    to min(num_examples, maximum) ** (1 / temperature) (T5, arXiv:1910.10683, section 3.5.2). By default, all examples
    are equally frequent.

    Raises: ReaderError for contradicting or invalid arguments, or missing weights.
    """
    by_size = {"temperature": temperature, "maximum": maximum}
    options = {"weights": weights, "stages": stages, **by_size}
    used = [name for name, value in options.items() if value is not None]
    if len(used) > 1 and not set(used) <= set(by_size):
        raise ReaderError(
            f"{' and '.join(used)} are given together, expected one of them",
            remedy="put the weights into the first stage; for a temperature, Mixture.rates computes weights",
        )
    if weights is not None:
        stages = {0: weights}
    if stages is None:
        return {0: _by_size(num_examples, 1.0 if temperature is None else temperature, maximum)}
    _check_stages(list(num_examples), stages)
    return {step: _shares({name: float(shares[name]) for name in num_examples}) for step, shares in stages.items()}


def _check_stages(names: Sequence[str], stages: Mapping[int, Mapping[str, float]]) -> None:
    steps = list(stages)
    if any(type(step) is not int for step in steps) or steps[:1] != [0] or steps != sorted(set(steps)):
        raise ReaderError(
            f"stages begin at steps {steps}, expected ascending whole numbers from 0 on",
            remedy="sort the stages, and give the weights from step 0 on",
        )
    for step, weights in stages.items():
        when = f" from step {step} on" if len(stages) > 1 else ""
        if weights.keys() != set(names):
            raise ReaderError(
                f"weights{when} are for {list(weights)}, expected one for each of the datasets {names}",
                remedy="give each dataset a weight",
            )
        for name, weight in weights.items():
            is_zero = weight == 0 and not isinstance(weight, bool) and any(stage.get(name) for stage in stages.values())
            if not (is_positive(weight) or is_zero):
                expected = "a number above 0" + (", or 0 if it is above 0 in another stage" if when else "")
                raise ReaderError(
                    f"the weight of dataset {name!r}{when} is {weight!r}, expected {expected}",
                    remedy="leave out a dataset that is never read",
                )
        if not any(weights.values()):
            cause = f"all weights{when} are 0, expected one above 0"
            raise ReaderError(cause, remedy="give a dataset a weight above 0")


def _by_size(num_examples: Mapping[str, int], temperature: float, maximum: int | None) -> dict[str, float]:
    if not is_positive(temperature):
        raise ReaderError(f"temperature is {temperature!r}, expected a number above 0, such as 1 for shares by size")
    if maximum is not None:
        host_plan.check_positive("maximum", maximum)
    sizes = {name: count if maximum is None else min(count, maximum) for name, count in num_examples.items()}
    largest = max(sizes.values())
    # Relative to the largest size, so that no power overflows.
    return _shares({name: (size / largest) ** (1 / temperature) for name, size in sizes.items()})


def cycle(shares: Mapping[str, float], *, rows: int) -> np.ndarray:
    """Return the shortest cycle with these shares, int64 [P, K]: rows from each of K datasets in each of P batches.

    A batch has `rows` rows. If no cycle of at most 4,096 batches has exactly these shares, return the closest one.

    Raises: ReaderError if a dataset gets less than one row in 4,096 batches.
    """
    quotas_K = rows * np.array(list(shares.values()), np.float64)
    elements = np.arange(1, _MOST_ELEMENTS + 1, dtype=np.int64)
    exact_PK = elements[:, np.newaxis] * quotas_K
    totals_PK = _whole(exact_PK, elements * rows)
    off_P = np.abs(totals_PK - exact_PK).max(axis=1) / elements
    off_P[(totals_PK[:, quotas_K > 0] < 1).any(axis=1)] = np.inf
    if np.isinf(off_P.min()):
        name, least = min(((name, share) for name, share in shares.items() if share), key=operator.itemgetter(1))
        raise ReaderError(
            f"dataset {name!r} has a share of {least:.3g}, expected at least one row in {_MOST_ELEMENTS:,} batches of "
            f"{some(rows, 'row')}",
            remedy="give it more weight, use a larger batch or a higher temperature, or leave the dataset out",
        )
    best = int(np.argmax(off_P <= max(off_P.min(), _EXACT)))
    return np.array(_spread(totals_PK[best].tolist(), num_elements=best + 1, rows=rows), np.int64)


def source_seed(seed: int, name: str) -> int:
    """Return the seed that gives dataset `name`, read alone, its order of rows in a mixture with seed `seed`."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") >> 1


def is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and 0 < float(value) < math.inf


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(values.values())
    return {name: value / total for name, value in values.items()}


def _whole(exact_PK: np.ndarray, sums_P: np.ndarray) -> np.ndarray:
    # Round down, or up where fractions are largest, so that the sums are `sums_P`.
    whole_PK = np.floor(exact_PK).astype(np.int64)
    order_PK = np.argsort(whole_PK - exact_PK, axis=1, kind="stable")
    rank_PK = np.argsort(order_PK, axis=1, kind="stable")
    short_P1 = (sums_P - whole_PK.sum(axis=1))[:, np.newaxis]
    return whole_PK + (rank_PK < short_P1)


def _spread(totals: Sequence[int], *, num_elements: int, rows: int) -> list[list[int]]:
    taken = [0] * len(totals)
    elements = []
    for element in range(1, num_elements + 1):
        take = [max(total * element // num_elements - had, 0) for total, had in zip(totals, taken, strict=True)]
        waiting = []
        for at, total in enumerate(totals):
            had = taken[at] + take[at]
            if had * num_elements < total * element:
                # The next row is released. It is due in this element:
                waiting.append((-(-(had + 1) * num_elements // total), at))
        for _, at in sorted(waiting)[: rows - sum(take)]:
            take[at] += 1
        taken = [had + now for had, now in zip(taken, take, strict=True)]
        elements.append(take)
    return elements
