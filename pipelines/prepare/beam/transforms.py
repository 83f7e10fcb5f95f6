"""The DoFns. Each only adapts: it unpickles a job, opens the encoder where it runs, and calls plain functions."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, failures, packaging
from pipelines.prepare.dataset import commit, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.process.stopwatch import Stopwatch
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask

__all__ = ["FAILURES", "Commit", "CommitArguments", "Ingest", "WriteShard", "WriteShards", "share_encoder"]

FAILURES = failures.Failures()

_encoders_lock = threading.Lock()
_encoders: dict[str, BatchEncoder] = {}


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

    def __init__(self, job: Job, *, versions: Mapping[str, str] | None = None, started_file: str | None = None) -> None:
        self._job = job
        self._versions = versions or {}
        self._started_file = started_file
        self._encoder: BatchEncoder | None = None

    def setup(self) -> None:
        """Load the tokenizer, once for each worker."""
        with FAILURES.remembered():
            _start_worker(self._versions, self._started_file, root=self._job.root)
            self._encoder = _shared_encoder(self._job)

    def process(self, key: TaskKey) -> Iterator[Receipt]:
        """Take the key of one task, yield one receipt."""
        assert self._encoder is not None, "Beam calls setup before process"
        clock = Stopwatch()
        with FAILURES.remembered():
            receipt = shard_writer.write(plan_files.task_of(self._job, key), self._job, self._encoder, clock=clock)
        _count(receipt, clock)
        yield receipt


class WriteShards(beam.DoFn):
    """Makes the shards of many tasks, several at a time, on threads of the process that Beam runs it in."""

    def __init__(self, job: Job, *, threads: int) -> None:
        self._job = job
        self._threads = threads

    def process(self, keys: Sequence[TaskKey]) -> Iterator[Receipt]:
        """Take the keys of all tasks, yield their receipts in the order in which they are done.

        After an error no further task begins. Tasks under way are waited for, so that nobody writes to the output once
        this returns.
        """
        own = threading.local()

        def make(key: TaskKey) -> tuple[Receipt, Stopwatch]:
            clock = Stopwatch()
            with FAILURES.remembered():
                if not hasattr(own, "encoder"):  # not every tokenizer can serve several threads
                    own.encoder = _shared_encoder(self._job)
                return shard_writer.write(
                    plan_files.task_of(self._job, key), self._job, own.encoder, clock=clock
                ), clock

        with concurrent.futures.ThreadPoolExecutor(self._threads, thread_name_prefix="shard") as pool:
            futures = [pool.submit(make, key) for key in keys]
            try:
                for done in concurrent.futures.as_completed(futures):
                    receipt, clock = done.result()
                    _count(receipt, clock)  # Beam's metrics belong to the thread that it calls
                    yield receipt
            finally:
                for future in futures:
                    future.cancel()


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


class Ingest(beam.DoFn):
    """Makes the ingested copy of one file, or of a part of it."""

    def __init__(self, *, root: str, versions: Mapping[str, str], started_file: str | None = None) -> None:
        self._root = root
        self._versions = versions
        self._started_file = started_file

    def setup(self) -> None:
        """Compare versions, once for each worker."""
        with FAILURES.remembered():
            _start_worker(self._versions, self._started_file, root=self._root)

    def process(self, task: IngestTask) -> Iterator[int]:
        """Take a task, yield the number of its rows."""
        with FAILURES.remembered():
            receipt = ingest.run(task, addresses={})
        Metrics.counter(dataflow.NAMESPACE, "rows_ingested").inc(receipt.num_rows)
        yield receipt.num_rows


class Commit(beam.DoFn):
    """Commits once every shard is made, even if the launcher is gone by then."""

    def __init__(self, job: Job, arguments: CommitArguments) -> None:
        self._job = job
        self._arguments = arguments

    def process(self, receipts: list[Receipt]) -> Iterator[str]:
        """Take the receipts of this run (those of earlier runs are in the job's folder), yield the fingerprint."""
        arguments = self._arguments
        with FAILURES.remembered():
            commit.commit(
                self._job,
                items=arguments.items,
                identity=arguments.identity,
                max_error_rate=arguments.max_error_rate,
            )
        yield self._job.fingerprint


def _start_worker(versions: Mapping[str, str], started_file: str | None, *, root: str) -> None:
    """Compare this worker's versions with the launcher's, and write the file that says that a worker has started."""
    packaging.require_versions(versions)
    if started_file:
        storage.write_bytes(started_file, b"", inside=root)


def _shared_encoder(job: Job) -> BatchEncoder:
    """Return this process's encoder for a job, opening it on first use. Only the last job's is kept."""
    with _encoders_lock:
        if (found := _encoders.get(job.work_path())) is not None:
            return found
        opened = job.open_encoder()
        _keep(job, opened)
        return opened


def share_encoder(job: Job, encoder: BatchEncoder) -> None:
    """Let workers that are threads of the launcher use its encoder."""
    with _encoders_lock:
        _keep(job, encoder)


def _keep(job: Job, encoder: BatchEncoder) -> None:
    _encoders.clear()
    if encoder.concurrent:
        _encoders[job.work_path()] = encoder
