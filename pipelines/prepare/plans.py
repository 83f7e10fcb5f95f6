"""Which rows a task has, looked up in the plan where the work is done.

    graph     (split, index, count) of each shard: a few bytes
    worker    OUT/.prep/FINGERPRINT/SPLIT/plan.json, read once for each process and held as arrays, 16 bytes a segment

With the rows in it the graph of a large dataset would be larger than services accept.
"""

from __future__ import annotations

import threading

import numpy as np

from pipelines.prepare import workspace
from pipelines.prepare.job import Job
from pipelines.prepare.planning import Segments, ShardTask
from tfrecord_io.errors import FormatError, OutputError

__all__ = ["TaskKey", "forget", "key_of", "task_of"]

# Split, index, count.
TaskKey = tuple[str, int, int]

_lock = threading.Lock()
# The segments int64 [n, 2] of each shard, by the plan's folder and the rows that it shares out.
_held: dict[tuple[str, Segments], list[np.ndarray]] = {}


def key_of(task: ShardTask) -> TaskKey:
    """What a task is known by, as plain values."""
    return task.split, task.index, task.count


def task_of(job: Job, key: TaskKey) -> ShardTask:
    """The task with its rows, from the plan. Raises: OutputError if there is no plan; FormatError if it is another."""
    split, index, count = key
    shards = _shards(job, split)
    if len(shards) != count:
        raise FormatError(
            f"{job.work_path(split)}: the plan has {len(shards)} shards, expected {count}",
            remedy="run the same command again; finished shards are kept",
        )
    segments = tuple((start, stop) for start, stop in shards[index].tolist())
    return ShardTask(split=split, index=index, count=count, segments=segments)


def forget() -> None:
    """Lets go of all plans, before a job begins: an earlier one of this process may have had another."""
    with _lock:
        _held.clear()


def _shards(job: Job, split: str) -> list[np.ndarray]:
    """A split's shards. Only the last job's are kept; threads that come together wait for the one that reads."""
    wanted = (job.work_path(split), job.splits[split].ranges)
    with _lock:
        if wanted in _held:
            return _held[wanted]
        plan = workspace.read_plan(job, split)
        if plan is None:
            workspace.require_own(job)
            raise OutputError(f"{job.work_path(split)}: the plan is gone", remedy="start over with --overwrite")
        for other in [other for other in _held if not other[0].startswith(job.work_path(""))]:
            del _held[other]
        _held[wanted] = [np.array(segments, np.int64) for segments in plan.shards]
        return _held[wanted]
