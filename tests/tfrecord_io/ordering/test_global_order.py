"""Properties of the global order, without TensorFlow: every row once in an epoch, and batches of distant rows.

Its permutation has every number once, and all orders are equally frequent.
"""

import math

import numpy as np
import pytest

from tests.support.manifests import make_shard
from tfrecord_io.input_pipeline.host_plan import Shuffle
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.ordering.global_order import GlobalOrder
from tfrecord_io.ordering.permutation import NUMPY, folded, grid, key, permuted


def order_of(sizes: tuple[int, ...], *, block: int, batch: int = 8, window: int = 64, seed: int = 5) -> GlobalOrder:
    stage = mixing_plan.schedule({0: {"": 1.0}}, rows=batch)[0]
    return GlobalOrder(shard_rows=sizes, seed=seed, block=block, window=window, stage=stage)


def line(order: GlobalOrder, *, epochs: int) -> list[int]:
    steps = -(-epochs * order.num_rows // order.batch_rows)
    return np.concatenate([order.place(step)[1] for step in range(steps)]).tolist()[: epochs * order.num_rows]


@pytest.mark.parametrize(
    ("sizes", "block"),
    [((70, 40, 55, 90), 16), ((13, 9, 11), 4), ((13, 9, 11), 1), ((300,), 64), ((3, 2), 16), ((1,), 1)],
)
def test_every_row_comes_once_in_each_epoch(sizes: tuple[int, ...], block: int) -> None:
    order = order_of(sizes, block=block)
    numbers = line(order, epochs=3)
    for epoch in range(3):
        rows = numbers[epoch * order.num_rows : (epoch + 1) * order.num_rows]
        assert sorted(rows) == list(range(order.num_rows))


@pytest.mark.parametrize("block", [1, 16])
def test_epochs_and_seeds_have_other_orders(block: int) -> None:
    order = order_of((200, 100), block=block)
    numbers = line(order, epochs=2)
    assert numbers[:300] != numbers[300:]
    assert line(order_of((200, 100), block=block, seed=6), epochs=1) != numbers[:300]


def test_rows_of_a_batch_are_from_other_blocks_each() -> None:
    order = order_of((16 * 640,), block=16, batch=32, window=32 * 16)
    for step in range(20):
        assert len(set((order.place(step)[1] // 16).tolist())) == 32


@pytest.mark.parametrize("block", [1, 8])
def test_columns_of_a_mixture_fill_every_batch(block: int) -> None:
    stage = mixing_plan.schedule({0: {"a": 0.7, "b": 0.2, "c": 0.1}}, rows=12)[0]
    parts = [GlobalOrder(shard_rows=(50, 30), seed=at, block=block, window=24, stage=stage, part=at) for at in range(3)]
    for step in range(40):
        columns = np.concatenate([part.place(step)[0] for part in parts])
        assert sorted(columns.tolist()) == list(range(12))


def test_a_small_split_is_a_full_permutation_and_a_large_one_is_not() -> None:
    def block(num_bytes: int, compression: str = "none") -> int:
        schedule = mixing_plan.schedule({0: {"": 1.0}}, rows=8)
        shards, shuffle = [make_shard(num_bytes=num_bytes)], Shuffle(block_length=32)
        options = {"compression": compression, "seed": 0, "schedule": schedule, "stage": schedule[0]}
        return GlobalOrder.of(shards, shuffle=shuffle, **options).block  # type: ignore[arg-type]

    assert [block(64 << 20), block((64 << 20) + 1)] == [1, 32]
    assert [block(8 << 20, "gzip"), block((8 << 20) + 1, "gzip")] == [1, 32]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_it_is_a_permutation(limit: int) -> None:
    for number in range(5):
        numbers = permuted(np.arange(limit), key(number), NUMPY, limit=limit, grid=grid(limit))
        assert sorted(numbers.tolist()) == list(range(limit))


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_every_order_comes_equally_often(limit: int) -> None:
    keys = folded(key(3), np.arange(60_000), NUMPY)
    columns = [permuted(np.full(60_000, number), keys, NUMPY, limit=limit, grid=grid(limit)) for number in range(limit)]
    orders, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    expected = 60_000 / math.factorial(limit)
    assert orders.shape[1] == math.factorial(limit)
    assert ((counts - expected) ** 2 / expected).sum() / (len(counts) - 1) < 2
