"""Run a function for each task: in worker processes of this machine, or as a Beam job."""

from collections.abc import Callable, Sequence
from typing import Any

from pipelines.prepare.process import workers as worker_processes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import Done


def check(beam_args: Sequence[str], *, root: str) -> None:
    """Check Beam's options before there is work to lose. Raises: as `beam.options.check`."""
    from pipelines.prepare.beam import options

    options.check(beam_args, root=root)


def works_here(beam_args: Sequence[str]) -> bool:
    """Return whether this machine does all work, and no runner."""
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
    """Call `function` for every task: in so many `processes` here, with 0 in this one, or by a runner's `workers`.

    `name` is that of a Beam job, which works in `folder` of the output `root`.

    Raises: the error of the first task that fails, once those under way have ended; WorkerDiedError; as
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
