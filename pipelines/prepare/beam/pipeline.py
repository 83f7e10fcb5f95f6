"""Construction and execution of the Beam graph.

    embedded        Create([all keys]) | WriteShards                    | Commit
    other runners   Create(keys)       | Reshuffle | WriteShard | ToList | Commit
    other tasks     Create(tasks)      | Reshuffle | Call                              ingest, `export`

A key names a task, whose rows the worker looks up in the plan. The embedded default is Beam's in-memory mode, which
opens no port: its one element holds every key, and our own worker processes make the shards, or this process alone for
a small job.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, failures, packaging
from pipelines.prepare.beam.failures import Run
from pipelines.prepare.beam.options import (
    is_embedded,
    job_server_running,
    open_pipeline,
    parse,
    runner_name,
    take_workers,
)
from pipelines.prepare.dataset import own_files, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process import workers as processes
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import in_background, wait_for
from pipelines.prepare.process.workers import Done
from pipelines.prepare.shards.shard_maker import ShardMaker
from tfrecord_io.errors import OutputError, PrepError
from tfrecord_io.manifest import Manifest
from tfrecord_io.shown import without_secrets

# A module-level function, which workers elsewhere find by name.
TaskFunction = Callable[[Any, Progress], Done]

_LAST_MESSAGES_SECONDS = 2.0

_log = logging.getLogger(__name__)


def run(
    job: Job,
    tasks: Sequence[ShardTask],
    commit: Callable[[], Manifest],
    *,
    encoder: BatchEncoder,
    task_bytes: int,
    workers: int | None,
    beam_args: Sequence[str],
    progress: Progress,
) -> None:
    """Make the shards of `tasks`, about `task_bytes` each, and call `commit`, which is sent to workers, too.

    `encoder` is the launcher's own, for small jobs; `progress` counts the finished work.
    Raises: a worker's PrepError unchanged; PrepError for any other failure of a Beam job in other processes.
    """
    options = parse(beam_args, workers=workers)
    run = Run(progress=progress)
    keys = [plan_files.key_of(task) for task in tasks]
    # Before the pipeline is opened, which copies the options.
    wanted = take_workers(options, beam_args, workers=workers) if is_embedded(options) else None

    def add_steps(pipeline: beam.Pipeline) -> None:
        if is_embedded(options):
            count = _processes(job, keys, task_bytes=task_bytes, wanted=wanted, concurrent=encoder.concurrent)
            maker = ShardMaker(job, max(1, cores() // max(1, count)), encoder=encoder)
            elements = pipeline | "Tasks" >> beam.Create([keys], reshuffle=False)
            call = Call(functools.partial(make_all, maker, run, count), run=run)
            receipts = elements | "WriteShards" >> beam.ParDo(call)
        else:
            call = Call(ShardMaker(job), run=run, versions=packaging.versions())
            receipts = add_calls(pipeline, "WriteShard", call, keys) | "Collect" >> beam.combiners.ToList()
        _ = receipts | "Commit" >> beam.ParDo(Call(functools.partial(commit_all, commit), run=run))

    _run(options, add_steps, name=job.name, work=f"{job.root} {job.work_path()}", completes=True, run=run)
    made = own_files.read_manifest(job.root)
    if made is None or made.fingerprint != job.fingerprint:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
        )


def _processes(job: Job, keys: Sequence[TaskKey], *, task_bytes: int, wanted: int | None, concurrent: bool) -> int:
    """Return the number of worker processes that make the shards; 0 if this process makes them."""
    is_local = storage.local_path(job.root) is not None
    files = plan_files.task_of(job, keys[0]).located.files if wanted and is_local else ()
    waits = not is_local or any("://" in file.path for file in files)
    # A core whose shard is being uploaded makes another one meanwhile.
    default, most = cores() if is_local else 2 * cores(), None if waits else cores()
    threaded = is_local and concurrent
    return processes.number(
        len(keys), task_bytes=task_bytes, wanted=wanted, default=default, most=most, threaded=threaded
    )


def run_tasks(
    function: TaskFunction,
    tasks: Sequence[Any],
    *,
    folder: str,
    root: str,
    name: str,
    workers: int | None,
    beam_args: Sequence[str],
    progress: Progress,
) -> None:
    """Call a module-level `function` for each task on the runner's workers. Raises: as `run`."""
    run = Run(progress=progress)

    def add_steps(pipeline: beam.Pipeline) -> None:
        add_calls(pipeline, "Call", Call(function, run=run, versions=packaging.versions()), tasks)

    options = parse(beam_args, workers=workers)
    _run(options, add_steps, name=name, work=f"{root} {folder}", completes=False, run=run)


def add_calls(pipeline: beam.Pipeline, label: str, call: Call, tasks: Sequence[Any]) -> Any:
    """Add the steps that call a function for each task on the runner's workers."""
    elements = pipeline | "Tasks" >> beam.Create(tasks, reshuffle=False) | "Reshuffle" >> beam.Reshuffle()
    return elements | label >> beam.ParDo(call)


