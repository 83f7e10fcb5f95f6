"""Rows as the trainers' own packages read them: Grain with JAX, and PyTorch. Left out where they are not installed."""

import os
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest

from tests.support import processes
from tests.tfrecord_io.conftest import WriteDataset, pad_rows, pad_shards
from tfrecord_io import objectives, random_access
from tfrecord_io.random_access import Rows

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "random_access"
SIZES = (40, 1, 23)


@pytest.fixture(scope="module")
def root(write_dataset: WriteDataset) -> pathlib.Path:
    return write_dataset({"train": pad_shards(*SIZES)})


@pytest.fixture
def rows(root: pathlib.Path) -> Rows:
    return random_access.open(root)["train"]


def losses_of(example: str, root: pathlib.Path, *options: str) -> list[float]:
    """Return the losses that an example prints in a separate process, since some of these packages conflict."""
    command = [sys.executable, str(EXAMPLES / example), str(root), *options]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1])}
    ended = processes.run(command, env=env)
    assert ended.returncode == 0, ended.stderr
    return [float(line.split()[-1]) for line in ended.stdout.splitlines()]


def assert_rows(batch: Any) -> None:
    expected = pad_rows(sum(SIZES))
    for name, values in batch.items():
        np.testing.assert_array_equal(np.asarray(values), expected[name][np.asarray(batch["row"])])


class TestGrain:
    @pytest.fixture
    def grain(self) -> Any:
        return pytest.importorskip("grain")

    def test_each_row_comes_once_in_an_epoch(self, grain: Any, rows: Rows) -> None:
        batches = list(grain.MapDataset.source(rows).seed(0).shuffle().batch(8))
        assert sorted(np.concatenate([batch["row"] for batch in batches]).tolist()) == list(range(64))
        for batch in batches:
            assert batch["input_ids"].shape == (8, 8)
            assert_rows(batch)

    @pytest.mark.slow
    def test_a_saved_iterator_goes_on_where_it_was(self, grain: Any, rows: Rows) -> None:
        dataset = grain.MapDataset.source(rows).seed(0).shuffle().repeat().batch(8).to_iter_dataset()
        iterator = iter(dataset)
        for _ in range(3):
            next(iterator)
        state, expected = iterator.get_state(), next(iterator)["row"]
        again = iter(dataset)
        again.set_state(pickle.loads(pickle.dumps(state)))
        np.testing.assert_array_equal(next(again)["row"], expected)

    def test_a_loader_of_grains_first_interface(self, grain: Any, rows: Rows) -> None:
        sampler = grain.samplers.IndexSampler(num_records=len(rows), shuffle=True, seed=0, num_epochs=1)
        loader = grain.DataLoader(
            data_source=rows, sampler=sampler, operations=[grain.transforms.Batch(batch_size=16)], worker_count=0
        )
        batches = list(loader)
        assert len(batches) == 4
        for batch in batches:
            assert_rows(batch)

    def test_random_objectives_follow_from_the_seed(self, grain: Any, rows: Rows) -> None:
        objective = objectives.masked_lm(0.5).bind(rows.manifest)

        def first(seed: int) -> Any:
            batches = grain.MapDataset.range(len(rows)).seed(seed).shuffle().batch(8).map(rows.batch)
            return batches.random_map(objective.with_rng)[0]

        np.testing.assert_array_equal(first(3)[0]["input_ids"], first(3)[0]["input_ids"])
        assert not np.array_equal(first(3)[0]["input_ids"], first(4)[0]["input_ids"])

    @pytest.mark.slow
    @pytest.mark.parametrize(("library", "example"), [("optax", "grain_jax.py"), ("flax", "grain_flax.py")])
    def test_the_example_trains(self, grain: Any, root: pathlib.Path, library: str, example: str) -> None:
        pytest.importorskip(library)
        losses = losses_of(example, root, "--steps", "40")
        assert losses[-1] < losses[0]


class TestTorch:
    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_loader_reads_rows_as_they_are(self, torch: Any, rows: Rows, workers: int) -> None:
        rows[0]  # open before the workers are forked
        loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True, num_workers=workers)
        batches = list(loader)
        assert [tuple(batch["input_ids"].shape) for batch in batches] == [(16, 8)] * 4
        assert all(batch["input_ids"].dtype == torch.int64 for batch in batches)
        assert sorted(torch.cat([batch["row"] for batch in batches]).tolist()) == list(range(64))
        for batch in batches:
            assert_rows(batch)

    def test_a_batch_of_rows_is_one_reading(self, torch: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        batch = Rows.batch

        def counted(self: Rows, indices: Any) -> Any:
            sizes.append(len(indices))
            return batch(self, indices)

        monkeypatch.setattr(Rows, "batch", counted)
        list(torch.utils.data.DataLoader(rows, batch_size=16))
        assert sizes == [16] * 4

    @pytest.mark.slow
    def test_the_example_trains_with_workers(self, torch: Any, root: pathlib.Path) -> None:
        losses = losses_of("pytorch.py", root, "--epochs", "10")
        assert losses[-1] < losses[0]
