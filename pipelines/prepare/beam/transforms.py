"""The DoFns. Each only adapts: it unpickles a function or a job, and calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from pipelines.prepare.beam import dataflow, packaging
from pipelines.prepare.beam.failures import Run
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import Done
from pipelines.prepare.shards.shard_maker import ShardMaker
from tfrecord_io.manifest import Manifest

__all__ = ["Call", "Commit", "TaskFunction", "WriteShards"]

# A picklable function of a module, so that workers elsewhere find it by name.
TaskFunction = Callable[[Any, Progress], Done]


class Call(beam.DoFn):
    """Calls a function for each task, on a worker whose versions are the launcher's."""

    def __init__(
        self, function: TaskFunction, *, run: Run | None = None, versions: Mapping[str, str] | None = None
    ) -> None:
        self._function = function
        self._run = run or Run()
        self._versions = versions or {}

    def setup(self) -> None:
        """Compare versions, once for each worker."""
        self._run.attempt(lambda: packaging.require_versions(self._versions))

    def process(self, task: Any) -> Iterator[Any]:
        """Take a task, yield its result, or nothing after an error that the launcher raises."""
        done = self._run.attempt(lambda: self._function(task, self._run.progress))
        if done is not None:
            _count(done)
            yield done.result


class WriteShards(beam.DoFn):
    """Makes the shards of many tasks in `processes` of the machine that Beam runs it on, or with 0 in this one."""

    def __init__(self, maker: ShardMaker, *, run: Run, processes: int) -> None:
        self._maker = maker
        self._run = run
        self._processes = processes

    def process(self, keys: Sequence[TaskKey]) -> Iterator[list[Receipt]]:
        """Take the keys of all tasks, yield one list of their receipts, so that no further step need group them."""
        run = self._run
        made = self._maker.make(
            keys, processes=self._processes, progress=run.progress, is_stopped=lambda: run.error is not None
        )
        finished = run.attempt(lambda: list(made)) or []
        for done in finished:
            _count(done)
        yield [done.result for done in finished]


def _count(done: Done) -> None:
    """Report a task to Beam's counters."""
    for name, number in done.counts.items():
        Metrics.counter(dataflow.NAMESPACE, name).inc(number)


class Commit(beam.DoFn):
    """Commits once every shard is made, even if the launcher is gone by then."""

    def __init__(self, commit: Callable[[], Manifest], *, run: Run | None = None) -> None:
        self._commit = commit
        self._run = run or Run()

    def process(self, receipts: list[Receipt]) -> Iterator[str]:
        """Take the receipts of this run (those of earlier runs are in the job's folder), yield the fingerprint."""
        if (manifest := self._run.attempt(self._commit)) is not None:
            yield manifest.fingerprint
