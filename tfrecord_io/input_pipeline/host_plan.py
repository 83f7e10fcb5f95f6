"""Compute which rows a host reads, numbers of steps, and how to resume, without TensorFlow.

In the first e epochs of N rows, host h of H has (e N + h) // H rows, so each row comes once per epoch.

`tf.data` interleaves shards deterministically. With 2 slots and shards a, b, c of 3, 1, 2 blocks:

    round      0    1    2    3    4
    slot 0     a0   a1   a2   ..             a0: the first block of a
    slot 1     b0   ..   c0   c1   ..        ..: a shard has ended; its slot skips a round, then opens the next shard

    order      a0 b0 │ a1 │ a2 c0 │ c1       block m of a shard is read m rounds after its first block

To continue an interrupted interleave, begin one with the current slot's shard, the other open shards, each at its
current row, and the unopened shards.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import operator
from typing import Any, Literal, SupportsIndex

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.schema import Schema
from tfrecord_io.shown import some

# Feature of every element: 1 on real rows, 0 on fill rows.
WEIGHT = "example_weight"

_LEAST_OPEN_SHARDS, _LEAST_WINDOW = 4, 1024

Order = Literal["hosts", "global"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One of `count` machines that read a dataset together. It supplies `replicas` replicas with rows."""

    index: int = 0
    count: int = 1
    replicas: int = 1

    def columns(self, global_batch_size: int) -> range:
        """Return the positions of this host's rows in a global batch, whose size must be a multiple of `count`."""
        rows = global_batch_size // self.count
        return range(self.index * rows, (self.index + 1) * rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How training data is shuffled.

    cycle_length: number of shards read at the same time; ignored in the global order.
    block_length: number of consecutive records from one shard.
    window: number of records permuted together. A host keeps about three windows of serialized records. In the
        global order, all hosts share one window.

    Raises: ReaderError if a number is not positive.
    """

    # 16 streams of 8 MiB hide the latency of an object store. Each window has blocks of all streams.
    cycle_length: int = 16
    block_length: int = 16
    window: int = 8192

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            check_positive(name, value)

    def shared(self, count: int) -> Shuffle:
        """Return one of `count` equal parts of the open shards and the window, at least 4 shards and 1,024 records."""
        window = max(_LEAST_WINDOW, -(-self.window // count))
        cycle_length = max(_LEAST_OPEN_SHARDS, -(-self.cycle_length // count))
        return dataclasses.replace(self, cycle_length=cycle_length, window=window)


def check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ReaderError(f"{name} is {value!r}, expected a whole number of at least 1")


def check_seed(seed: int) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ReaderError(f"seed is {seed!r}, expected a whole number from 0 to 2**63 - 1")


def check_hosts(replicas: int, hosts: int) -> None:
    if replicas % hosts:
        raise ReaderError(
            f"{some(replicas, 'replica')} on {some(hosts, 'host')}, expected the same number on each host",
            remedy="use a number of replicas that is a multiple of the number of hosts",
        )


def whole_step(start_step: SupportsIndex) -> int:
    try:
        # Optimizers count steps in NumPy integers.
        step = -1 if isinstance(start_step, bool) else operator.index(start_step)
    except TypeError:
        step = -1
    if step < 0:
        raise ReaderError(f"start_step is {start_step!r}, expected a whole number of at least 0")
    return step


def element_rows(global_batch_size: int, host: Host) -> int:
    """Return the number of a global batch's rows for each replica. Raises: ReaderError if it is no whole number."""
    check_positive("global_batch_size", global_batch_size)
    replicas = host.count * host.replicas
    if global_batch_size % replicas:
        below = global_batch_size // replicas * replicas
        raise ReaderError(
            f"global_batch_size is {global_batch_size}, expected a multiple of the {replicas} replicas "
            f"({some(host.count, 'host')} with {host.replicas} each)",
            remedy=f"use {below or replicas} or {below + replicas}" if below else f"use {replicas}",
        )
    return global_batch_size // replicas


def share(num_rows: int, host: Host, *, epoch: Any) -> tuple[Any, Any]:
    """Return the range [first, last) of an epoch's rows that a host reads, as tensors if `epoch` is a tensor."""

    def before(index: int, epochs: Any) -> Any:
        rest = epochs * num_rows % host.count + index - host.count
        return epochs * num_rows // host.count * index + (rest + abs(rest)) // 2

    return tuple(before(index, epoch + 1) - before(index, epoch) for index in (host.index, host.index + 1))


def locate(row: int, num_rows: int, host: Host) -> tuple[int, int]:
    """Return the epoch of row `row` of a host's endless stream, and the row's index in the host's part of the epoch."""
    epoch = ((row + 1) * host.count - host.index - 1) // num_rows
    return epoch, row - (epoch * num_rows + host.index) // host.count


def evaluation_steps(num_rows: int, *, global_batch_size: int) -> int:
    check_positive("global_batch_size", global_batch_size)
    return -(-num_rows // global_batch_size)


def mask_name(schema: Schema) -> str:
    stored = schema.mask_of("input")
    return "attention_mask" if stored is None else stored.name


def computes_mask(schema: Schema) -> bool:
    """Return whether no attention mask is stored, so that the reader must compute it."""
    return schema.with_role("token_ids") is not None and schema.with_role("attention_mask") is None


def resume(
    shard_rows: np.ndarray, *, cycle_length: int, block_length: int, row: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute how to resume interleaved reading of N shards at row `row` of the output. `shard_rows`: int64 [N].

    Returns: the numbers of the shards that remain, in their new order, and the first row to read of each, both int64
        [n]; and the number of rows to skip in the first block.
    """
    blocks = -(-shard_rows // block_length)
    slot, first_round = _schedule(blocks, cycle_length=cycle_length)

    def rows_read(rounds: np.ndarray | int) -> np.ndarray:
        return np.minimum(np.clip(rounds - first_round, 0, blocks) * block_length, shard_rows)

    rounds = range(1, int(np.max(first_round + blocks)))
    round_now = bisect.bisect_right(rounds, row, key=lambda at: int(rows_read(at).sum()))
    before, after = rows_read(round_now), rows_read(round_now + 1)
    turns = np.argsort(slot, kind="stable")
    ends = before.sum() + np.cumsum((after - before)[turns])
    turn = int(np.searchsorted(ends, row, side="right"))
    current = turns[turn]
    # Earlier slots have finished this round.
    next_round = round_now + (slot < slot[current])
    opened = np.flatnonzero((first_round <= next_round) & (next_round <= first_round + blocks))
    opened = opened[np.lexsort((slot[opened], next_round[opened]))]
    shards = np.concatenate([opened, np.flatnonzero(first_round > next_round)])
    skip = row - int(ends[turn] - (after - before)[current])
    return shards, rows_read(next_round)[shards], skip


def _schedule(blocks: np.ndarray, *, cycle_length: int) -> tuple[np.ndarray, np.ndarray]:
    slot, first_round = np.empty_like(blocks), np.empty_like(blocks)
    # For each slot: the first round after the end of its shard, and the slot.
    ends: list[tuple[int, int]] = []
    for shard, shard_blocks in enumerate(blocks.tolist()):
        if shard < cycle_length:
            first, at = 0, shard
        else:
            ended, at = heapq.heappop(ends)
            first = ended + 1
        slot[shard], first_round[shard] = at, first
        heapq.heappush(ends, (first + shard_blocks, at))
    return slot, first_round
