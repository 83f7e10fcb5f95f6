"""A run that starts at a step returns the same batches as one from the beginning, and reads little else."""

import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import frames
from tests.tfrecord_io.conftest import WriteDataset, context, digests, graph_ops, impure, pad_shards
from tfrecord_io import manifest as manifests
from tfrecord_io import objectives, reader, records
from tfrecord_io.errors import ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.reader import Data, Shuffle

SMALL = Shuffle(cycle_length=2, block_length=2, window=8)
INDEXED = Shuffle(cycle_length=2, block_length=16, window=32)


def digests_from(
    data: Data, start: int, *, batch: int, steps: int, hosts: int = 1, host: int = 0, per_host: int = 1, **options: Any
) -> list[str]:
    """Return the digests of one host's elements from step `start` on, with this many replicas per step."""
    options = {"seed": 7, "shuffle": SMALL, **options}
    fn = data.input_fn("train", global_batch_size=batch, start_step=start, **options)
    elements = fn(context(hosts=hosts, index=host, replicas=hosts * per_host))
    return digests(elements.take((steps - start) * per_host))


def assert_continues(data: Data, starts: Iterable[int], *, per_host: int = 1, **run: Any) -> None:
    whole = digests_from(data, 0, per_host=per_host, **run)
    for start in starts:
        assert digests_from(data, start, per_host=per_host, **run) == whole[start * per_host :], (run, start)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_training_continues_whatever_the_sizes(write_dataset: WriteDataset, seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = tuple(random.integers(1, random.choice([6, 40, 80]), random.integers(3, 9)).tolist())
    hosts, per_host = int(random.integers(1, 4)), int(random.integers(1, 3))
    batch = hosts * per_host * int(random.integers(1, 7))
    shuffle = Shuffle(
        cycle_length=int(random.integers(1, 11)),
        block_length=int(random.choice([1, 3, 16])),
        window=int(random.choice([1, 7, 32, 500])),
    )
    steps, host = sum(sizes) * 9 // 4 // batch + 2, int(random.integers(hosts))
    options: dict[str, Any] = {"shuffle": shuffle, "objective": objectives.masked_lm(0.5)}
    options |= {"batch": batch, "steps": steps, "hosts": hosts, "host": host, "per_host": per_host}
    data = reader.open(write_dataset({"train": pad_shards(*sizes)}))
    assert_continues(data, random.integers(0, steps, 2).tolist(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "batch", "hosts", "replicas"),
    [((20, 30, 7), 4, 1, 1), ((20, 30, 7), 8, 2, 4), ((40, 37), 9, 3, 3)],
    ids=["one host", "hosts dealt shards", "hosts dealt records"],
)
def test_evaluation_continues(write_dataset: WriteDataset, sizes: Any, batch: int, hosts: int, replicas: int) -> None:
    data = reader.open(write_dataset({"train": pad_shards(*sizes)}))
    steps = data.evaluation_steps("train", global_batch_size=batch)
    options: dict[str, Any] = {"hosts": hosts, "host": hosts - 1, "per_host": replicas // hosts, "training": False}
    assert_continues(data, [1, steps // 2, steps - 1, steps], batch=batch, steps=steps, **options)


@pytest.mark.slow
def test_a_step_far_away_is_there_at_once(write_dataset: WriteDataset) -> None:
    # 5 steps are an epoch.
    data = reader.open(write_dataset({"train": pad_shards(13, 9, 11, 7)}))
    run: dict[str, Any] = {"batch": 8, "steps": 10**7 + 5, "objective": objectives.masked_lm()}
    first, second = (digests_from(data, start, **run) for start in (10**7, 10**7 + 2))
    assert len(set(first)) == 5
    assert second == first[2:]


@pytest.mark.slow
def test_hosts_that_are_dealt_other_shards_in_each_epoch_continue_after_many(write_dataset: WriteDataset) -> None:
    data = reader.open(write_dataset({"train": pad_shards(3, 9, 1)}))
    assert_continues(data, [300], batch=8, steps=302, hosts=2, host=1)


def rows_of(data: Data, *, batches: int, start_step: Any = 0, training: bool = True) -> list[int]:
    ds = data.dataset("train", global_batch_size=8, shuffle=INDEXED, training=training, start_step=start_step)
    return [int(row) for element in ds.take(batches) for row in element["row"].numpy()]


def damage(root: pathlib.Path, rows: set[int]) -> None:
    """Overwrites the records of these rows, which are numbered through all shards; sizes remain."""
    first = 0
    for shard in manifests.parse((root / "manifest.json").read_bytes()).splits["train"].shards:
        content = bytearray((root / shard.name).read_bytes())
        ends = np.cumsum(np.diff(frames.messages_of(bytes(content)).offsets) + records.FRAME_BYTES)
        for row, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True), first):
            if row in rows:
                content[start:end] = b"\xff" * (end - start)
        (root / shard.name).write_bytes(content)
        first += shard.num_examples


class TestReadsLittle:
    """Shards of 96, 64, 128, 64 and 96 examples in batches of 8; of 448 examples, 4 batches are a window of 32."""

    @pytest.fixture
    def root(self, write_dataset: WriteDataset) -> pathlib.Path:
        return write_dataset({"train": pad_shards(96, 64, 128, 64, 96)})

    @pytest.mark.slow
    @pytest.mark.parametrize("start", [4, 39])
    def test_of_windows_before_the_step_no_record_is_read(self, root: pathlib.Path, start: int) -> None:
        data = reader.open(root)
        rows = rows_of(data, batches=56)
        assert sorted(rows) == list(range(448))
        damage(root, set(rows[: start // 4 * 32]))
        assert rows_of(data, batches=56 - start, start_step=start) == rows[start * 8 :]

    @pytest.mark.slow
    def test_damage_would_have_come_to_light(self, root: pathlib.Path) -> None:
        data = reader.open(root)
        damage(root, {rows_of(data, batches=4)[-1]})
        with pytest.raises(tf.errors.DataLossError):
            rows_of(data, batches=4, start_step=3)

    @pytest.mark.slow
    def test_an_evaluation_reads_nothing_before_the_step(self, root: pathlib.Path) -> None:
        data = reader.open(root)
        damage(root, set(range(96 + 48)))
        # As an optimizer counts.
        assert rows_of(data, batches=38, start_step=np.int64(18), training=False) == list(range(144, 448))

    @pytest.mark.slow
    def test_only_indexes_of_shards_that_are_open_are_read(self, root: pathlib.Path) -> None:
        data = reader.open(root)
        rows = rows_of(data, batches=8)
        first_rows = np.array([0, 96, 160, 288, 352, 448])
        begun = set(np.searchsorted(first_rows, rows, side="right") - 1)
        assert len(begun) == 2
        for index, shard in enumerate(data.splits["train"].shards):
            if index not in begun:
                (root / record_index.file_name(shard.name)).unlink()
        assert rows_of(data, batches=4, start_step=4) == rows[32:]


class TestRefusals:
    @pytest.fixture
    def root(self, write_dataset: WriteDataset) -> pathlib.Path:
        return write_dataset({"train": pad_shards(100)})

    @pytest.mark.parametrize("step", [-1, 1.0, True, "3", None])
    def test_what_is_no_step(self, root: pathlib.Path, step: Any) -> None:
        with pytest.raises(ReaderError, match=r"start_step is .*expected a whole number of at least 0"):
            reader.open(root).dataset("train", global_batch_size=1, start_step=step)

    @pytest.mark.slow
    @pytest.mark.parametrize("cut", [0, -8])
    def test_an_index_that_is_missing_or_damaged(self, root: pathlib.Path, cut: int) -> None:
        path = root / record_index.file_name("tiny-train-00000-of-00001.tfrecord")
        content = path.read_bytes()
        path.unlink()
        if cut:
            path.write_bytes(content[:cut])
        ds = reader.open(root).dataset("train", global_batch_size=50, training=False, start_step=1)
        wrong = (tf.errors.InvalidArgumentError, f"{path}.*not the index of its shard")
        kind, words = wrong if cut else (tf.errors.NotFoundError, str(path))
        with pytest.raises(kind, match=words):
            next(iter(ds))

    def test_an_index_that_points_between_records_fails_loudly(self, root: pathlib.Path) -> None:
        path = root / record_index.file_name("tiny-train-00000-of-00001.tfrecord")
        offsets = np.frombuffer(path.read_bytes(), "<u8").copy()
        offsets[1:] += 1
        path.write_bytes(offsets.tobytes())
        ds = reader.open(root).dataset("train", global_batch_size=50, training=False, start_step=1)
        with pytest.raises(tf.errors.DataLossError):
            next(iter(ds))


@pytest.mark.slow
@pytest.mark.parametrize(("training", "hosts"), [(True, 8), (False, 1)])
def test_a_graph_runs_no_python_from_whatever_step(write_dataset: WriteDataset, training: bool, hosts: int) -> None:
    data = reader.open(write_dataset({"train": pad_shards(60, 70, 90)}))
    options: dict[str, Any] = {"shuffle": SMALL, "training": training, "objective": objectives.masked_lm()}
    for start in (0, 17):
        fn = data.input_fn("train", global_batch_size=8, **options, start_step=start)
        ops = graph_ops(fn(context(hosts=hosts, replicas=hosts)))
        assert "ParseExampleV2" in ops
        assert not impure(ops)


@pytest.mark.slow
def test_where_a_run_continues_is_known_even_while_a_graph_is_built(write_dataset: WriteDataset) -> None:
    data = reader.open(write_dataset({"train": pad_shards(30, 40, 50)}))
    fn = data.input_fn("train", global_batch_size=8, seed=7, shuffle=SMALL, start_step=19)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(fn(context(hosts=2, replicas=2))).get_next()
        arrays = session.run(batch)
    batches = digests([{name: tf.constant(value) for name, value in arrays.items()}])
    assert batches == digests_from(data, 0, batch=8, steps=20, hosts=2)[19:]
