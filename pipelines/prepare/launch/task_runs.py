"""Run a function for each task: on threads of this process, or as a Beam job.

Builds have a way of their own (`beam.pipeline.run`), since they share encoders and commit at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from pipelines.prepare.launch import ingesting
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import run_all

__all__ = ["TaskFunction", "check", "run"]


class TaskFunction(Protocol):
    """A function of a module, so that workers elsewhere find it by name."""

    def __call__(self, task: Any, *, progress: Progress | None = None, stop: threading.Event | None = None) -> int:
        """Do one task; return the number of its rows. It raises RuntimeError soon after `stop` is set."""


def check(beam_args: Sequence[str], *, root: str) -> None:
    """Check Beam's options before there is work to lose. Raises: as `beam.options.check`."""
    from pipelines.prepare.beam import options

    options.check(beam_args, root=root)


def run(
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
    """Call `function` for every task. `name` is that of a Beam job, which works in `folder` of the output `root`.

    Raises: the error of the first task that fails, once those under way have ended; as `beam.pipeline.run`.
    """
    if ingesting.works_here(beam_args):
        threads = workers or cores()
        run_all(lambda task, stop: function(task, progress=progress, stop=stop), tasks, threads=threads)
        return
    from pipelines.prepare.beam import pipeline

    pipeline.run_tasks(
        function,
        tasks,
        folder=folder,
        root=root,
        name=name,
        workers=workers,
        beam_args=beam_args,
        progress=progress,
    )
