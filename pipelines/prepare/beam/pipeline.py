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
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, failures, job_servers, packaging, waiting
from pipelines.prepare.beam.options import PORTABLE, is_embedded, open_pipeline, parse, runner_name, take_workers
from pipelines.prepare.beam.run import Run
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

# The temporary file by which the first worker says that it has started; the next run sweeps it away if it is left.
_STARTED_FILE = f"{storage.PARTIAL}first-sign"


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
    work = _Work(root=job.root, folder=job.work_path(), name=job.name, completes=True)
    wanted = take_workers(options, beam_args, workers=workers) if is_embedded(options) else None

    def make_here(pipeline: beam.Pipeline) -> Any:
        # A core whose shard is being uploaded makes another one meanwhile.
        is_local = storage.local_path(job.root) is not None
        default = cores() if is_local else 2 * cores()
        count = processes.number(len(keys), task_bytes=task_bytes, wanted=wanted, default=default)
        if count and wanted is None and is_local and encoder.concurrent:
            count = count if processes.gains(len(keys), task_bytes=task_bytes, processes=count) else 0
        maker = ShardMaker(job, max(1, cores() // max(1, count)), encoder=encoder)
        elements = pipeline | "Tasks" >> beam.Create([keys], reshuffle=False)
        return elements | "WriteShards" >> beam.ParDo(WriteShards(maker, run=run, processes=count))

    def add_steps(pipeline: beam.Pipeline, started_file: str | None) -> None:
        if is_embedded(options):
            receipts = make_here(pipeline)
        else:
            maker = ShardMaker(job)
            call = Call(maker, root=job.root, run=run, versions=packaging.versions(), started_file=started_file)
            receipts = add_calls(pipeline, "WriteShard", call, keys) | "Collect" >> beam.combiners.ToList()
        _ = receipts | "Commit" >> beam.ParDo(Commit(commit, run=run))

    _run(options, add_steps, work=work, run=run)
    made = own_files.read_manifest(job.root)
    if made is None or made.fingerprint != job.fingerprint:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
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
    work = _Work(root=root, folder=folder, name=name, completes=False)

    def add_steps(pipeline: beam.Pipeline, started_file: str | None) -> None:
        call = Call(function, root=root, run=run, versions=packaging.versions(), started_file=started_file)
        add_calls(pipeline, "Call", call, tasks)

    _run(parse(beam_args, workers=workers), add_steps, work=work, run=run)


def add_calls(pipeline: beam.Pipeline, label: str, call: Call, tasks: Sequence[Any]) -> Any:
    """Add the steps that call a function for each task on the runner's workers."""
    elements = pipeline | "Tasks" >> beam.Create(tasks, reshuffle=False) | "Reshuffle" >> beam.Reshuffle()
    return elements | label >> beam.ParDo(call)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What a Beam job works on: its own `folder` in the output `root`, a `name` for people, and whether its end
    `completes` the dataset.
    """

    root: str
    folder: str
    name: str
    completes: bool


def _run(
    options: PipelineOptions, add_steps: Callable[[beam.Pipeline, str | None], None], *, work: _Work, run: Run
) -> None:
    """Run a pipeline to its end. `add_steps` gets the path of the file by which a worker says that it has started, if
    it should.
    """
    # Other runners see to it themselves that workers start, and may take their time.
    started_file = storage.join(work.folder, _STARTED_FILE) if runner_name(options) == PORTABLE else None
    on_dataflow, embedded = dataflow.is_chosen(options), is_embedded(options)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        if on_dataflow:
            dataflow.prepare(options, name=work.name, work=f"{work.root} {work.folder}", folder=folder)
        pipeline = open_pipeline(options)
        with _without_ipython():
            add_steps(pipeline, started_file)
        monitor = dataflow.Monitor(options, completes=work.completes, progress=run.progress) if on_dataflow else None
        try:
            with (
                contextlib.nullcontext() if embedded else waiting.held_back(),
                job_servers.running(pipeline, options),
                run.failures.watched(),
                _as_prep_error(is_here=embedded),
            ):
                waiting.until_done(
                    lambda: monitor.started(pipeline.run()) if monitor else pipeline.run(),
                    has_started=(lambda: storage.exists(started_file)) if started_file else None,
                )
        except KeyboardInterrupt:
            if monitor and (error := monitor.interrupted()):
                raise error from None
            raise
        finally:
            shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
            if monitor:
                monitor.close()
            if started_file:
                storage.delete(started_file, inside=work.root)


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
