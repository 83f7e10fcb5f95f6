"""The Beam graph, run to its end.

    embedded        Create([all keys]) | WriteShards                    | Commit
    other runners   Create(keys)       | Reshuffle | WriteShard | ToList | Commit
    before that     Create(tasks)      | Reshuffle | Ingest                            if the source must be ingested
    other tasks     Create(tasks)      | Reshuffle | Call                              `export`

A key names a task, whose rows the worker looks up in the plan. The embedded default is Beam's in-memory mode, which
opens no port: its one element holds every key, and our own threads make the shards. Threads suffice since the work
releases the GIL; a pool of processes would import and load everything once for each process.
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
from pipelines.prepare.beam.options import PORTABLE, is_embedded, open_pipeline, parse, runner_name, take_threads
from pipelines.prepare.beam.run import Run
from pipelines.prepare.beam.transforms import Call, Commit, CommitArguments, Ingest, WriteShard, WriteShards
from pipelines.prepare.dataset import own_files, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.ingest.tasks import IngestSource, IngestTask
from tfrecord_io.errors import OutputError, PrepError

__all__ = ["run", "run_ingest", "run_tasks"]

# The temporary file by which the first worker says that it has started; the next run sweeps it away if it is left.
_STARTED_FILE = f"{storage.PARTIAL}first-sign"


def run(
    job: Job,
    tasks: Sequence[ShardTask],
    arguments: CommitArguments,
    *,
    encoder: BatchEncoder,
    workers: int | None,
    beam_args: Sequence[str],
    progress: Progress,
) -> None:
    """Make the shards of `tasks` and commit. `encoder` is the launcher's own, for workers that are its threads;
    `progress` counts what is done.

    Raises: the PrepError of a worker as it was; PrepError for whatever else ends a Beam job of other processes.
    """
    options = parse(beam_args, workers=workers or _default_threads(job.root))
    if is_embedded(options):
        threads: int | None = take_threads(options)
        run = Run(encoder=encoder, progress=progress, num_tasks=len(tasks))
    else:
        threads, run = None, Run(progress=progress)

    def add_steps(pipeline: beam.Pipeline, started_file: str | None) -> None:
        _add_shards(pipeline, job, tasks, arguments, run=run, threads=threads, started_file=started_file)

    work = _Work(root=job.root, folder=job.work_path(), name=job.name, completes=True)
    _run(options, add_steps, work=work, run=run)
    made = own_files.read_manifest(job.root)
    if made is None or made.fingerprint != job.fingerprint:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
        )


def run_ingest(
    source: IngestSource,
    tasks: Sequence[IngestTask],
    *,
    root: str,
    name: str,
    workers: int | None,
    beam_args: Sequence[str],
    progress: Progress,
) -> None:
    """Ingest `tasks` on the runner's workers.

    Raises: as `run`.
    """
    run = Run(progress=progress)

    def add_steps(pipeline: beam.Pipeline, started_file: str | None) -> None:
        ingest = Ingest(source, root=root, run=run, versions=packaging.versions(), started_file=started_file)
        _ = (
            pipeline
            | "Tasks" >> beam.Create(tasks, reshuffle=False)
            | "Reshuffle" >> beam.Reshuffle()
            | "Ingest" >> beam.ParDo(ingest)
        )

    work = _Work(root=root, folder=source.folder, name=f"{name}-ingest", completes=False)
    _run(parse(beam_args, workers=workers), add_steps, work=work, run=run)


def run_tasks(
    function: Callable[[Any], int],
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

    def add_steps(pipeline: beam.Pipeline, started_file: str | None) -> None:
        call = Call(function, root=root, run=run, versions=packaging.versions(), started_file=started_file)
        _ = (
            pipeline
            | "Tasks" >> beam.Create(tasks, reshuffle=False)
            | "Reshuffle" >> beam.Reshuffle()
            | "Call" >> beam.ParDo(call)
        )

    work = _Work(root=root, folder=folder, name=name, completes=False)
    _run(parse(beam_args, workers=workers), add_steps, work=work, run=run)


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
                _as_prep_error(in_threads=embedded),
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


def _add_shards(
    pipeline: beam.Pipeline,
    job: Job,
    tasks: Sequence[ShardTask],
    arguments: CommitArguments,
    *,
    run: Run,
    threads: int | None,
    started_file: str | None,
) -> None:
    """Add the steps that make shards: on `threads` of this process, or on the runner's workers if that is None."""
    keys = [plan_files.key_of(task) for task in tasks]
    if threads:
        elements = pipeline | "Tasks" >> beam.Create([keys], reshuffle=False)
        receipts = elements | "WriteShards" >> beam.ParDo(WriteShards(job, run=run, threads=min(threads, len(keys))))
    else:
        write = WriteShard(job, run=run, versions=packaging.versions(), started_file=started_file)
        elements = pipeline | "Tasks" >> beam.Create(keys, reshuffle=False) | "Reshuffle" >> beam.Reshuffle()
        receipts = elements | "WriteShard" >> beam.ParDo(write) | "Collect" >> beam.combiners.ToList()
    _ = receipts | "Commit" >> beam.ParDo(Commit(job, arguments, run=run))


def _default_threads(root: str) -> int:
    """Return how many threads make shards if the user does not say.

    A core whose shard is being uploaded makes another one meanwhile: only as many gather rows as there are cores.
    """
    return cores() if storage.local_path(root) is not None else 2 * cores()


@contextlib.contextmanager
def _as_prep_error(*, in_threads: bool) -> Iterator[None]:
    """Raise the error behind one that Beam raises. A bug in this process keeps its own traceback."""
    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        if in_threads:
            raise
        raise failures.from_text(str(error)) from error
