"""The arithmetic of an interleave that is continued, against TensorFlow's own interleave."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tfrecord_io.input_pipeline import input_position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of an interleave."""

    shard_rows: np.ndarray
    cycle_length: int
    block_length: int


def interleaved(shards: np.ndarray, first_rows: np.ndarray, sizes: Sizes) -> list[tuple[int, int]]:
    """(shard, row) in the order in which TensorFlow interleaves `shards` from their `first_rows` on."""
    rows = sizes.shard_rows[shards]

    def blocks(shard: tf.Tensor, first: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(first, end).map(lambda row: tf.stack([shard, row])).batch(sizes.block_length)

    slices = tf.data.Dataset.from_tensor_slices((shards.astype(np.int64), first_rows, rows))
    order = slices.interleave(blocks, cycle_length=sizes.cycle_length, num_parallel_calls=tf.data.AUTOTUNE)
    return [(shard, row) for block in order.as_numpy_iterator() for shard, row in block.tolist()]


def some_sizes(seed: int) -> Sizes:
    random = np.random.default_rng(seed)
    least, most = random.choice([0, 1]), random.choice([4, 30])
    return Sizes(
        shard_rows=np.append(random.integers(least, most, random.integers(1, 12)), 2),
        cycle_length=int(random.integers(1, 14)),
        block_length=int(random.integers(1, 6)),
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_an_interleave_continues_at_any_row(seed: int) -> None:
    sizes = some_sizes(seed)
    total = int(sizes.shard_rows.sum())
    whole = interleaved(np.arange(len(sizes.shard_rows)), np.zeros_like(sizes.shard_rows), sizes)
    assert len(whole) == total
    for row in {0, total - 1, *np.random.default_rng(seed).integers(0, total, 4).tolist()}:
        rest = input_position.resume(**vars(sizes), row=row)
        assert interleaved(rest.shards, rest.first_rows, sizes)[rest.skip :] == whole[row:], (sizes, row)


def test_what_is_left_out_is_less_than_a_block() -> None:
    sizes = Sizes(shard_rows=np.array([7, 20, 3, 9]), cycle_length=2, block_length=4)
    skips = [input_position.resume(**vars(sizes), row=row).skip for row in range(39)]
    assert max(skips) == 3


@pytest.mark.parametrize(
    ("row", "place"), [(0, (0, 0)), (2, (0, 2)), (3, (1, 0)), (4, (3, 0)), (8, (3, 4)), (9, (4, 0)), (11, (4, 2))]
)
def test_a_row_of_all_shards_is_found(row: int, place: tuple[int, int]) -> None:
    assert input_position.locate([3, 1, 0, 5], row) == place
