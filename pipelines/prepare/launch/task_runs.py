"""Run a function for each task: in worker processes of this machine, or as a Beam job."""

from collections.abc import Callable, Sequence
from typing import Any

from pipelines.prepare.process import workers as worker_processes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import Done


def check(beam_args: Sequence[str], *, root: str) -> None:
    """Check Beam's options, before any work is done. Raises: as `beam.options.check`."""
    from pipelines.prepare.beam import options

    options.check(beam_args, root=root)


def works_here(beam_args: Sequence[str]) -> bool:
    """Return whether tasks run in processes of this machine, rather than on the workers of a runner."""
    if not beam_args:
        return True
    from pipelines.prepare.beam import options

    return options.is_embedded(options.parse(beam_args))


def run(
    function: Callable[[Any, Progress], Done],
    tasks: Sequence[Any],
    *,
    processes: int,
    folder: str,
    root: str,
    name: str,
    workers: int | None,
    beam_args: Sequence[str],
    progress: Progress,
) -> None:
    """Call `function` for every task, in `processes` child processes (0: in this one) or on a runner's `workers`.

    On a runner, the Beam job is called `name` and works in `folder` of the output `root`.

    Raises: the error of the first task that fails, once the running ones have ended; WorkerDiedError; as
        `beam.pipeline.run_tasks`.
    """
    if works_here(beam_args):
        for _ in worker_processes.run(function, tasks, processes=processes, progress=progress, keep=True):
            pass
        return
    from pipelines.prepare.beam import pipeline

    pipeline.run_tasks(
        function, tasks, folder=folder, root=root, name=name, workers=workers, beam_args=beam_args, progress=progress
    )