def _run(
    options: PipelineOptions,
    add_steps: Callable[[beam.Pipeline], None],
    *,
    name: str,
    work: str,
    completes: bool,
    run: Run,
) -> None:
    """Run a pipeline to its end. `name` is for people, `work` identifies the job; `completes`: it makes the dataset."""
    on_dataflow, embedded = runner_name(options) == dataflow.RUNNER, is_embedded(options)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        if on_dataflow:
            dataflow.prepare(options, name=name, work=work, folder=folder)
        pipeline = open_pipeline(options)
        with _without_ipython():
            add_steps(pipeline)
        monitor = dataflow.Monitor(options, completes=completes, progress=run.progress) if on_dataflow else None
        try:
            with (
                contextlib.nullcontext() if embedded else stderr_held_back(),
                job_server_running(pipeline, options),
                run.watched(),
            ):
                # On a daemon thread: on the main thread, Beam would turn an interrupt into an error of the current
                # step, or go on until every thread has made all of its shards.
                wait_for(in_background(lambda: _require_done(pipeline.run(), monitor)))
        except KeyboardInterrupt:
            if monitor and (error := monitor.interrupted()):
                raise error from None
            raise
        except PrepError:
            raise
        except Exception as error:
            if embedded or error is run.error:  # a bug in this process keeps its own traceback
                raise
            raise failures.from_text(str(error)) from error
        finally:
            shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
            if monitor:
                monitor.close()


def _require_done(result: Any, monitor: dataflow.Monitor | None) -> None:
    """Wait for the end of a job. Raises: the job's error; PrepError if it ends in another state than DONE."""
    if monitor:
        monitor.follow(result)
    state = result.wait_until_finish() or result.state
    if state != "DONE":
        raise PrepError(f"the job ended in the state {state}, expected DONE", remedy=failures.AGAIN)


@contextlib.contextmanager
def _without_ipython() -> Iterator[None]:
    """Make imports of IPython fail while a graph is built, so that Beam does not take this process for a notebook.

    In a notebook, Beam imports its interactive mode to number the steps by cell. That fails with pandas 3, and else
    makes the browser load jQuery. No option turns it off, and IPython counts as running in every thread.
    """
    hidden = {name: sys.modules[name] for name in ("IPython",) if name in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is how Python marks what is not there
    try:
        yield
    finally:
        sys.modules.update(hidden)


class _Stderr:
    """Replacement for sys.stderr that collects the output of the threads that start after it, until `release`."""

    def __init__(self) -> None:
        self.said, self.below = io.StringIO(), sys.stderr
        self._others = {*threading.enumerate()}
        self._left: set[threading.Thread] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.said if self.is_held(threading.current_thread()) else self.below, name)

    def is_held(self, thread: threading.Thread) -> bool:
        if self._left is not None:
            return thread in self._left
        return thread not in self._others and thread.name != in_background.__name__

    def release(self) -> None:
        """Let new threads print. Those that still run print nothing to the end: their job is over."""
        self._left = {*filter(self.is_held, threading.enumerate())}
        if sys.stderr is self and not self._left:
            sys.stderr = self.below


@contextlib.contextmanager
def stderr_held_back() -> Iterator[None]:
    """Log the stderr output of threads that start during the context. Several jobs of a process may run at a time.

    Beam prints the traceback of a failed worker to stderr whatever its log level is, and its threads print one when
    their connection breaks; a PrepError says the same in two lines.
    """
    sys.stderr = held = _Stderr()
    try:
        yield
    except Exception:
        # A thread that reads the job's messages ends with a traceback after a broken connection.
        give_up = time.monotonic() + _LAST_MESSAGES_SECONDS
        for thread in filter(held.is_held, threading.enumerate()):
            thread.join(max(0.0, give_up - time.monotonic()))
        raise
    finally:
        held.release()
        _log.info("printed while the job ran:\n%s", without_secrets(held.said.getvalue()))


class Call(beam.DoFn):
    """DoFn that calls a function for each task, on a worker with the launcher's versions: the only one of our jobs."""

    def __init__(
        self, function: TaskFunction, *, run: Run | None = None, versions: Mapping[str, str] | None = None
    ) -> None:
        self._function = function
        self._run = run or Run()
        self._versions = versions or {}

    def setup(self) -> None:
        """Compare the worker's versions with the launcher's, once for each worker."""
        self._run.attempt(lambda: packaging.require_versions(self._versions))

    def process(self, task: Any) -> Iterator[Any]:
        """Yield the result of a task, or nothing after an error, which the launcher raises."""
        done = self._run.attempt(lambda: self._function(task, self._run.progress))
        if done is not None:
            for name, number in done.counts.items():
                Metrics.counter(dataflow.NAMESPACE, name).inc(number)
            yield done.result


def make_all(maker: ShardMaker, run: Run, processes: int, keys: Sequence[TaskKey], progress: Progress) -> Done:
    """Make the shards of all `keys` in worker processes, or with 0 in this one; return all receipts as one result."""
    made = maker.make(keys, processes=processes, progress=progress, is_stopped=lambda: run.error is not None)
    finished, counts = list(made), collections.Counter[str]()
    for done in finished:
        counts.update(done.counts)
    return Done(result=[done.result for done in finished], counts=counts)


def commit_all(commit: Callable[[], Manifest], receipts: Sequence[Receipt], progress: Progress) -> Done:
    """Commit when every shard is made, even if the launcher is gone by then; all receipts are in the job's folder."""
    del receipts, progress
    return Done(result=commit().fingerprint, counts={})
