"""The Beam graph and its options. Beside it `waiting` and `failures` know how Beam's jobs end, and `dataflow` and
`packaging` what workers on machines of their own need.

    embedded        Create([all keys]) |             WriteShards | ToList | Commit
    other runners   Create(keys)       | Reshuffle | WriteShard  | ToList | Commit
    before that     Create(lists)      | ReadTasks | Reshuffle   | Ingest              where a source has to be ingested

A key names a task, whose rows the worker looks up in the plan. A DoFn adapts: it unpickles a job, opens the tools
where it runs, and calls plain functions. The embedded default is Beam's in-memory mode, which opens no port: its one
element holds every key, and threads of our own make the shards. The work releases the GIL, and a pool of processes
would import and load everything once for each of them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.job_server import ExternalJobServer

from pipelines.prepare import storage
from pipelines.prepare.beam import dataflow, failures, job_servers, packaging, waiting
from pipelines.prepare.dataset import commit, own_files, plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.layouts import Tools
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.stopwatch import Stopwatch
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.ingest import ingest, ingest_tasks
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from tfrecord_io.errors import ConfigError, OutputError, PrepError

__all__ = [
    "Commit",
    "CommitArguments",
    "Ingest",
    "WriteShard",
    "WriteShards",
    "check",
    "is_embedded",
    "run",
    "run_ingest",
]

_EMBEDDED = (None, "DirectRunner", "FnApiRunner")
_PORTABLE = "PortableRunner"
_CONNECT_SECONDS = 20
# Beam ends the wait for a job after --job_server_timeout, which it means for single requests: 300 seconds if not given.
_JOB_SECONDS = 30 * 24 * 3600
# The temporary file of a worker's first sign, swept away by the next run if nobody else does.
_FIRST_SIGN = f"{storage.PARTIAL}first-sign"

_failures = failures.Failures()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitArguments:
    """What the commit needs to know beside the job."""

    items: Mapping[str, Any]
    identity: Mapping[str, Any]
    max_error_rate: float


class WriteShard(beam.DoFn):
    """Makes one shard from its task. The job travels; the tokenizer is loaded where it is used, once for all threads
    of a process if it can serve several at once."""

    def __init__(self, job: Job, *, versions: Mapping[str, str] | None = None, sign: str | None = None) -> None:
        self._job = job
        self._versions = versions or {}
        self._sign = sign
        self._tools: Tools | None = None

    def setup(self) -> None:
        """Loads the tokenizer, once for each worker."""
        with _failures.remembered():
            packaging.require_versions(self._versions)
            if self._sign:
                storage.write_bytes(self._sign, b"", inside=self._job.root)
            self._tools = _shared_tools(self._job)

    def process(self, key: TaskKey) -> Iterator[Receipt]:
        """One task's key in, one receipt out."""
        receipt, clock = self.make(key)
        _count(receipt, clock)
        yield receipt

    def make(self, key: TaskKey) -> tuple[Receipt, Stopwatch]:
        """The task's receipt, and how long its stages took."""
        assert self._tools is not None, "Beam calls setup before process"
        clock = Stopwatch()
        with _failures.remembered():
            return shard_writer.write(plan_files.task_of(self._job, key), self._job, self._tools, clock=clock), clock


class WriteShards(beam.DoFn):
    """Makes the shards of many tasks, several at a time, on threads of the process that Beam runs it in."""

    def __init__(self, job: Job, *, threads: int) -> None:
        self._job = job
        self._threads = threads

    def process(self, keys: Sequence[TaskKey]) -> Iterator[Receipt]:
        """The tasks' keys in, their receipts out, in the order in which they are done.

        After an error no further task begins; those at work are waited for, so that nobody writes to the output when
        this returns.
        """
        own = threading.local()

        def make(key: TaskKey) -> tuple[Receipt, Stopwatch]:
            if not hasattr(own, "each"):  # not every tokenizer can serve several threads
                own.each = WriteShard(self._job)
                own.each.setup()
            return own.each.make(key)

        with concurrent.futures.ThreadPoolExecutor(self._threads, thread_name_prefix="shard") as pool:
            making = [pool.submit(make, key) for key in keys]
            try:
                for made in concurrent.futures.as_completed(making):
                    receipt, clock = made.result()
                    _count(receipt, clock)  # Beam's metrics belong to the thread that it calls
                    yield receipt
            finally:
                for each in making:
                    each.cancel()


def _count(receipt: Receipt, clock: Stopwatch) -> None:
    """Beam's metrics of a task: counters, and the milliseconds of each stage as distributions."""
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

    def __init__(self, *, root: str, versions: Mapping[str, str], sign: str | None = None) -> None:
        self._root = root
        self._versions = versions
        self._sign = sign

    def setup(self) -> None:
        """Compares versions, once for each worker."""
        with _failures.remembered():
            packaging.require_versions(self._versions)
            if self._sign:
                storage.write_bytes(self._sign, b"", inside=self._root)

    def process(self, task: IngestTask) -> Iterator[int]:
        """A task in, its rows out."""
        with _failures.remembered():
            receipt = ingest.run(task, addresses={})
        Metrics.counter(dataflow.NAMESPACE, "rows_ingested").inc(receipt.num_rows)
        yield receipt.num_rows


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


