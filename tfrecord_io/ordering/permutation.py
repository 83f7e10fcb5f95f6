"""Permute the numbers below a limit by a key, without memory.

A Feistel network on pairs (left, right) of a grid hardly larger than the limit (Black and Rogaway, Ciphers with
Arbitrary Finite Domains, 2002): each round adds a hash of one half to the other. A result beyond the limit passes
through the network again.

16 rounds make all orders of 5 elements equally frequent (chi-square per degree of freedom: 23 with 8 rounds, 1.0 with
16).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_ROUNDS = 16
_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9

# Two words of 32 bits, as int64: numbers or arrays.
Key = tuple[Any, Any]


def grid(limit: int) -> tuple[int, int]:
    rows = math.isqrt(max(limit, 1) - 1) + 1
    return rows, max(1, -(-limit // rows))


def permuted(numbers: Any, key: Key, ops: Any, *, limit: Any, grid: Any) -> Any:
    """Apply a random permutation of 0 to `limit` - 1 to `numbers`, int64 [N]. `grid`: the result of `grid(limit)`."""
    rows, columns = grid[0], grid[1]

    def two_rounds(turn: Any, left: Any, right: Any) -> tuple[Any, Any]:
        left = (left + _keyed(right, key, 2 * turn, ops)) % rows
        return left, (right + _keyed(left, key, 2 * turn + 1, ops)) % columns

    def network(values: Any) -> Any:
        left, right = ops.changed(_ROUNDS // 2, two_rounds, values // columns, values % columns)
        return left * columns + right

    return ops.changed_below(limit, network, numbers)


def key(*numbers: int) -> Key:
    """Return a key that depends on all `numbers`, of at most 64 bits, and their order."""
    low, high = 0, 0
    for number in numbers:
        for word in (number & _WORD, (number >> 32) & _WORD):
            low, high = _mixed(low ^ word, NUMPY), _mixed(high + word + _GOLDEN & _WORD, NUMPY)
    return low, high


def folded(key: Key, numbers: Any, ops: Any) -> Key:
    """Return N keys, each derived from `key` and one of `numbers`, int64 [N] of at most 63 bits."""
    low, high = numbers & _WORD, ops.shifted(numbers, 32)
    first = _mixed(_mixed(low ^ key[0], ops) ^ high, ops)
    return first, _mixed(_mixed((low + key[1]) & _WORD, ops) ^ high ^ _GOLDEN, ops)


def hashed(key: Key, numbers: Any, ops: Any) -> Any:
    """Return a 32-bit hash of `key` and each of `numbers`, int64 [N] of at most 63 bits."""
    return folded(key, numbers, ops)[0]


def _keyed(values: Any, key: Key, turn: Any, ops: Any) -> Any:
    return _mixed((_mixed(values ^ key[0], ops) + key[1] + turn * _GOLDEN) & _WORD, ops)


def _mixed(values: Any, ops: Any) -> Any:
    # The bijection "lowbias32" of 32-bit words (https://nullprogram.com/blog/2018/07/31/)
    values = values ^ ops.shifted(values, 16)
    values = (values * 0x7FEB352D) & _WORD  # products wrap at 64 bits, which keeps the lower 32 bits
    values = values ^ ops.shifted(values, 15)
    values = (values * 0x846CA68B) & _WORD
    return values ^ ops.shifted(values, 16)


class NUMPY:
    """Operations of global orders, on arrays. `global_records.TENSORS` has them for tensors."""

    minimum, maximum, where = staticmethod(np.minimum), staticmethod(np.maximum), staticmethod(np.where)
    constant = staticmethod(lambda values: values)
    arange = staticmethod(lambda start, stop: np.arange(start, stop, dtype=np.int64))
    gather = staticmethod(lambda values, indices: values[indices])
    shifted = staticmethod(lambda values, bits: values >> bits)
    indices, count = staticmethod(np.flatnonzero), staticmethod(np.count_nonzero)
    order = staticmethod(lambda keys: np.argsort(keys, kind="stable"))
    total = staticmethod(lambda values: values.sum(axis=1))
    # For each value, the number of `ends` (ascending) that do not exceed it.
    search = staticmethod(lambda ends, values: np.searchsorted(ends, values, side="right"))

    @staticmethod
    def changed(turns: int, change: Callable[[Any, Any, Any], tuple[Any, Any]], left: Any, right: Any) -> Any:
        """Replace (left, right) by change(turn, left, right) for each turn in range(turns), and return it."""
        for turn in range(turns):
            left, right = change(turn, left, right)
        return left, right

    @staticmethod
    def changed_below(limit: int, change: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
        """Return `values` after applying `change` to each once, and again until it is below `limit`."""
        values = change(values)
        while (outside := values >= limit).any():
            values = np.where(outside, change(values), values)
        return values
