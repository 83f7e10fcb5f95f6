"""Tasks travel by name: what a worker looks up is what was planned, once, and nothing that is stale."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare import job, plans, storage, workspace
from pipelines.prepare.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.planning import SplitPlan
from tests import building
from tests.building import REVIEWS
from tfrecord_io.errors import FingerprintMismatchError, FormatError, OutputError

PLAN = SplitPlan(
    split="train", ranges=((0, 100),), predicted_bytes=9, shards=(((0, 10), (50, 100)), ((10, 20),), ((20, 50),))
)


@pytest.fixture
def planned(tmp_path: Path) -> job.Job:
    """A job of the reviews' train split, with PLAN."""
    found = job.resolve(
        PrepareConfig(
            source=SourceConfig(dataset=str(REVIEWS), splits=("train",), limit=100),
            tokenizer=TokenizerConfig(name=str(building.tokenizer())),
            output=OutputConfig(root=str(tmp_path / "out"), name="reviews", shard_bytes=20_000),
            layout=LayoutConfig(max_length=32),
        )
    )
    assert found.job.splits["train"].ranges == PLAN.ranges
    workspace.reserve(found, overwrite=False)
    workspace.write_plan(found.job, PLAN)
    plans.forget()
    return found.job


def test_a_task_is_found_by_its_key(planned: job.Job) -> None:
    for task in PLAN.tasks():
        assert plans.task_of(planned, pickle.loads(pickle.dumps(plans.key_of(task)))) == task


def test_a_key_is_small_whatever_the_rows(planned: job.Job) -> None:
    task = dataclasses.replace(PLAN.tasks()[0], segments=tuple((row, row + 1) for row in range(0, 10_000, 2)))
    assert len(pickle.dumps(plans.key_of(task))) < 50


def test_a_plan_is_read_once_by_threads_that_come_together(planned: job.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = workspace.read_plan

    def spy(job: job.Job, split: str) -> SplitPlan | None:
        reads.append(split)
        return read(job, split)

    monkeypatch.setattr(workspace, "read_plan", spy)
    keys = [plans.key_of(task) for task in PLAN.tasks()] * 5
    threads = [threading.Thread(target=plans.task_of, args=(planned, key)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads == ["train"]


def test_a_plan_of_another_job_takes_its_place(planned: job.Job, tmp_path: Path) -> None:
    plans.task_of(planned, ("train", 0, 3))
    other = dataclasses.replace(planned, root=str(tmp_path / "other"))
    with pytest.raises(OutputError, match="the files of this job are gone"):
        plans.task_of(other, ("train", 0, 3))
    storage.write_bytes(other.work_path(workspace.JOB_FILE), b"{}")
    workspace.write_plan(other, dataclasses.replace(PLAN, shards=(PLAN.ranges,)))
    assert plans.task_of(other, ("train", 0, 1)).segments == ((0, 100),)
    assert len(plans._held) == 1


@pytest.mark.parametrize(
    ("harm", "key", "error", "message"),
    [
        (lambda path: path.unlink(), ("train", 0, 3), OutputError, "the plan is gone"),
        (lambda path: path.write_text("{"), ("train", 0, 3), FormatError, "not JSON"),
        (lambda path: None, ("train", 0, 4), FormatError, "the plan has 3 shards, expected 4"),
    ],
)
def test_what_is_not_as_planned_is_an_error(
    planned: job.Job, harm: Any, key: plans.TaskKey, error: type[Exception], message: str
) -> None:
    harm(Path(planned.work_path("train", "plan.json")))
    with pytest.raises(error, match=message):
        plans.task_of(planned, key)


def test_a_plan_for_other_rows_is_refused(planned: job.Job) -> None:
    plans.task_of(planned, ("train", 0, 3))
    split = dataclasses.replace(planned.splits["train"], ranges=((0, 50),))
    with pytest.raises(FingerprintMismatchError, match="was planned for the rows"):
        plans.task_of(dataclasses.replace(planned, splits={"train": split}), ("train", 0, 3))
