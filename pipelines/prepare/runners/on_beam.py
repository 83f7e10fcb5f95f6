"""Run tasks as a Beam job, with the same graph for all of Beam's runners.

    Create(tasks) | Reshuffle | Call(function) | ToList | Call(finish)

DirectRunner, for trying a job, makes one shard at a time in this process.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils import shared

from pipelines.prepare.process.imports import without
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import in_background, wait_for
from pipelines.prepare.runners import beam_options, dataflow, failures, shipping
from pipelines.prepare.runners.runner import Work
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import without_secrets

_LAST_MESSAGES_SECONDS = 2.0

_log = logging.getLogger(__name__)
# Progress of jobs in this process, by job id; None after an interrupt.
_jobs: dict[str, Progress | None] = {}


class OnBeam:
    """Run tasks as a Beam job. Implements `Runner`."""

    is_here = False

    def __init__(self, beam_args: Sequence[str], *, workers: int | None) -> None:
        self._args, self._workers = beam_args, workers

    def check(self, root: str) -> None:
        beam_options.check(self._args, root=root)

    def run(self, work: Work, progress: Progress) -> None:
        options = beam_options.parse(self._args, workers=self._workers)
        on_dataflow = beam_options.runner_name(options) == dataflow.RUNNER
        job_id = uuid.uuid4().hex
        with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
            if on_dataflow:
                dataflow.prepare(options, name=work.name, place=work.place, folder=folder)
            pipeline = beam_options.open_pipeline(options)
            with without("IPython"):  # in a notebook, Beam would import its interactive mode, which fails with pandas 3
                add_steps(pipeline, work, job_id=job_id)
            monitor = None
            if on_dataflow:
                monitor = dataflow.Monitor(options, completes=work.finish is not None, progress=progress)
            _jobs[job_id] = progress
            try:
                _run(pipeline, options, monitor)
            except KeyboardInterrupt:
                _jobs[job_id] = None
                if monitor and (error := monitor.interrupted()):
                    raise error from None
                raise
            finally:
                if _jobs[job_id] is not None:
                    del _jobs[job_id]
                shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
                if monitor:
                    monitor.close()


def add_steps(pipeline: beam.Pipeline, work: Work, *, job_id: str = "") -> None:
    call = Call(work.function, job_id=job_id, versions=shipping.versions())
    tasks = pipeline | "Tasks" >> beam.Create(work.tasks, reshuffle=False) | "Reshuffle" >> beam.Reshuffle()
    done = tasks | "Work" >> beam.ParDo(call)
    if work.finish is not None:
        finish = Call(functools.partial(finish_after, work.finish), job_id=job_id)
        _ = done | "Collect" >> beam.combiners.ToList() | "Finish" >> beam.ParDo(finish)


def _run(pipeline: beam.Pipeline, options: PipelineOptions, monitor: dataflow.Monitor | None) -> None:
    try:
        with stderr_held_back(), beam_options.job_server_running(pipeline, options):
            # In the main thread, Beam would turn an interrupt into an error, or ignore it.
            wait_for(in_background(lambda: _require_done(pipeline.run(), monitor)))
    except PrepError:
        raise
    except Exception as error:
        # DirectRunner keeps the type of a task's error; others raise RuntimeError.
        text = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
        raise failures.from_text(text) from error


def _require_done(result: Any, monitor: dataflow.Monitor | None) -> None:
    if monitor:
        monitor.follow(result)
    state = result.wait_until_finish() or result.state
    if state != "DONE":
        raise PrepError(f"the job ended in the state {state}, expected DONE", remedy=failures.AGAIN)


class _Stderr:
    # Collects the output of threads that start between its creation and `release`.

    def __init__(self) -> None:
        self.collected, self._original = io.StringIO(), sys.stderr
        self._old_threads = {*threading.enumerate()}
        self._left: set[threading.Thread] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.collected if self.is_held(threading.current_thread()) else self._original, name)

    def is_held(self, thread: threading.Thread) -> bool:
        return thread not in self._old_threads if self._left is None else thread in self._left

    def release(self) -> None:
        self._left = {*filter(self.is_held, threading.enumerate())}
        if sys.stderr is self and not self._left:
            sys.stderr = self._original


@contextlib.contextmanager
def stderr_held_back() -> Iterator[None]:
    """Log the stderr output of threads that start during the context, since Beam prints a failed worker's traceback."""
    sys.stderr = held = _Stderr()
    try:
        yield
    except Exception:
        # After a broken connection, threads may still print a traceback.
        give_up = time.monotonic() + _LAST_MESSAGES_SECONDS
        for thread in filter(held.is_held, threading.enumerate()):
            thread.join(max(0.0, give_up - time.monotonic()))
        raise
    finally:
        held.release()
        _log.info("Beam's output during the job:\n%s", without_secrets(held.collected.getvalue()))


class Call(beam.DoFn):
    """Beam step that calls a function for each task. All threads of a process share the function object."""

    def __init__(self, function: Any, *, job_id: str = "", versions: Mapping[str, str] | None = None) -> None:
        self._function, self._job_id, self._versions = function, job_id, versions or {}
        self._shared = shared.Shared()

    def setup(self) -> None:
        """Check the worker's package versions. Raises: Reported if they differ from the launcher's."""
        with failures.reported():
            shipping.require_versions(self._versions)
        self._function = self._shared.acquire(lambda: self._function)

    def process(self, task: Any) -> Iterator[None]:
        """Run a task, then yield None. Raises: Reported for the task's PrepError."""
        progress = _jobs.get(self._job_id, Progress())  # a remote worker's own Progress is never read
        if progress is None:
            raise InterruptedError("the job was interrupted")
        with failures.reported():
            counts = self._function(task, progress)
        for name, number in counts.items():
            Metrics.counter(dataflow.NAMESPACE, name).inc(number)
        yield None


def finish_after(finish: Callable[[], object], ends: Sequence[None], progress: Progress) -> Mapping[str, int]:
    """Call `finish` as a Beam task. `ends`: all other tasks' results, so that Beam runs this last."""
    finish()
    return {}
