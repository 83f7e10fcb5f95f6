"""A task that is run again, as runners do with a whole bundle after a failure."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.dataset import plan_files
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.shards import shard_maker, shard_writer
from pipelines.prepare.shards.shard_maker import ShardMaker
from tests import building


def test_a_shard_with_a_valid_receipt_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"text": [f"one good story of {at}" for at in range(300)]}), tmp_path / "train.parquet")
    root = tmp_path / "out"
    outcome = building.command("build", tmp_path / "train.parquet", *building.options(root, shard_size="8kB"))
    assert outcome.status == 0, outcome.err
    (job,) = reopened_dataset.reopen(str(root), building.read_manifest(root)).generations
    plan = plan_files.read(job, "train")
    assert plan is not None
    made: list[int] = []

    def write(task: Any, *more: Any, **named: Any) -> Any:
        made.append(task.index)
        return shard_writer.write(task, *more, **named)

    monkeypatch.setattr(shard_maker, "shard_writer", type("writer", (), {"write": staticmethod(write)}))
    shard = sorted(root.glob("*.tfrecord"))[1]
    before = shard.read_bytes()
    shard.write_bytes(before[:-1])  # its receipt is no longer valid
    done = [ShardMaker(job)(plan_files.key_of(task), Progress()) for task in plan.tasks()]
    assert made == [1]
    assert shard.read_bytes() == before
    assert sum(each["rows"] for each in done) == 300
