"""Tasks travel by name: a worker looks up what was planned, in a part of the plan, and nothing that is stale."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_files, plan_parts, reservation
from pipelines.prepare.plan.planning import SplitPlan, row_ranges_of
from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from tfrecord_io.errors import FingerprintMismatchError, FormatError, OutputError

SHARDS = [[(0, 10), (50, 100)], [(10, 20)], [(20, 50)]]


def groups_of(sizes: Sequence[int], *, files: int = 2) -> Groups:
    """Groups of so many rows each, one half of them in each of the files."""
    count = len(sizes)
    return Groups(
        files=tuple(
            StoredFile(path=f"gs://bucket/data/{index}.parquet", size=9, version=str(index)) for index in range(files)
        ),
        num_rows=np.array(sizes),
        file=(np.arange(count) * files // count).astype(np.int32),
        at=np.arange(count),
        source_rows=np.array([count], np.int64),
        num_bytes=np.array(sizes) * 100,
        stored_bytes=np.array(sizes) * 50,
    )


def plan_of(shards: Sequence[Sequence[tuple[int, int]]], *, rows: int) -> SplitPlan:
    spans = np.array([span for shard in shards for span in shard])
    return SplitPlan(
        split="train",
        source_split="train",
        ranges=((0, rows),),
        predicted_bytes=9,
        starts=spans[:, 0],
        stops=spans[:, 1],
        offsets=np.cumsum([0, *map(len, shards)]),
    )


def job_in(folder: Path, *, rows: int = 100, source_split: str = "train") -> Any:
    """As much of a job as its plan takes, with the file that says that it is there."""
    job = SimpleNamespace(
        root=str(folder),
        splits={"train": SimpleNamespace(ranges=((0, rows),), source_split=source_split, tasks_before=0)},
        work_path=lambda *parts: str(folder.joinpath(".prep", "f", *parts)),
    )
    storage.write_bytes(job.work_path(reservation.JOB_FILE), b"{}")
    return job


GROUPS = groups_of([10] * 10)


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[Any]:
    job = job_in(tmp_path)
    plan_files.write(job, plan_of(SHARDS, rows=100), GROUPS)
    yield job
    plan_files._cached_part.cache_clear()


def part_of(job: Any, index: int = 0) -> Path:
    (path,) = Path(job.work_path("train")).glob(f"tasks-{index:05d}-*.arrow.zst")
    return path


def header_of(job: Any) -> Path:
    return Path(job.work_path("train", "plan.json"))


def keys_of(job: Any) -> list[plan_files.TaskKey]:
    header = plan_files.read_header(job, "train")
    assert header is not None
    return [plan_files.key_of(task) for task in plan_files.all_tasks(header)]


def test_a_task_is_found_by_its_key(planned: Any) -> None:
    for key, row_ranges in zip(keys_of(planned), SHARDS, strict=True):
        task = plan_files.task_of(planned, pickle.loads(pickle.dumps(key)))
        assert (task.split, task.index, task.count) == key
        assert task.row_ranges == tuple(row_ranges)
        assert task.num_rows == sum(stop - start for start, stop in row_ranges)


def test_pieces_say_where_rows_are(planned: Any) -> None:
    for key, row_ranges in zip(keys_of(planned), SHARDS, strict=True):
        found, wanted = plan_files.task_of(planned, key).located, GROUPS.pieces(row_ranges)
        for name in ("starts", "counts", "skips", "at"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert [found.files[at] for at in found.file] == [wanted.files[at] for at in wanted.file]


def test_a_shard_names_no_files_of_others(planned: Any) -> None:
    assert [len(plan_files.task_of(planned, key).located.files) for key in keys_of(planned)] == [2, 1, 1]


def noted(read: Any, paths: list[str]) -> Any:
    """The same function, which notes what it reads."""

    def read_and_note(path: str) -> bytes:
        paths.append(path)
        content: bytes = read(path)
        return content

    return read_and_note


def test_a_part_is_of_64_shards_and_a_worker_reads_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path, rows=300)
    plan_files.write(job, plan_of([[(row, row + 2)] for row in range(0, 300, 2)], rows=300), groups_of([10] * 30))
    assert [len(plan.parts) for plan in [plan_files.read_header(job, "train")] if plan] == [3]
    reads: list[str] = []
    read = storage.read_bytes
    monkeypatch.setattr(storage, "read_bytes", noted(read, reads))
    for index in range(64, 128):
        assert plan_files.task_of(job, ("train", index, 150)).row_ranges == ((2 * index, 2 * index + 2),)
    assert [path for path in reads if "tasks-" in path] == [str(part_of(job, 1))]


def test_a_part_is_read_once_by_threads_that_come_together(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = storage.read_bytes
    monkeypatch.setattr(storage, "read_bytes", noted(read, reads))
    threads = [threading.Thread(target=plan_files.task_of, args=(planned, key)) for key in keys_of(planned) * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("tasks-" in path for path in reads) == 1


def test_parts_of_shards_of_very_many_pieces_are_of_fewer_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_files, "_PART_PIECES", 100)
    job = job_in(tmp_path, rows=1000)
    shards = [[(row, row + 1) for row in range(at, 1000, 10)] for at in range(10)]
    header = plan_files.write(job, plan_of(shards, rows=1000), groups_of([100] * 10))
    assert (header.part_shards, len(header.parts)) == (1, 10)
    assert plan_files.task_of(job, ("train", 7, 10)).row_ranges == tuple(shards[7])


def test_a_new_plan_of_the_same_job_takes_the_place_of_the_old_one(planned: Any) -> None:
    assert plan_files.task_of(planned, ("train", 1, 3)).row_ranges == ((10, 20),)
    plan_files.write(planned, plan_of([SHARDS[2], SHARDS[0], SHARDS[1]], rows=100), GROUPS)
    assert plan_files.task_of(planned, ("train", 1, 3)).row_ranges == tuple(SHARDS[0])


def test_jobs_of_one_process_do_not_disturb_each_other(planned: Any, tmp_path: Path) -> None:
    other = job_in(tmp_path / "other")
    plan_files.write(other, plan_of([SHARDS[2], SHARDS[1], SHARDS[0]], rows=100), GROUPS)
    found = [plan_files.task_of(job, ("train", 2, 3)).row_ranges for job in (planned, other, planned)]
    assert found == [tuple(SHARDS[2]), tuple(SHARDS[0]), tuple(SHARDS[2])]


def test_the_same_plan_is_the_same_bytes(planned: Any, tmp_path: Path) -> None:
    other = job_in(tmp_path / "other")
    plan_files.write(other, plan_of(SHARDS, rows=100), GROUPS)
    assert header_of(planned).read_bytes() == header_of(other).read_bytes()
    assert part_of(planned).read_bytes() == part_of(other).read_bytes()


def test_a_plan_is_whole(planned: Any) -> None:
    header = plan_files.read_header(planned, "train")
    assert header is not None
    assert header.rows == (60, 10, 30)
    plan_files.require_whole(planned, header)


# What is not as planned


def test_without_a_plan_there_is_no_header_and_no_task(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert plan_files.read_header(job, "train") is None
    with pytest.raises(OutputError, match="the plan is gone"):
        plan_files.task_of(job, ("train", 0, 3))
    Path(job.work_path(reservation.JOB_FILE)).unlink()
    with pytest.raises(OutputError, match="the files of this job are gone"):
        plan_files.task_of(job, ("train", 0, 3))


@pytest.mark.parametrize(
    ("harm", "key", "error", "message"),
    [
        (lambda job: header_of(job).unlink(), ("train", 0, 3), OutputError, "the plan is gone"),
        (lambda job: part_of(job).unlink(), ("train", 0, 3), OutputError, "the plan is gone"),
        (lambda job: header_of(job).write_text("{"), ("train", 0, 3), FormatError, "not JSON"),
        (lambda job: part_of(job).write_bytes(b"PAR1"), ("train", 0, 3), FormatError, "has the digest"),
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
    ("now", "said"), [({"rows": 50}, r"train\[0:50\]"), ({"source_split": "test"}, r"test\[0:100\]")]
)
def test_a_plan_for_other_rows_is_refused(planned: Any, tmp_path: Path, now: dict[str, Any], said: str) -> None:
    with pytest.raises(FingerprintMismatchError, match=rf"planned for the rows train\[0:100\], but now .* {said}"):
        plan_files.task_of(job_in(tmp_path, **now), ("train", 0, 3))


GOOD = {
    "split": "train",
    "origin": "train",
    "ranges": [[0, 10]],
    "predicted_bytes": 5,
    "rows": [4, 6],
    "part_shards": 64,
    "parts": ["0" * 64],
}


@pytest.mark.parametrize(
    "damage",
    [
        *({"ranges": None}, {"ranges": [[0]]}, {"ranges": [[0, "x"]]}, {"ranges": []}, {"ranges": [[0, 1, 2]]}),
        *({"rows": []}, {"rows": [10, 0]}, {"rows": [4, 5]}, {"rows": [-1, 11]}, {"rows": 10}, {"rows": ["10"]}),
        *({"parts": []}, {"parts": ["0" * 64] * 2}, {"parts": ["../x"]}, {"part_shards": 0}, {"part_shards": 1}),
        *({"predicted_bytes": -1}, {"predicted_bytes": 5.0}, {"split": 3}, {"split": "../x"}, {"origin": None}),
        *({"ranges": [[0, 10.0]]}, {"ranges": [["0", "10"]]}, {"ranges": [[False, 10]]}, {"ranges": "ab"}),
    ],
)
def test_a_damaged_header_is_a_format_error_that_names_it(damage: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"OUT/plan\.json: not a plan .*--overwrite"):
        plan_files.PlanHeader.from_json({**GOOD, **damage}, path="OUT/plan.json")


@pytest.mark.parametrize(
    "document", [None, [], "plan", 3, {}, *({k: v for k, v in GOOD.items() if k != n} for n in GOOD)]
)
def test_what_is_no_header_at_all_is_a_format_error(document: Any) -> None:
    with pytest.raises(FormatError, match="not a plan"):
        plan_files.PlanHeader.from_json(document, path="plan.json")


def test_the_undamaged_header_of_these_tests_survives_json() -> None:
    header = plan_files.PlanHeader.from_json(GOOD, path="plan.json")
    assert plan_files.PlanHeader.from_json(json.loads(json.dumps(header.to_json())), path="") == header


def replaced_part(job: Any, content: bytes) -> None:
    """Puts other content in the place of the part, as if that were what was planned."""
    digest = hashlib.sha256(content).hexdigest()
    document = json.loads(header_of(job).read_text())
    header_of(job).write_text(json.dumps({**document, "parts": [digest]}))
    part_of(job).with_name(f"tasks-00000-{digest[:16]}.arrow.zst").write_bytes(content)


PIECES = GROUPS.pieces([span for shard in SHARDS for span in shard])
ROWS = np.array([60, 10, 30])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zstd",
        plan_parts.encode(PIECES, first=1, rows=ROWS),
        plan_parts.encode(PIECES, first=0, rows=np.array([60, 40])),
        plan_parts.encode(dataclasses.replace(PIECES, starts=PIECES.starts - 1), first=0, rows=ROWS),
        plan_parts.encode(dataclasses.replace(PIECES, starts=PIECES.starts + 2**62), first=0, rows=ROWS),
        plan_parts.encode(dataclasses.replace(PIECES, skips=PIECES.skips - 1), first=0, rows=ROWS),
        *(plan_parts.encode(PIECES, first=0, rows=ROWS)[:size] for size in (10, 200, -1)),
    ],
)
def test_a_part_that_no_plan_can_have_is_refused(planned: Any, content: bytes) -> None:
    replaced_part(planned, content)
    with pytest.raises(FormatError, match=r"tasks-00000-\w+\.arrow\.zst: not a part of a plan"):
        plan_files.task_of(planned, ("train", 0, 3))


def test_no_damaged_byte_is_taken_for_another_plan(planned: Any) -> None:
    content = part_of(planned).read_bytes()
    taken = []
    for at in range(0, len(content), 3):
        harmed = bytearray(content)
        harmed[at] ^= 0x55
        try:
            part = plan_parts.decode(bytes(harmed), first=0, rows=ROWS.tolist())
        except plan_parts.DAMAGED:
            continue
        taken.append(row_ranges_of(part.shard(0)))
    # Of the rest the digest knows: the rows may be others, but never more than there are.
    assert all(sum(stop - start for start, stop in row_ranges) == 60 for row_ranges in taken)


def test_a_part_that_unpacks_to_very_much_is_refused(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_parts, "_MOST_BYTES", 1000)
    with pytest.raises(FormatError, match="more than 1,000 bytes"):
        plan_files.task_of(planned, ("train", 0, 3))


def test_a_plan_that_has_a_row_twice_is_refused_before_it_is_gone_on_with(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    header = plan_files.write(job, plan_of([[(0, 50)], [(40, 90)]], rows=100), GROUPS)
    with pytest.raises(FormatError, match="the shards do not have the rows of the ranges, from row 40 on"):
        plan_files.require_whole(job, header)


@pytest.mark.parametrize("ranges", [[], [[3, 3]], [[0, 2], [5, 4]]])
def test_row_ranges_of_a_plan_are_some_and_none_is_empty(ranges: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="row ranges, expected"):
        plan_files._row_ranges(ranges)
