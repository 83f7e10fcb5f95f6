"""Parse and check Beam's options, and start the job server that a runner needs."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.job_server import ExternalJobServer
from apache_beam.runners.portability.portable_runner import PortableRunner

from pipelines.prepare.process.cores import cores
from pipelines.prepare.runners import dataflow
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.shown import some

# Runners in this process that open no port.
_DIRECT = (None, "DirectRunner", "FnApiRunner", "SwitchingDirectRunner")
_CONNECT_SECONDS = 20
_REMEDY = "correct the Beam options after the --"
# Beam's --job_server_timeout (default 300 s) also limits how long a job may run.
_JOB_SECONDS = 30 * 24 * 3600


def check(beam_args: Sequence[str], *, root: str) -> None:
    """Check Beam's options, the job service, and that workers can reach `root`. Raises: ConfigError, PrepError."""
    options = parse(beam_args)
    if runner_name(options) == dataflow.RUNNER:
        dataflow.check(options, root=root)
    shutil.rmtree(open_pipeline(options).local_tempdir, ignore_errors=True)
    endpoint = options.view_as(PortableOptions).job_endpoint
    if runner_name(options) == "PortableRunner" and not endpoint:
        cause = "--runner=PortableRunner without --job_endpoint"
        raise ConfigError(cause, remedy="give the address of the runner's job service, --job_endpoint=HOST:PORT")
    if endpoint and endpoint != "embed":
        try:
            ExternalJobServer(endpoint, timeout=_CONNECT_SECONDS).start()
        except Exception as error:
            cause = f"no job service answers at {endpoint} within {some(_CONNECT_SECONDS, 'second')}"
            raise PrepError(cause, remedy="start the job service, or correct --job_endpoint") from error


def is_direct(options: PipelineOptions) -> bool:
    """Return whether the runner runs jobs in this process, without opening a port."""
    return runner_name(options) in _DIRECT


def open_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """Return an empty Beam pipeline. Raises: ConfigError."""
    # FnApiRunner instead of Beam's DirectRunner, which would download a Go binary.
    runner = FnApiRunner() if is_direct(options) else None
    try:
        return beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"Beam: {error}", remedy=_REMEDY) from error


def runner_name(options: PipelineOptions) -> str | None:
    """Return the runner's full name, also for a short name such as `flink`; None by default."""
    chosen: str | None = options.view_as(StandardOptions).runner
    for name in StandardOptions.KNOWN_RUNNER_NAMES:
        if chosen and chosen.lower() in (name.lower(), name.lower().removesuffix("runner")):
            return str(name)
    return chosen


def parse(beam_args: Sequence[str], *, workers: int | None = None) -> PipelineOptions:
    """Parse Beam's arguments. `workers`: for --job_endpoint, by default one per core. Raises: ConfigError."""
    names = {arg.partition("=")[0] for arg in beam_args}
    defaults = {}
    if names & {"--runner", "--job_endpoint"} and "--job-server-timeout" not in names:
        defaults["--job_server_timeout"] = str(_JOB_SECONDS)
    if "--job_endpoint" in names:  # with the default, 0, Beam's job service starts no worker
        defaults["--direct_num_workers"] = str(workers or cores())
    added = [f"{name}={value}" for name, value in defaults.items() if name not in names]
    options = PipelineOptions([*beam_args, *added])
    unknown: list[str] = []

    def look(parser: Any) -> None:
        parser.error = refuse  # Beam's method would print a hundred lines
        unknown.extend(parser.parse_known_args(list(beam_args))[1])

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"Beam: {message}", remedy=_REMEDY)

    options.get_all_options(add_extra_args_fn=look)
    # Beam ignores unknown options. Only job servers know the options of other runners.
    if unknown and (is_direct(options) or runner_name(options) == dataflow.RUNNER):
        cause = f"Beam does not know {' '.join(unknown)}"
        raise ConfigError(cause, remedy="check the spelling; only Beam's options go after the --, all others before it")
    direct = options.view_as(DirectOptions)
    # DirectRunner's other modes listen on all network addresses and unpickle data from anybody.
    if is_direct(options) and (direct.direct_running_mode != "in_memory" or direct.direct_num_workers != 1):
        raise ConfigError(
            f"--direct_running_mode={direct.direct_running_mode} --direct_num_workers={direct.direct_num_workers}, "
            "expected in_memory and 1: several workers of DirectRunner open ports through which anybody could run code "
            "on this machine",
            remedy="leave both options out; to use all cores of this machine, build without Beam options",
        )
    return options


@contextlib.contextmanager
def job_server_running(pipeline: beam.Pipeline, options: PipelineOptions) -> Iterator[None]:
    """During the context, run the job server that a runner such as Flink's needs.

    Beam would start it in `Pipeline.run`, but only in the main thread, and we call that in another one. Raises:
    PrepError if the server does not start, or this is not the main thread.
    """
    runner = pipeline.runner
    if not isinstance(runner, PortableRunner) or options.view_as(PortableOptions).job_endpoint:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise PrepError(
            f"--runner={runner_name(options)} without --job_endpoint, in a thread: Beam starts job servers in the main "
            "thread only",
            remedy="build in the main thread, or start a job server yourself and give its address with --job_endpoint",
        )
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        server = runner.default_job_server(options)
        server.start()  # the runner will reuse this server
    except Exception as error:
        raise PrepError(
            f"the job server for --runner={runner_name(options)} did not start: {error or type(error).__name__}",
            remedy="see its output with --verbose (Flink and Spark need Java), or start a job server yourself and give "
            "its address with --job_endpoint",
        ) from error
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
    runner.default_job_server = lambda _: server
    try:
        yield
    finally:
        server.stop()
