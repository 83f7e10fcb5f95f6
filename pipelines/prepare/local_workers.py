"""Beam's own runner on this machine, with worker processes that end with their launcher.

Beam leaves a worker process to itself once its job has failed: one that is still importing then, or waits for a
connection to a launcher that is gone, stays for minutes with all of its memory. What such a runner starts here are
workers on a `lifeline`. Only `--direct_running_mode=multi_processing` has any: threads end with their process anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipelines.prepare import lifeline

__all__ = ["Runner", "tied"]


class Runner(FnApiRunner):
    """FnApiRunner, whose workers in processes are started by `worker_command` (words for a shell) if there is one."""

    worker_command: str | None = None

    def run_via_runner_api(self, pipeline_proto: Any, options: Any) -> Any:
        """What Beam calls with the pipeline in its portable form, where the command of its own stands by now."""
        if self.worker_command is not None:
            for environment in pipeline_proto.components.environments.values():
                if environment.urn == python_urns.SUBPROCESS_SDK:
                    environment.payload = self.worker_command.encode()
        return super().run_via_runner_api(pipeline_proto, options)


@contextlib.contextmanager
def tied(pipeline: beam.Pipeline, options: PipelineOptions) -> Iterator[None]:
    """Ties the worker processes of a pipeline to this block: they are gone when it ends, however it does."""
    runner = pipeline.runner
    mode = options.view_as(DirectOptions).direct_running_mode
    if not isinstance(runner, Runner) or mode != "multi_processing":
        yield
        return
    with lifeline.held() as path:
        runner.worker_command = lifeline.command(path)
        yield
