"""The Beam graph, run to its end.

    embedded        Create([all keys]) |             WriteShards | ToList | Commit
    other runners   Create(keys)       | Reshuffle | WriteShard  | ToList | Commit
    before that     Create(lists)      | ReadTasks | Reshuffle   | Ingest              where a source has to be ingested

A key names a task, whose rows the worker looks up in the plan. The embedded default is Beam's in-memory mode, which
opens no port: its one element holds every key, and threads of our own make the shards. The work releases the GIL, and
a pool of processes would import and load everything once for each of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, failures, job_servers, packaging, waiting
from pipelines.prepare.beam.options import PORTABLE, is_embedded, open_pipeline, parse, runner_name, take_threads
from pipelines.prepare.beam.transforms import (
    FAILURES,
    Commit,
    CommitArguments,
    Ingest,
    WriteShard,
    WriteShards,
    share_encoder,
)
from pipelines.prepare.dataset import own_files, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.sources.ingest import ingest_tasks
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from tfrecord_io.errors import OutputError, PrepError

__all__ = ["run", "run_ingest"]

# The temporary file of a worker's first sign, swept away by the next run if nobody else does.
_FIRST_SIGN = f"{storage.PARTIAL}first-sign"


def run(
    job: Job,
    tasks: Sequence[ShardTask],
    arguments: CommitArguments,
    *,
    encoder: BatchEncoder,
    workers: int | None,
    beam_args: Sequence[str],
) -> None:
    """Makes the shards of `tasks` and commits. `encoder` is the launcher's own, for workers that are its threads.

    Raises: the PrepError of a worker as it was; PrepError for whatever else ends a job of other processes.
    """
    options = parse(beam_args, workers=workers)
    if is_embedded(options):
        share_encoder(job, encoder)
    threads = take_threads(options) if is_embedded(options) else None

    def add(pipeline: beam.Pipeline, sign: str | None) -> None:
        _add_shards(pipeline, job, tasks, arguments, threads=threads, sign=sign)

    _run(options, add, work=_Work(root=job.root, folder=job.work_path(), name=job.name, completes=True))
    if own_files.read_manifest(job.root) is None:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
        )


def run_ingest(
    tasks: Sequence[IngestTask],
    *,
    folder: str,
    root: str,
    name: str,
    workers: int | None,
    beam_args: Sequence[str],
) -> None:
    """Ingests on the runner's workers what `tasks` name, into `folder`; they find their tasks in lists there.

    Raises: as `run`.
    """
    lists = ingest_tasks.write_lists(tasks, folder=folder)

    def add(pipeline: beam.Pipeline, sign: str | None) -> None:
        _ = (
            pipeline
            | "Lists" >> beam.Create(lists, reshuffle=False)
            | "ReadTasks" >> beam.FlatMap(ingest_tasks.read_list)
            | "Reshuffle" >> beam.Reshuffle()
            | "Ingest" >> beam.ParDo(Ingest(root=root, versions=packaging.versions(), sign=sign))
        )

    work = _Work(root=root, folder=folder, name=f"{name}-ingest", completes=False)
    _run(parse(beam_args, workers=workers), add, work=work)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What a Beam job works at: a folder of its own in the output `root`, and a name for people. Whether it `completes`
    the dataset.
    """

    root: str
    folder: str
    name: str
    completes: bool


def _run(options: PipelineOptions, add_steps: Callable[[beam.Pipeline, str | None], None], *, work: _Work) -> None:
    """Runs a pipeline to its end; `add_steps` is told where workers are to leave a first sign, if they are to."""
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        if dataflow.is_chosen(options):
            dataflow.prepare(options, name=work.name, work=f"{work.root} {work.folder}", folder=folder)
        # Runners of other systems see to it themselves that workers begin, and may take their time.
        sign = storage.join(work.folder, _FIRST_SIGN) if runner_name(options) == PORTABLE else None
        pipeline = open_pipeline(options)
        add_steps(pipeline, sign)
        _run_to_end(pipeline, options, sign=sign, work=work)


def _run_to_end(pipeline: beam.Pipeline, options: PipelineOptions, *, sign: str | None, work: _Work) -> None:
    monitor = dataflow.Monitor(options, completes=work.completes) if dataflow.is_chosen(options) else None
    try:
        with (
            waiting.held_back(),
            job_servers.running(pipeline, options),
            _explained(in_threads=is_embedded(options)),
        ):
            waiting.until_done(
                lambda: monitor.started(pipeline.run()) if monitor else pipeline.run(),
                has_begun=(lambda: storage.exists(sign)) if sign else None,
            )
    except KeyboardInterrupt:
        if monitor and (error := monitor.interrupted()):
            raise error from None
        raise
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
        if monitor:
            monitor.close()
        if sign:
            storage.delete(sign, inside=work.root)


def _add_shards(
    pipeline: beam.Pipeline,
    job: Job,
    tasks: Sequence[ShardTask],
    arguments: CommitArguments,
    *,
    threads: int | None,
    sign: str | None,
) -> None:
    """With `threads`, shards are made on so many of this process, else by the runner's workers."""
    keys = [plan_files.key_of(task) for task in tasks]
    if threads:
        write = WriteShards(job, threads=min(threads, len(keys)))
        receipts = pipeline | "Tasks" >> beam.Create([keys], reshuffle=False) | "WriteShards" >> beam.ParDo(write)
    else:
        each = WriteShard(job, versions=packaging.versions(), sign=sign)
        receipts = (
            pipeline
            | "Tasks" >> beam.Create(keys, reshuffle=False)
            | "Reshuffle" >> beam.Reshuffle()
            | "WriteShard" >> beam.ParDo(each)
        )
    _ = receipts | "Collect" >> beam.combiners.ToList() | "Commit" >> beam.ParDo(Commit(job, arguments))


@contextlib.contextmanager
def _explained(*, in_threads: bool) -> Iterator[None]:
    """Turns what Beam raises into the error behind it. A bug stays what it is where its traceback comes through."""
    with FAILURES.watched() as seen:
        try:
            yield
        except PrepError:
            raise
        except Exception as error:
            if seen:
                raise seen[0] from error
            if in_threads:
                raise
            raise failures.from_text(str(error)) from error
