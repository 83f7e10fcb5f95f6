"""Interface of a runner: it calls a function for each task, on any machine and in any order, then finishes the work.

runner.run(work) ──► function(task, progress) ... function(task, progress) ──► finish()

here        local worker processes, or this process for a small job; the default
on_beam     any of Beam's runners
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipelines.prepare.process.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Tasks to run, with functions that can be pickled.

    `function` runs one task and returns counts for the metrics of a Beam job. `finish` runs once after all tasks, on
    the same machines, so a remote job completes without this process. `processes`: number of local child processes, 0
    for none. `name` appears in the name of a remote job. `place`, the folder of the results, identifies the work, so
    that a remote service does not run it twice at the same time.
    """

    function: Callable[[Any, Progress], Mapping[str, int]]
    tasks: Sequence[Any]
    finish: Callable[[], object] | None = None
    processes: int
    name: str
    place: str


class Runner(Protocol):
    """Runner of tasks."""

    @property
    def is_here(self) -> bool:
        """Return whether tasks run on this machine."""

    def check(self, root: str) -> None:
        """Check that the runner is reachable, and that its workers can reach the output folder `root`.

        Raises: ConfigError; PrepError.
        """

    def run(self, work: Work, progress: Progress) -> None:
        """Run all tasks, then `work.finish`. `progress` counts finished work, if workers report it.

        Raises: the error of the first failed task, after the running tasks have ended; WorkerDiedError if a local
            process died; PrepError for any other failure of a remote job.
        """
