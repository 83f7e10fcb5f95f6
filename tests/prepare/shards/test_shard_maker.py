"""A task that is run again, as runners do with a whole bundle after a failure; the batches and threads of a shard."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare import storage
from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.dataset import plan_files
from pipelines.prepare.dataset.reservation import JOB_FILE
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.shards import shard_maker, shard_writer
from pipelines.prepare.shards.shard_maker import ShardMaker
from tests import building
from tests.prepare import stored
from tests.support import seams
from tests.support.tokenizers_zoo import Zoo


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
    assert sum(report["rows"] for report in done) == 300


def test_small_pieces_are_one_batch_and_large_ones_several() -> None:
    def piece(first: int, *lengths: int, kind: str = "string") -> tuple[int, pa.RecordBatch]:
        return first, pa.record_batch({"text": pa.array(["x" * length for length in lengths], kind)})

    other = piece(90, 1, kind="large_string")
    pieces = [piece(10, 5, 5, 5), piece(2, 5), piece(40, 9), piece(50, 30), piece(60, 5), other, piece(70, 12, 3, 8, 4)]
    columns = SimpleNamespace(names=("text",), content=("text",))
    reader = SimpleNamespace(read=lambda pieces, names: iter(pieces))
    job: Any = SimpleNamespace(splits={"train": SimpleNamespace(reader=reader)}, spec=SimpleNamespace(columns=columns))
    batches = list(shard_writer.batches(job, "train", pieces, num_bytes=20))  # type: ignore[arg-type]
    assert [numbers.tolist() for numbers, _ in batches] == [[10, 11, 12, 2], [40], [50], [60], [90], [70, 71], [72, 73]]
    assert [batch.num_rows for _, batch in batches] == [4, 1, 1, 1, 1, 2, 2]
    rows = [piece(first, *[0] * count) for first, count in [(0, 3000), (3000, 1000), (9000, 1), (9500, 4000)]]
    large = shard_writer.batches(job, "train", rows, num_bytes=20)  # type: ignore[arg-type]
    assert [len(numbers) for numbers, _ in large] == [4000, 1, 4000], "texts may be short, and kept columns long"
    lengths = dict(zip([10, 11, 12, 2], batches[0][1]["text"].to_pylist(), strict=True))
    assert {row: len(text) for row, text in lengths.items()} == {10: 5, 11: 5, 12: 5, 2: 5}


class Metered:
    """An encoder that notes how many threads are in it at once."""

    def __init__(self, encoder: Any, *, concurrent: bool) -> None:
        self._encoder, self.concurrent, self.reference = encoder, concurrent, None
        self._lock = threading.Lock()
        self._inside = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, rows: Any) -> Any:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        time.sleep(0.02)
        with self._lock:
            self._inside -= 1
        return self._encoder.encode(rows)


@pytest.mark.parametrize("concurrent", [False, True])
def test_an_encoder_is_called_by_several_threads_only_if_it_can_serve_them(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrent: bool
) -> None:
    seams.put(monkeypatch, shard_batch_bytes=200)
    source = stored.parquet(tmp_path / "data", {"text": ["a small house by the river"] * 200})
    work = stored.work(zoo.path("wordpiece_cased"), source, root=str(tmp_path))
    storage.write_bytes(work.job.work_path(JOB_FILE), b"{}", inside=work.job.root)
    made, _ = stored.plan(work, targets=1)
    plan_files.write(work.job, made, source.groups)
    encoder: Any = Metered(work.encoder, concurrent=concurrent)
    task = plan_files.task_of(work.job, plan_files.key_of(made.tasks()[0]))
    shard_writer.write(task, work.job, encoder, threads=2)
    assert encoder.most == (2 if concurrent else 1)
