"""The arithmetic of mixtures: rates, and the rows of each dataset in each element."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrecord_io.errors import ReaderError
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.mixing.mixing_plan import Stage


def cycle(*rates: float, rows: int) -> np.ndarray:
    return mixing_plan.cycle({f"dataset {at}": rate for at, rate in enumerate(rates)}, rows=rows)


def host(*rates: float, rows: int, index: int = 0, hosts: int = 1) -> Stage:
    shares = {str(at): rate for at, rate in enumerate(rates)}
    return mixing_plan.schedule({0: shares}, rows=rows, host=index, hosts=hosts)[0]


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[list[float], int]:
    weights = draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6))
    return [weight / math.fsum(weights) for weight in weights], draw(st.integers(1, 200))


@pytest.mark.slow
@settings(max_examples=25)
@given(mixtures())
def test_every_dataset_has_its_share_of_any_elements_to_within_a_row(mixture: tuple[list[float], int]) -> None:
    rates, rows = mixture
    rows_PK = cycle(*rates, rows=rows)
    num_elements = len(rows_PK)
    assert num_elements <= 4096
    assert (rows_PK >= 0).all()
    assert (rows_PK.sum(axis=1) == rows).all()
    # In whole numbers: |taken - element * total / num_elements| < 1.
    elements_P1 = np.arange(1, num_elements + 1)[:, np.newaxis]
    off = np.abs(np.cumsum(rows_PK, axis=0) * num_elements - elements_P1 * rows_PK.sum(axis=0))
    assert off.max() < num_elements
    # From another place of the cycle on, where another host begins, to within two.
    turned = np.cumsum(np.roll(rows_PK, -(num_elements // 3), axis=0), axis=0)
    assert np.abs(turned * num_elements - elements_P1 * rows_PK.sum(axis=0)).max() < 2 * num_elements
    # The cycle's totals are the rates' share, exactly or to within a row in 4,096 elements.
    assert np.abs(rows_PK.sum(axis=0) - num_elements * rows * np.array(rates)).max() < 1


@pytest.mark.parametrize(
    ("rates", "rows", "num_elements"),
    [*(((0.7, 0.3), 128, 5), ((0.7, 0.3), 10, 1), ((1 / 3,) * 3, 8, 3), ((0.999, 0.001), 1, 1000), ((1.0,), 7, 1))],
)
def test_the_shortest_cycle_of_exact_rates_is_found(rates: tuple[float, ...], rows: int, num_elements: int) -> None:
    rows_PK = cycle(*rates, rows=rows)
    assert len(rows_PK) == num_elements
    np.testing.assert_allclose(rows_PK.sum(axis=0), num_elements * rows * np.array(rates), atol=1e-9)


def test_the_example_of_the_docstring() -> None:
    assert cycle(0.5, 0.3, 0.2, rows=4).T.tolist() == [[2, 2, 2, 2, 2], [2, 1, 1, 1, 1], [0, 1, 1, 1, 1]]


def test_what_comes_before_an_element_is_known_without_counting() -> None:
    stage = host(0.5, 0.3, 0.2, rows=4)
    whole = np.concatenate([stage.rows_PK] * 3)
    for element in range(11):
        assert stage.rows_before(element) == tuple(whole[:element].sum(axis=0))
        assert (stage.from_element(element).rows_PK == whole[element : element + 5]).all()
    assert stage.rows_before(5 * 10**30 + 1) == (10**31 + 2, 6 * 10**30 + 2, 4 * 10**30)


def test_hosts_begin_at_different_places_so_that_a_rare_dataset_does_not_come_everywhere_at_once() -> None:
    stages = [host(0.9, 0.1, rows=1, index=index, hosts=5) for index in range(5)]
    rare_P = np.sum([stage.rows_PK[:, 1] for stage in stages], axis=0)
    assert rare_P.sum() == 5
    assert rare_P.max() == 1


def test_a_share_of_less_than_a_row_in_a_cycle_is_refused_by_name() -> None:
    with pytest.raises(ReaderError, match=r"'dataset 1' has a share of 1e-06, .* 4,096 batches of 8 rows") as caught:
        cycle(1 - 1e-6, 1e-6, rows=8)
    assert "larger batch" in caught.value.remedy


class TestRates:
    def test_weights_are_in_proportion_to_each_other(self) -> None:
        assert mixing_plan.rates({"a": 5, "b": 9}, weights={"b": 3, "a": 1}) == {0: {"a": 0.25, "b": 0.75}}

    @pytest.mark.parametrize("weight", [0, 0.0, -1, math.inf, math.nan, True, "1", None])
    def test_a_weight_that_is_no_positive_number_is_refused(self, weight: Any) -> None:
        with pytest.raises(ReaderError, match=r"the weight of dataset 'b' is .*expected a number above 0"):
            mixing_plan.rates({"a": 5, "b": 9}, weights={"a": 1.0, "b": weight})

    def test_names_without_a_weight_and_weights_without_a_name_are_refused(self) -> None:
        for weights in ({"a": 1, "b": 1, "c": 1}, {"a": 1}):
            words = f"weights are for {list(weights)}, expected one for each of the datasets ['a', 'b']"
            with pytest.raises(ReaderError, match=re.escape(words)):
                mixing_plan.rates({"a": 5, "b": 9}, weights=weights)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [10_000, 100]),
            ({"temperature": 2.0}, [100, 10]),
            ({"temperature": 0.5}, [10**8, 10**4]),
            ({"maximum": 900}, [900, 100]),
            ({"temperature": 2.0, "maximum": 900}, [30, 10]),
        ],
    )
    def test_by_size(self, options: dict[str, Any], expected: list[int]) -> None:
        rates = mixing_plan.rates({"large": 10_000, "small": 100}, **options)
        assert list(rates[0].values()) == pytest.approx(np.array(expected) / sum(expected), rel=1e-12)

    @pytest.mark.parametrize(
        ("name", "value"),
        [*(("temperature", value) for value in (0, math.nan, "2")), *(("maximum", value) for value in (0, 1.5, True))],
    )
    def test_what_is_no_temperature_or_maximum_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(ReaderError, match=f"{name} is"):
            mixing_plan.rates({"a": 1}, **{name: value})
