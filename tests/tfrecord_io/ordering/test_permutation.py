"""A keyed permutation is one for every limit and key, takes all orders equally often, and is the same in a graph."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tfrecord_io.ordering.permutation import NUMPY, Permutation, folded, hashed, key


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_it_is_a_permutation(limit: int) -> None:
    for number in range(5):
        permuted = Permutation(limit=limit).of(np.arange(limit), key(number), NUMPY)
        assert sorted(permuted.tolist()) == list(range(limit))


def test_any_number_is_found_without_the_others() -> None:
    permutation = Permutation(limit=2**40)
    several = permutation.of(np.array([5, 2**39, 7]), key(1), NUMPY)
    assert permutation.of(np.array([2**39]), key(1), NUMPY).tolist() == [several[1]]


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_every_order_comes_equally_often(limit: int) -> None:
    keys = folded(key(3), np.arange(60_000), NUMPY)
    columns = [Permutation(limit=limit).of(np.full(60_000, number), keys, NUMPY) for number in range(limit)]
    orders, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    expected = 60_000 / math.factorial(limit)
    assert orders.shape[1] == math.factorial(limit)
    assert ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1) < 2


def test_each_bit_of_a_hash_is_set_half_of_the_time() -> None:
    words = hashed(key(1), np.arange(20_000), NUMPY)
    shares = [((words >> bit) & 1).mean() for bit in range(32)]
    assert max(abs(share - 0.5) for share in shares) < 0.02
    assert all(0 <= word < 2**32 for word in itertools.islice(words.tolist(), 1000))
