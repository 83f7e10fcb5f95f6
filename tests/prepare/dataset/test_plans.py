"""Tasks travel by name: a worker looks up the planned task, never a stale one."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.dataset import plan_files, reservation
from tests.support.plans import GROUPS, SHARDS, job_in, plan_of
from tfrecord_io.errors import FingerprintMismatchError, FormatError, OutputError


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    job = job_in(tmp_path)
    plan_files.write(job, plan_of(SHARDS, rows=100), GROUPS)
    return job


def file_of(job: Any) -> Path:
    return Path(job.work_path("train", "plan-00000.parquet"))


def head_of(job: Any) -> Path:
    return Path(job.work_path("train", "plan.json"))


def test_a_task_is_found_by_its_key_with_the_place_of_its_rows(planned: Any) -> None:
    plan = plan_files.read(planned, "train")
    assert plan is not None
    for key, row_ranges in zip(map(plan_files.key_of, plan.tasks()), SHARDS, strict=True):
        task = plan_files.task_of(planned, pickle.loads(pickle.dumps(key)))
        assert (task.split, task.index, task.count) == key
        assert task.row_ranges == tuple(row_ranges)
        assert task.num_rows == sum(stop - start for start, stop in row_ranges)
        located, wanted = task.located, GROUPS.pieces(row_ranges)
        for name in ("starts", "counts", "skips", "at"):
            np.testing.assert_array_equal(getattr(located, name), getattr(wanted, name))
        assert [located.files[at] for at in located.file] == [wanted.files[at] for at in wanted.file]


def test_a_plan_is_read_as_it_was_written(planned: Any) -> None:
    assert plan_files.read(planned, "train") == dataclasses.replace(plan_of(SHARDS, rows=100), spans=None)
    assert plan_files.read_file_rows(planned.root, "f", "train").tolist() == [10]


def test_without_a_plan_there_is_no_task(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert plan_files.read(job, "train") is None
    with pytest.raises(FormatError, match="the plan is gone"):
        plan_files.task_of(job, ("train", 0, 3))
    Path(job.work_path(reservation.JOB_FILE)).unlink()
    with pytest.raises(OutputError, match="the files of this job are gone"):
        plan_files.task_of(job, ("train", 0, 3))


@pytest.mark.parametrize(
    ("harm", "key", "error", "message"),
    [
        (lambda job: head_of(job).unlink(), ("train", 0, 3), FormatError, "the plan is gone"),
        (lambda job: head_of(job).write_bytes(b"{}"), ("train", 0, 3), FormatError, "is damaged"),
        (lambda job: file_of(job).unlink(), ("train", 0, 3), FormatError, "is damaged"),
        (lambda job: file_of(job).write_bytes(b"PAR1"), ("train", 0, 3), FormatError, "is damaged"),
        (lambda job: None, ("train", 0, 4), FormatError, "the plan has 3 shards, expected 4"),
    ],
)
def test_what_is_not_as_planned_is_an_error(
    planned: Any, harm: Any, key: plan_files.TaskKey, error: type[Exception], message: str
) -> None:
    harm(planned)
    with pytest.raises(error, match=message) as raised:
        plan_files.task_of(planned, key)
    assert getattr(raised.value, "remedy", None)


@pytest.mark.parametrize(
    ("now", "change"), [({"rows": 50}, r"train\[0:50\]"), ({"source_split": "test"}, r"test\[0:100\]")]
)
def test_a_plan_for_other_rows_is_refused(planned: Any, tmp_path: Path, now: dict[str, Any], change: str) -> None:
    with pytest.raises(FingerprintMismatchError, match=rf"planned for the rows train\[0:100\], but now .* {change}"):
        plan_files.task_of(job_in(tmp_path, **now), ("train", 0, 3))


@pytest.mark.parametrize(
    ("column", "value"),
    [("shard", 1), ("start", -1), ("start", 2**62 + 1), ("count", 0), ("count", 2**41), ("skip", -1), ("size", -1)],
)
def test_pieces_that_no_plan_can_have_are_refused(planned: Any, column: str, value: int) -> None:
    table = pq.read_table(file_of(planned))
    index = table.column_names.index(column)
    changed = pa.array([value, *table.column(column).to_pylist()[1:]], table.schema.field(column).type)
    pq.write_table(table.set_column(index, table.schema.field(column), changed), file_of(planned))
    plan_files._read_group.cache_clear()
    with pytest.raises(FormatError, match=r"plan-00000\.parquet: the plan of the shards is damaged"):
        plan_files.task_of(planned, ("train", 0, 3))


def test_a_small_plan_file_of_long_repeated_paths_is_not_decoded(planned: Any) -> None:
    [row] = pq.read_table(file_of(planned)).slice(0, 1).to_pylist()
    table = pa.Table.from_pylist([row] * 6_000, schema=pq.read_schema(file_of(planned)))
    path = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), ["/" + "a" * 100_000])
    table = table.set_column(table.column_names.index("path"), pa.field("path", path.type, nullable=False), path)
    pq.write_table(table, file_of(planned), compression="zstd", store_schema=False)
    assert Path(file_of(planned)).stat().st_size < 10_000
    plan_files._read_group.cache_clear()
    with pytest.raises(FormatError, match="600,012,000 bytes when decoded, expected at most 536,870,912"):
        plan_files.task_of(planned, ("train", 0, 3))
