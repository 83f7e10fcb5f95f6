"""From a step of a training run to its source rows: the rows that the reader gives, found without TensorFlow."""

from pathlib import Path

import pytest

from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.audit.trace import Traced, Tracer
from tests import building
from tests.building import read_manifest
from tfrecord_io import random_access
from tfrecord_io.random_access import GlobalBatches

PLANTED = "the planted row that makes the loss jump"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows in several shards; one row is planted."""
    rows = [{"text": PLANTED if row == 123 else f"an ordinary row, number {row}"} for row in range(300)]
    data = building.source(tmp_path_factory.mktemp("planted") / "data", train=rows)
    return building.built(data, shard_size="5kB")


def batches_of(root: Path, *, size: int, seed: int) -> GlobalBatches:
    return random_access.global_batches(random_access.open(root)["train"], global_batch_size=size, seed=seed)


def traced(root: Path, batches: GlobalBatches, *steps: int) -> list[Traced]:
    tracer = Tracer(reopened_dataset.reopen(str(root), read_manifest(root)))
    origins = (origin for step in steps for origin in batches.origins(step))
    return [tracer.trace(split="train", shard=shard, record=record) for _, shard, record in origins]


def test_a_planted_row_is_found_by_the_step_that_trains_on_it(root: Path) -> None:
    batches = batches_of(root, size=16, seed=3)
    ids = load_tokenizer(str(root))(PLANTED, padding="max_length", max_length=32)["input_ids"]
    found = ((step, (batches[step]["input_ids"] == ids).all(axis=1)) for step in range(19))
    step, place = next((step, int(hits.argmax())) for step, hits in found if hits.any())
    (row,) = traced(root, batches, step)[place].rows
    assert (row.row, row.texts) == (123, {"text": PLANTED})


def test_every_row_of_an_epoch_is_found(root: Path) -> None:
    assert len(read_manifest(root).splits["train"].shards) > 2
    found = traced(root, batches_of(root, size=30, seed=1), *range(10))
    assert sorted(each.rows[0].row for each in found) == list(range(300))
