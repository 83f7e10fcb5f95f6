"""The DoFns. Each only adapts: it unpickles a job, opens the encoder where it runs, and calls plain functions."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, packaging
from pipelines.prepare.beam.run import Run
from pipelines.prepare.dataset import commit, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.process.stopwatch import Stopwatch
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.tasks import IngestSource, IngestTask
from tfrecord_io.manifest import Manifest

__all__ = ["Call", "Commit", "CommitArguments", "Ingest", "WriteShard", "WriteShards"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitArguments:
    """What the commit needs besides the job."""

    items: Mapping[str, Any]
    identity: Mapping[str, Any]
    max_error_rate: float


class WriteShard(beam.DoFn):
    """Makes one shard from its task. The job travels; the tokenizer is loaded where it is used, once for all threads
    of a process if it can serve several at once.
    """

    def __init__(
        self,
        job: Job,
        *,
        run: Run | None = None,
        versions: Mapping[str, str] | None = None,
        started_file: str | None = None,
    ) -> None:
        self._job = job
        self._run = run or Run()
        self._versions = versions or {}
        self._started_file = started_file
        self._encoder: BatchEncoder | None = None

    def setup(self) -> None:
        """Load the tokenizer, once for each worker."""
        self._run.failures.attempt(self._set_up)

    def _set_up(self) -> None:
        _start_worker(self._versions, self._started_file, root=self._job.root)
        self._encoder = self._run.open_encoder(self._job)

    def process(self, key: TaskKey) -> Iterator[Receipt]:
        """Take the key of one task, yield one receipt, or none after an error that the launcher raises."""
        if (made := self._run.failures.attempt(lambda: self._make(key))) is not None:
            _count(*made)
            yield made[0]

    def _make(self, key: TaskKey) -> tuple[Receipt, Stopwatch]:
        assert self._encoder is not None, "Beam calls setup before process"
        return _write(key, self._job, self._encoder, self._run)


class WriteShards(beam.DoFn):
    """Makes the shards of many tasks, several at a time, on threads of the process that Beam runs it in."""

    def __init__(self, job: Job, *, run: Run, threads: int) -> None:
        self._job = job
        self._run = run
        self._threads = threads

    def process(self, keys: Sequence[TaskKey]) -> Iterator[list[Receipt]]:
        """Take the keys of all tasks, yield one list of their receipts, in the order in which they are done.

        One list, so that no further step need group them.
        After an error no further task begins. Tasks under way are waited for, so that nobody writes to the output once
        this returns.
        """
        own = threading.local()

        def make(key: TaskKey) -> tuple[Receipt, Stopwatch]:
            if not hasattr(own, "encoder"):  # not every tokenizer can serve several threads
                own.encoder = self._run.open_encoder(self._job)
            return _write(key, self._job, own.encoder, self._run)

        receipts: list[Receipt] = []
        with concurrent.futures.ThreadPoolExecutor(self._threads, thread_name_prefix="shard") as pool:
            futures = [pool.submit(self._run.failures.attempt, functools.partial(make, key)) for key in keys]
            try:
                for done in concurrent.futures.as_completed(futures):
                    if (made := done.result()) is not None:
                        _count(*made)  # Beam's metrics belong to the thread that it calls
                        receipts.append(made[0])
            finally:
                for future in futures:
                    future.cancel()
        yield receipts


def _write(key: TaskKey, job: Job, encoder: BatchEncoder, run: Run) -> tuple[Receipt, Stopwatch]:
    """Make the shard of a task. Returns: its receipt, and the time that each stage took."""
    clock = Stopwatch()
    task = plan_files.task_of(job, key)
    gathering = run.gathering(encoder)
    receipt = shard_writer.write(task, job, encoder, clock=clock, progress=run.progress, gathering=gathering)
    return receipt, clock


def _count(receipt: Receipt, clock: Stopwatch) -> None:
    """Report a task to Beam's metrics: counters, and the milliseconds of each stage as distributions."""
    for name, number in (
        ("rows", receipt.ledger.rows_in),
        ("rejected", sum(receipt.ledger.unusable.values())),
        ("filtered", receipt.ledger.rows_filtered),
        ("in_other_splits", receipt.ledger.rows_in_other_splits),
        ("tokens", sum(shard.num_tokens for shard in receipt.shards)),
        ("bytes", sum(shard.num_bytes for shard in receipt.shards)),
        ("shards", len(receipt.shards)),
    ):
        Metrics.counter(dataflow.NAMESPACE, name).inc(number)
    for stage, seconds in clock.seconds.items():
        Metrics.distribution(dataflow.NAMESPACE, f"{stage}_ms").update(round(1000 * seconds))


class _OnWorkers(beam.DoFn):
    """A task that needs nothing of a job but versions that agree, compared once for each worker."""

    def __init__(self, *, root: str, run: Run, versions: Mapping[str, str], started_file: str | None = None) -> None:
        self._root = root
        self._run = run
        self._versions = versions
        self._started_file = started_file

    def setup(self) -> None:
        """Compare versions, once for each worker."""
        self._run.failures.attempt(lambda: _start_worker(self._versions, self._started_file, root=self._root))


class Ingest(_OnWorkers):
    """Ingests shards of a stream of `datasets`, which travels with the rest of the source."""

    def __init__(self, source: IngestSource, **options: Any) -> None:
        super().__init__(**options)
        self._source = source

    def process(self, task: IngestTask) -> Iterator[int]:
        """Take a task, yield the number of its rows."""
        receipt = self._run.failures.attempt(lambda: ingest.run(self._source, IngestTask(*task)))
        if receipt is not None:
            Metrics.counter(dataflow.NAMESPACE, "rows_ingested").inc(sum(receipt.rows))
            yield sum(receipt.rows)


class Call(_OnWorkers):
    """Calls a function of a module for each task; it returns the number of rows that are done."""

    def __init__(self, function: Callable[[Any], int], **worker: Any) -> None:
        super().__init__(**worker)
        self._function = function

    def process(self, task: Any) -> Iterator[int]:
        """Take a task, yield the number of its rows."""
        rows = self._run.failures.attempt(lambda: self._function(task))
        if rows is not None:
            Metrics.counter(dataflow.NAMESPACE, "rows").inc(rows)
            yield rows


class Commit(beam.DoFn):
    """Commits once every shard is made, even if the launcher is gone by then."""

    def __init__(self, job: Job, arguments: CommitArguments, *, run: Run | None = None) -> None:
        self._job = job
        self._arguments = arguments
        self._run = run or Run()

    def process(self, receipts: list[Receipt]) -> Iterator[str]:
        """Take the receipts of this run (those of earlier runs are in the job's folder), yield the fingerprint."""
        if self._run.failures.attempt(self._commit) is not None:
            yield self._job.fingerprint

    def _commit(self) -> Manifest:
        arguments = self._arguments
        return commit.commit(
            self._job,
            items=arguments.items,
            identity=arguments.identity,
            max_error_rate=arguments.max_error_rate,
        )


def _start_worker(versions: Mapping[str, str], started_file: str | None, *, root: str) -> None:
    """Compare this worker's versions with the launcher's, and write the file that says that a worker has started."""
    packaging.require_versions(versions)
    if started_file:
        storage.write_bytes(started_file, b"", inside=root)
