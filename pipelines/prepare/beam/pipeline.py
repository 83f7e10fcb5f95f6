"""The Beam graph, run to its end.

    embedded        Create([all keys]) | WriteShards                    | Commit
    other runners   Create(keys)       | Reshuffle | WriteShard | ToList | Commit
    other tasks     Create(tasks)      | Reshuffle | Call                              ingest, `export`

A key names a task, whose rows the worker looks up in the plan. The embedded default is Beam's in-memory mode, which
opens no port: its one element holds every key, and our own worker processes make the shards, or for a small job this
process alone.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, failures, packaging, waiting
from pipelines.prepare.beam.failures import Run
from pipelines.prepare.beam.options import is_embedded, job_server_running, open_pipeline, parse, take_workers
from pipelines.prepare.beam.transforms import Call, Commit, TaskFunction, WriteShards
from pipelines.prepare.dataset import own_files, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process import workers as processes
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.shards.shard_maker import ShardMaker
from tfrecord_io.errors import OutputError, PrepError
from tfrecord_io.manifest import Manifest

__all__ = ["add_calls", "run", "run_tasks"]


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
    """Make the shards of `tasks`, about `task_bytes` each, and `commit`, which travels too. `encoder` is the launcher's
    own, for small jobs; `progress` counts what is done.

    Raises: the PrepError of a worker as it was; PrepError for whatever else ends a Beam job of other processes.
    """
    options = parse(beam_args, workers=workers)
    run = Run(progress=progress)
    keys = [plan_files.key_of(task) for task in tasks]
    wanted = take_workers(options, beam_args, workers=workers) if is_embedded(options) else None

    def make_here(pipeline: beam.Pipeline) -> Any:
        count = _processes(job, keys, task_bytes=task_bytes, wanted=wanted, concurrent=encoder.concurrent)
        maker = ShardMaker(job, max(1, cores() // max(1, count)), encoder=encoder)
        elements = pipeline | "Tasks" >> beam.Create([keys], reshuffle=False)
        return elements | "WriteShards" >> beam.ParDo(WriteShards(maker, run=run, processes=count))

    def add_steps(pipeline: beam.Pipeline) -> None:
        if is_embedded(options):
            receipts = make_here(pipeline)
        else:
            call = Call(ShardMaker(job), run=run, versions=packaging.versions())
            receipts = add_calls(pipeline, "WriteShard", call, keys) | "Collect" >> beam.combiners.ToList()
        _ = receipts | "Commit" >> beam.ParDo(Commit(commit, run=run))

    _run(options, add_steps, name=job.name, work=f"{job.root} {job.work_path()}", completes=True, run=run)
    made = own_files.read_manifest(job.root)
    if made is None or made.fingerprint != job.fingerprint:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
        )


def _processes(
    job: Job, keys: Sequence[plan_files.TaskKey], *, task_bytes: int, wanted: int | None, concurrent: bool
) -> int:
    """Return how many worker processes make the shards; 0 if this process makes them."""
    is_local = storage.local_path(job.root) is not None
    files = plan_files.task_of(job, keys[0]).located.files if wanted and is_local else ()
    waits = not is_local or any("://" in file.path for file in files)
    # A core whose shard is being uploaded makes another one meanwhile.
    default, most = cores() if is_local else 2 * cores(), None if waits else cores()
    threaded = wanted is None and is_local and concurrent
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
    """Call `function`, which a module has, for each task on the runner's workers. Raises: as `run`."""
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
    """Run a pipeline to its end. `name` is for people, `work` tells the Beam job from others; `completes`: whether its
    end completes the dataset.
    """
    on_dataflow, embedded = dataflow.is_chosen(options), is_embedded(options)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        if on_dataflow:
            dataflow.prepare(options, name=name, work=work, folder=folder)
        pipeline = open_pipeline(options)
        with _without_ipython():
            add_steps(pipeline)
        monitor = dataflow.Monitor(options, completes=completes, progress=run.progress) if on_dataflow else None
        try:
            with (
                contextlib.nullcontext() if embedded else waiting.held_back(),
                job_server_running(pipeline, options),
                run.failures.watched(),
                _as_prep_error(is_here=embedded),
            ):
                waiting.until_done(lambda: monitor.started(pipeline.run()) if monitor else pipeline.run())
        except KeyboardInterrupt:
            if monitor and (error := monitor.interrupted()):
                raise error from None
            raise
        finally:
            shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
            if monitor:
                monitor.close()


@contextlib.contextmanager
def _without_ipython() -> Iterator[None]:
    """Make imports of IPython fail while a graph is built, so that Beam does not take this process for a notebook.

    In one, it imports its interactive mode to number the steps by cell. That fails beside pandas 3, and elsewhere has
    the browser load jQuery. No option turns it off, and IPython counts as running in every thread.
    """
    hidden = {name: sys.modules[name] for name in ("IPython",) if name in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is how Python marks what is not there
    try:
        yield
    finally:
        sys.modules.update(hidden)


@contextlib.contextmanager
def _as_prep_error(*, is_here: bool) -> Iterator[None]:
    """Raise the error behind one that Beam raises. A bug in this process keeps its own traceback."""
    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        if is_here:
            raise
        raise failures.from_text(str(error)) from error
