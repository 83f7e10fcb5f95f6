"""Job servers that Beam starts itself, for example for `--runner=FlinkRunner` without a --job_endpoint.

    launcher ──► job server (a Java or Go process, which may contain the whole other system) ──► workers

Beam would start it in `Pipeline.run` and end it when Python exits. Starting it sets an interrupt handler, which Python
allows only in the main thread, but our pipelines run in another one. So it is started before, and ends with the job.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.portability.portable_runner import PortableRunner

from tfrecord_io.errors import PrepError

__all__ = ["running"]


@contextlib.contextmanager
def running(pipeline: beam.Pipeline, options: PipelineOptions) -> Iterator[None]:
    """Start the job server that the pipeline's runner would start, if any. Call it in the main thread.

    Raises: PrepError if it does not start, or this is another thread.
    """
    runner = pipeline.runner
    if not isinstance(runner, PortableRunner) or options.view_as(PortableOptions).job_endpoint:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise PrepError(
            f"--runner={options.view_as(StandardOptions).runner} without --job_endpoint, in a thread: Beam starts job "
            "servers in the main thread only",
            remedy="start one, and name it by --job_endpoint",
        )
    server = _start(runner, options)
    runner.default_job_server = lambda _: server
    try:
        yield
    finally:
        server.stop()


def _start(runner: PortableRunner, options: PipelineOptions) -> Any:
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        server = runner.default_job_server(options)
        server.start()  # once: the runner's own call finds it running
    except Exception as error:
        name = options.view_as(StandardOptions).runner
        raise PrepError(
            f"the job server for --runner={name} did not start: {error or type(error).__name__}",
            remedy="see what it says with --verbose (Flink's and Spark's need Java), or start one, and name it by "
            "--job_endpoint",
        ) from error
    finally:
        # Beam's handler would end the server before anything else sees the interrupt.
        signal.signal(signal.SIGINT, on_interrupt)
    return server
