"""With order="global" a batch is a function of seed and step: the same on any number of hosts, also amid an epoch."""

import hashlib
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import seams
from tests.tfrecord_io.conftest import WriteDataset, context, graph_ops, impure, pad_shards
from tfrecord_io import objectives, random_access, reader, readiness
from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline.base import InputFunctions
from tfrecord_io.objectives import tensor_ops
from tfrecord_io.reader import Shuffle

SIZES = (70, 95, 90)
BATCH = 24
# An epoch is 10.6 steps of four windows.
STEPS = 16
SMALL = Shuffle(block_length=16, window=64)


@pytest.fixture(params=["in blocks", "in memory"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in blocks":
        seams.put(monkeypatch, order_bytes=0)
    return str(request.param)


@pytest.fixture(scope="module")
def root(write_dataset: WriteDataset) -> pathlib.Path:
    return write_dataset({"train": pad_shards(*SIZES)})


def steps(
    data: InputFunctions, *, hosts: int = 1, per_host: int = 1, start: int = 0, stop: int = STEPS, **options: Any
) -> list[str]:
    """Return the digest of each global batch: the concatenated elements of all replicas of all hosts."""
    options = {"global_batch_size": BATCH, "seed": 7, "order": "global", "shuffle": SMALL, **options}
    fn = data.input_fn("train", **options, start_step=start)
    iterators = [iter(fn(context(hosts=hosts, index=host, replicas=hosts * per_host))) for host in range(hosts)]
    digests = []
    for _ in range(start, stop):
        elements = [tf.nest.flatten(next(iterator)) for iterator in iterators for _ in range(per_host)]
        whole = [np.concatenate(leaves) for leaves in zip(*elements, strict=True)]
        digests.append(hashlib.sha256(b"".join(leaf.tobytes() for leaf in whole)).hexdigest())
    return digests


@pytest.mark.slow
def test_batches_are_the_same_on_any_hosts_and_from_any_step_on(root: pathlib.Path, how: str) -> None:
    data, masked = reader.open(root), objectives.masked_lm(0.5)
    expected = steps(data, objective=masked)
    assert len(set(expected)) == STEPS
    # One host, and more than there are shards.
    for hosts, per_host, start in ((1, 4, 5), (4, 2, 13)):
        digests = steps(data, hosts=hosts, per_host=per_host, start=start, objective=masked)
        assert digests == expected[start:], f"{hosts} hosts"


@pytest.mark.parametrize("shape", [(16,), (16, 5), (16, 8)])
@pytest.mark.parametrize("maxval", [None, 1000])
def test_draws_of_some_rows_are_those_of_the_batch(shape: tuple[int, ...], maxval: int | None) -> None:
    def drawn(first: int, last: int) -> np.ndarray:
        seed = tensor_ops.by_row(tf.constant([3, 4], tf.int64), first_row=tf.constant(first, tf.int64))
        values: np.ndarray = tensor_ops._uniform(
            (last - first, *shape[1:]), tensor_ops._split(seed, 2)[1], maxval=maxval
        ).numpy()
        return values

    whole = drawn(0, 16)
    assert whole.shape == shape
    assert len(np.unique(whole)) > 0.9 * whole.size
    for first, last in ((0, 4), (3, 9), (15, 16)):
        np.testing.assert_array_equal(drawn(first, last), whole[first:last])


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "per_host"), [(1, 2), (3, 1), (4, 2)])
def test_an_evaluation_gives_rows_in_order_then_fill_rows(root: pathlib.Path, hosts: int, per_host: int) -> None:
    data = reader.open(root)
    num_steps = data.evaluation_steps("train", global_batch_size=BATCH)
    assert num_steps == 11
    fn = data.input_fn("train", global_batch_size=BATCH, training=False, order="global")
    inputs = [list(fn(context(hosts=hosts, index=host, replicas=hosts * per_host))) for host in range(hosts)]
    assert {len(elements) for elements in inputs} == {num_steps * per_host}
    steps = [slice(step * per_host, (step + 1) * per_host) for step in range(num_steps)]
    ordered = [element for step in steps for elements in inputs for element in elements[step]]
    rows, weights = (np.concatenate([batch[name] for batch in ordered]).tolist() for name in ("row", "example_weight"))
    assert rows == [*range(255), *[0] * 9]
    assert weights == [1] * 255 + [0] * 9


@pytest.mark.slow
def test_random_access_gives_the_same_batches(root: pathlib.Path, how: str) -> None:
    data = reader.open(root)
    rows = random_access.open(root)["train"]
    batches = random_access.global_batches(rows, global_batch_size=BATCH, seed=3, shuffle=SMALL)
    elements = data.dataset("train", global_batch_size=BATCH, seed=3, order="global", shuffle=SMALL, start_step=8)
    for step, element in zip(range(8, 14), elements, strict=False):
        assert element["row"].numpy().tolist() == batches.indices(step).tolist()
        np.testing.assert_array_equal(element["input_ids"], batches[step]["input_ids"])
        part = batches.part(step, replica=2, replicas=3)
        np.testing.assert_array_equal(part["input_ids"], batches[step]["input_ids"][16:])


@pytest.mark.slow
def test_shapes_are_static_and_the_graph_needs_no_python(root: pathlib.Path, how: str) -> None:
    data = reader.open(root)
    fn = data.input_fn("train", global_batch_size=BATCH, order="global", objective=objectives.masked_lm(), start_step=3)
    dataset = fn(context(hosts=2, index=1, replicas=4))
    assert all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert not impure(graph_ops(dataset))
    findings = readiness.check(dataset, tpu="node", num_replicas=4, num_hosts=2, batch="per_replica")
    # Local files are all that is wrong.
    assert {finding.kind for finding in findings if finding.fatal} == {"path"}


def test_compressed_shards_are_refused(write_dataset: WriteDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, order_bytes=0)
    data = reader.open(write_dataset({"train": pad_shards(20, 20)}, compression="gzip"))
    with pytest.raises(ReaderError, match=r"are compressed.*; .*--compression gzip"):
        data.dataset("train", global_batch_size=4, order="global")


@pytest.mark.slow
def test_small_compressed_splits_are_kept_in_memory(write_dataset: WriteDataset) -> None:
    data = reader.open(write_dataset({"train": pad_shards(20, 20)}, compression="gzip"))
    assert steps(data, hosts=2, stop=2) == steps(data, stop=2)


def test_an_order_that_there_is_not_is_refused(root: pathlib.Path) -> None:
    with pytest.raises(ReaderError, match="order is 'any'"):
        reader.open(root).dataset("train", global_batch_size=4, order="any")


def test_steps_and_replicas_that_are_not_there_are_index_errors(root: pathlib.Path) -> None:
    batches = random_access.global_batches(random_access.open(root)["train"], global_batch_size=8)
    for wrong in (lambda: batches[-1], lambda: batches.part(0, replica=2, replicas=2)):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ReaderError, match="multiple of the 3 replicas"):
        batches.part(0, replicas=3)