def check(beam_args: Sequence[str], *, root: str) -> None:
    """Before there is any work to lose.

    Raises: ConfigError for options that Beam or its runner does not take, or for an output in `root` that it does not
        reach; PrepError if no job service answers.
    """
    options = _options(beam_args)
    if dataflow.is_chosen(options):
        dataflow.check(options, root=root)
    shutil.rmtree(_pipeline(options).local_tempdir, ignore_errors=True)
    endpoint = options.view_as(PortableOptions).job_endpoint
    if _runner_name(options) == _PORTABLE and not endpoint:
        raise ConfigError(
            "--runner=PortableRunner without --job_endpoint", remedy="say where its job service is, as HOST:PORT"
        )
    if endpoint and endpoint != "embed":
        _reach(endpoint)


def _reach(endpoint: str) -> None:
    try:
        ExternalJobServer(endpoint, timeout=_CONNECT_SECONDS).start()
    except Exception as error:
        raise PrepError(
            f"no job service answers at {endpoint} within {_CONNECT_SECONDS} seconds",
            remedy="start it, or correct --job_endpoint",
        ) from error


def run(
    job: Job,
    tasks: Sequence[ShardTask],
    arguments: CommitArguments,
    *,
    tools: Tools,
    workers: int | None,
    beam_args: Sequence[str],
) -> None:
    """Makes the shards of `tasks` and commits. `tools` are the launcher's own, for workers that are its threads.

    Raises: the PrepError of a worker as it was; PrepError for whatever else ends a job of other processes.
    """
    options = _options(beam_args, workers=workers)
    if _is_embedded(options):
        _share(job, tools)
    threads = _threads(options) if _is_embedded(options) else None

    def add(pipeline: beam.Pipeline, sign: str | None) -> None:
        _add_shards(pipeline, job, tasks, arguments, threads=threads, sign=sign)

    _run(options, add, work=_Work(root=job.root, folder=job.work_path(), name=job.name, completes=True))
    if own_files.read_manifest(job.root) is None:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
        )


def is_embedded(beam_args: Sequence[str]) -> bool:
    """Whether the workers are threads of this process."""
    return _is_embedded(_options(beam_args))


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
    _run(_options(beam_args, workers=workers), add, work=work)


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
        sign = storage.join(work.folder, _FIRST_SIGN) if _runner_name(options) == _PORTABLE else None
        pipeline = _pipeline(options)
        add_steps(pipeline, sign)
        _run_to_end(pipeline, options, sign=sign, work=work)


def _run_to_end(pipeline: beam.Pipeline, options: PipelineOptions, *, sign: str | None, work: _Work) -> None:
    monitor = dataflow.Monitor(options, completes=work.completes) if dataflow.is_chosen(options) else None
    try:
        with (
            waiting.held_back(),
            job_servers.running(pipeline, options),
            _explained(in_threads=_is_embedded(options)),
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
    with _failures.watched() as seen:
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


def _is_embedded(options: PipelineOptions) -> bool:
    return _runner_name(options) in _EMBEDDED


def _cores() -> int:
    return len(os.sched_getaffinity(0))


_tools_lock = threading.Lock()
_tools: dict[str, Tools] = {}


def _shared_tools(job: Job) -> Tools:
    """The process's tools for a job. Only the last job's are kept."""
    with _tools_lock:
        if (found := _tools.get(job.work_path())) is not None:
            return found
        opened = job.open_tools()
        _keep(job, opened)
        return opened


def _share(job: Job, tools: Tools) -> None:
    with _tools_lock:
        _keep(job, tools)


def _keep(job: Job, tools: Tools) -> None:
    _tools.clear()
    if tools.concurrent:
        _tools[job.work_path()] = tools


def _pipeline(options: PipelineOptions) -> beam.Pipeline:
    # Beam's own DirectRunner would look for a Go binary to download.
    runner = FnApiRunner() if _is_embedded(options) else None
    try:
        return beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"Beam: {error}", remedy="see the Beam options after the --") from error


def _runner_name(options: PipelineOptions) -> str | None:
    return options.view_as(StandardOptions).runner


def _options(beam_args: Sequence[str], *, workers: int | None = None) -> PipelineOptions:
    """The options for Beam. Raises: ConfigError for one that Beam does not know, or a value that it does not take."""
    given = {arg.partition("=")[0] for arg in beam_args}
    defaults = {"--direct_num_workers": str(workers or _cores())}
    if given & {"--runner", "--job_endpoint"} and "--job-server-timeout" not in given:
        defaults["--job_server_timeout"] = str(_JOB_SECONDS)
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
    if _is_embedded(options):
        _require_no_port(options)
    return options


def _require_no_port(options: PipelineOptions) -> None:
    """Beam's other modes talk to their workers over ports of this machine, on all of its addresses, without asking who
    connects; what comes in is unpickled.
    """
    mode = options.view_as(DirectOptions).direct_running_mode
    if mode != "in_memory":
        raise ConfigError(
            f"--direct_running_mode={mode} opens ports through which anybody could run code here, expected in_memory",
            remedy="leave it out: every core is used without it, and --workers says how many threads there are",
        )


def _threads(options: PipelineOptions) -> int:
    """How many threads make shards here. Beam itself is to have one worker, which runs them."""
    direct = options.view_as(DirectOptions)
    threads = direct.direct_num_workers or _cores()  # 0 is Beam's word for every core
    direct.direct_num_workers = 1
    return int(threads)


def _unknown(options: PipelineOptions, beam_args: Sequence[str]) -> list[str]:
    """Arguments that none of Beam's option classes takes. Beam itself discards them with a line in its log."""
    parsers: list[argparse.ArgumentParser] = []
    options.get_all_options(add_extra_args_fn=parsers.append)
    return parsers[0].parse_known_args(list(beam_args))[1]
