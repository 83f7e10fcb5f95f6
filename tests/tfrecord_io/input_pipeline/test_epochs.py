"""An epoch has every row exactly once: on any number of hosts, whatever the shards, in both orders."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.tfrecord_io.conftest import WriteDataset, context, pad_shards
from tfrecord_io import reader
from tfrecord_io.input_pipeline import host_plan, record_order
from tfrecord_io.input_pipeline.base import InputFunctions
from tfrecord_io.input_pipeline.host_plan import Host
from tfrecord_io.reader import Data, Shuffle

SMALL = Shuffle(cycle_length=3, block_length=4, window=16)


@pytest.mark.parametrize("hosts", range(1, 10))
def test_pieces_of_hosts_are_the_epoch_and_no_host_is_ahead(hosts: int) -> None:
    for num_rows in (1, 2, 7, 8, 9, 30):
        taken_rows = [0] * hosts
        for epoch in range(2 * hosts + 1):
            ends = [0]
            for index in range(hosts):
                host = Host(index=index, count=hosts)
                first, last = host_plan.share(num_rows, host, epoch=epoch)
                assert first == ends[-1]
                for row in range(last - first):
                    assert host_plan.locate(taken_rows[index] + row, num_rows, host) == (epoch, row)
                taken_rows[index] += last - first
                ends.append(last)
            assert ends[-1] == num_rows
            assert max(taken_rows) - min(taken_rows) <= 1


@pytest.fixture(scope="module", params=[(90, 3, 70, 61, 1, 96), (60,) * 5], ids=["uneven", "even"])
def data(request: pytest.FixtureRequest, write_dataset: WriteDataset) -> Data:
    return reader.open(write_dataset({"train": pad_shards(*request.param)}))


@pytest.mark.parametrize("hosts", range(1, 10))
def test_hosts_read_each_row_once_an_epoch(data: Data, hosts: int) -> None:
    source = data.source("train", seed=3)
    begins = dict(zip(map(str.encode, source.paths), np.cumsum(source.rows) - source.rows, strict=True))
    for epoch in range(3):
        rows: list[int] = []
        for index in range(hosts):
            host = Host(index=index, count=hosts)
            numbers = record_order.stream_settings(source, host, SMALL)
            pieces = record_order.epoch_pieces(*source.columns, tf.constant(numbers), tf.constant(epoch, tf.int64))
            for path, _, first, count in zip(*(column.numpy().tolist() for column in pieces), strict=True):
                rows += range(begins[path] + first, begins[path] + first + count)
        assert sorted(rows) == list(range(source.num_rows))


def taken(data: InputFunctions, *, hosts: int, batch: int, steps: int) -> list[collections.Counter[int]]:
    """How often each row is in the first step, the first two, and so on."""
    fn = data.input_fn("train", global_batch_size=batch, seed=3, shuffle=SMALL)
    inputs = [fn(context(hosts=hosts, index=host, replicas=hosts)).take(steps) for host in range(hosts)]
    of_step = [
        collections.Counter(row for element in elements for row in element["row"].numpy().tolist())
        for elements in zip(*inputs, strict=True)
    ]
    return list(itertools.accumulate(of_step))


@pytest.mark.slow
def test_rows_that_are_left_over_come_in_the_batch_that_begins_the_next_epoch(data: Data) -> None:
    hosts = 3
    rows, batch = data.num_examples("train"), 10 * hosts
    whole, rest = divmod(rows, batch)
    *_, before, after = taken(data, hosts=hosts, batch=batch, steps=whole + 1)
    assert set(before.values()) == {1}
    assert before.total() == rows - rest
    assert set(after) == set(range(rows))
    assert after.total() == rows + batch - rest
