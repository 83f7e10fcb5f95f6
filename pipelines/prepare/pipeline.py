"""The Beam graph, and nothing else that knows of Beam.

    Create(tasks) | Reshuffle | WriteShard | ToList | Commit

A DoFn adapts: it unpickles a job, opens the tools where it runs, and calls plain functions. The embedded default is
Beam's own in-process runner with one thread for each core: the work releases the GIL, and a pool of processes would
import and load everything once for each of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipelines.prepare import commit, shards
from pipelines.prepare.builders import Tools
from pipelines.prepare.job import Job
from pipelines.prepare.planning import ShardTask
from pipelines.prepare.receipts import Receipt
from tfrecord_io import errors
from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["Commit", "CommitArguments", "WriteShard", "check", "run"]

_NAMESPACE = "prep-tfrecords"
_POLL_SECONDS = 0.25
_EMBEDDED = (None, "DirectRunner", "FnApiRunner")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitArguments:
    """What the commit needs to know beside the job."""

    items: Mapping[str, Any]
    identity: Mapping[str, Any]
    max_error_rate: float


class WriteShard(beam.DoFn):
    """Makes one shard from its task. The job travels; the tokenizer is loaded where it is used, once for all threads
    of a process if it can serve several at once."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tools: Tools | None = None

    def setup(self) -> None:
        """Loads the tokenizer, once for each worker."""
        with _failures.remembered():
            self._tools = _shared_tools(self._job)

    def process(self, task: ShardTask) -> Iterator[Receipt]:
        """One task in, one receipt out."""
        assert self._tools is not None, "Beam calls setup before process"
        with _failures.remembered():
            receipt = shards.write(task, self._job, self._tools)
        Metrics.counter(_NAMESPACE, "rows").inc(receipt.shard.ledger.rows_in)
        Metrics.counter(_NAMESPACE, "rejected").inc(receipt.shard.ledger.rows_rejected)
        Metrics.counter(_NAMESPACE, "tokens").inc(receipt.shard.num_tokens)
        Metrics.counter(_NAMESPACE, "bytes").inc(receipt.shard.num_bytes)
        yield receipt


class Commit(beam.DoFn):
    """Commits when every shard is made, even if the launcher is gone by then."""

    def __init__(self, job: Job, arguments: CommitArguments) -> None:
        self._job = job
        self._arguments = arguments

    def process(self, receipts: list[Receipt]) -> Iterator[str]:
        """The receipts of this run in (earlier runs' are in the job's folder), the fingerprint out."""
        arguments = self._arguments
        with _failures.remembered():
            commit.commit(
                self._job,
                items=arguments.items,
                identity=arguments.identity,
                max_error_rate=arguments.max_error_rate,
            )
        yield self._job.fingerprint


def check(beam_args: Sequence[str]) -> None:
    """Raises: ConfigError for options that Beam or its runner does not take, before there is any work to lose."""
    pipeline = _pipeline(beam_args, workers=None, tasks=1)
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)


def run(
    job: Job, tasks: Sequence[ShardTask], arguments: CommitArguments, *, workers: int | None, beam_args: Sequence[str]
) -> None:
    """Makes the shards of `tasks` and commits. Raises: the PrepError of a worker as it was, where that can be known."""
    pipeline = _pipeline(beam_args, workers=workers, tasks=len(tasks))
    _ = (
        pipeline
        | "Tasks" >> beam.Create(list(tasks), reshuffle=False)
        | "Reshuffle" >> beam.Reshuffle()
        | "WriteShard" >> beam.ParDo(WriteShard(job))
        | "Collect" >> beam.combiners.ToList()
        | "Commit" >> beam.ParDo(Commit(job, arguments))
    )
    with _failures.watched() as failures:
        try:
            if isinstance(pipeline.runner, FnApiRunner):
                with _held_back():
                    _in_a_thread(pipeline.run)
            else:
                pipeline.run().wait_until_finish()
        except Exception as error:
            raise (failures[0] if failures else _from_text(error)) from error


