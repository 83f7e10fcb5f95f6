"""A task that is run again, as runners do with a whole bundle after a failure."""

from pathlib import Path
from types import SimpleNamespace
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


def test_small_pieces_are_one_batch_and_large_ones_several() -> None:
    def piece(first: int, *lengths: int, kind: str = "string") -> tuple[int, pa.RecordBatch]:
        return first, pa.record_batch({"text": pa.array(["x" * length for length in lengths], kind)})

    other = piece(90, 1, kind="large_string")
    pieces = [piece(10, 5, 5, 5), piece(2, 5), piece(40, 9), piece(50, 30), piece(60, 5), other, piece(70, 12, 3, 8, 4)]
    columns = SimpleNamespace(names=("text",), content=("text",))
    reader = SimpleNamespace(read=lambda pieces, names: iter(pieces))
    job: Any = SimpleNamespace(splits={"train": SimpleNamespace(reader=reader)}, spec=SimpleNamespace(columns=columns))
    found = list(shard_writer.batches(job, "train", pieces, num_bytes=20))  # type: ignore[arg-type]
    assert [numbers.tolist() for numbers, _ in found] == [[10, 11, 12, 2], [40], [50], [60], [90], [70, 71], [72, 73]]
    assert [batch.num_rows for _, batch in found] == [4, 1, 1, 1, 1, 2, 2]
    rows = [piece(first, *[0] * count) for first, count in [(0, 3000), (3000, 1000), (9000, 1), (9500, 4000)]]
    found_rows = shard_writer.batches(job, "train", rows, num_bytes=20)  # type: ignore[arg-type]
    assert [len(numbers) for numbers, _ in found_rows] == [4000, 1, 4000], "texts may be short, and kept columns long"
    lengths = dict(zip([10, 11, 12, 2], found[0][1]["text"].to_pylist(), strict=True))
    assert {row: len(text) for row, text in lengths.items()} == {10: 5, 11: 5, 12: 5, 2: 5}