def _in_a_thread(function: Callable[[], object]) -> None:
    """Waits for a thread to do it. An interrupt then reaches the launcher at once: Beam would turn it into an error of
    the step where it struck, or go on until every thread has made all of its shards.
    """
    done: futures.Future[None] = futures.Future()

    def work() -> None:
        try:
            function()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=work, name="beam", daemon=True).start()
    # The system may hand the signal to another thread, which wakes nobody: the launcher has to look for itself.
    while not done.done():
        futures.wait([done], timeout=_POLL_SECONDS)
    done.result()


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Holds back what is printed to stderr, and drops it if the work fails in a way that will be reported.

    Beam prints the traceback of a failed worker there, whatever its logger is set to.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except Exception:
        if not _failures.seen:
            sys.stderr.write(said.getvalue())
        raise
    sys.stderr.write(said.getvalue())


_tools_lock = threading.Lock()
_tools: dict[str, Tools] = {}


def _shared_tools(job: Job) -> Tools:
    """The process's tools for a job. Only the last job's are kept."""
    with _tools_lock:
        if (found := _tools.get(job.work_path())) is not None:
            return found
        opened = job.open_tools()
        if opened.concurrent:
            _tools.clear()
            _tools[job.work_path()] = opened
        return opened


def _pipeline(beam_args: Sequence[str], *, workers: int | None, tasks: int) -> beam.Pipeline:
    options = _options(beam_args, workers=workers, tasks=tasks)
    # Beam's own DirectRunner would look for a Go binary to download.
    runner = FnApiRunner() if _runner_name(options) in _EMBEDDED else None
    try:
        return beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"Beam: {error}", remedy="see the Beam options after the --") from error


def _runner_name(options: PipelineOptions) -> str | None:
    return options.view_as(StandardOptions).runner


def _options(beam_args: Sequence[str], *, workers: int | None, tasks: int) -> PipelineOptions:
    """The options for Beam. Raises: ConfigError for one that Beam does not know, or a value that it does not take."""
    threads = min(workers or len(os.sched_getaffinity(0)), tasks)
    given = {arg.partition("=")[0] for arg in beam_args}
    defaults = {
        "--direct_num_workers": str(threads),
        "--direct_running_mode": "multi_threading" if threads > 1 else "in_memory",
    }
    added = [f"{name}={value}" for name, value in defaults.items() if name not in given]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):  # argparse explains itself in a hundred lines, the last of which says it
            options = PipelineOptions([*beam_args, *added])
            unknown = _unknown(options, beam_args)
    except SystemExit as error:
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(f"Beam: {reason}", remedy="see the Beam options after the --") from error
    # The runners of other systems have options that only their job servers know.
    if unknown and _runner_name(options) in (*_EMBEDDED, "DataflowRunner"):
        raise ConfigError(
            f"Beam does not know {' '.join(unknown)}",
            remedy="check the spelling; our own options go before the --, and Beam's after it",
        )
    return options


def _unknown(options: PipelineOptions, beam_args: Sequence[str]) -> list[str]:
    """Arguments that none of Beam's option classes takes. Beam itself discards them with a line in its log."""
    parsers: list[argparse.ArgumentParser] = []
    options.get_all_options(add_extra_args_fn=parsers.append)
    return parsers[0].parse_known_args(list(beam_args))[1]


class _Failures:
    """A runner hands a worker's exception on as text. Where workers are threads of the launcher's process, the error
    itself is remembered here, and when one has failed, the others stop at their next shard.

    In other processes nobody watches and nothing is remembered: there, a shard that failed may be tried again.
    """

    def __init__(self) -> None:
        self.seen: list[PrepError] = []
        self._is_watched = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[PrepError]]:
        """For the launcher: the errors of its threads, in the order in which they came."""
        self.seen, self._is_watched = [], True
        try:
            yield self.seen
        except KeyboardInterrupt:
            self.seen.append(PrepError("interrupted"))  # threads are still at work, and stop at their next shard
            raise
        except Exception:
            self._is_watched = False
            raise
        self._is_watched = False

    @contextlib.contextmanager
    def remembered(self) -> Iterator[None]:
        """For the workers, around their work."""
        if self._is_watched and self.seen:
            raise self.seen[0]
        try:
            yield
        except PrepError as error:
            if self._is_watched:
                self.seen.append(error)
            raise


_failures = _Failures()


def _from_text(error: Exception) -> Exception:
    """The PrepError that a worker in another process raised, read back from the runner's message."""
    found = re.search(r"tfrecord_io\.errors\.(\w+): (.+)", str(error))
    kind = getattr(errors, found.group(1), None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, PrepError)):
        return error
    cause, _, remedy = found.group(2).partition(" [while running")[0].rpartition("; ")
    return kind(cause or remedy, remedy=remedy if cause else "")
