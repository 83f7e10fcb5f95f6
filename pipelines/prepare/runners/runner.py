"""Interface of a runner, which calls a function for each task, on any machine and in any order."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipelines.prepare.process.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Tasks to run, with functions that can be pickled.

    `function` runs one task, and returns counts for the metrics of a Beam job. `finish` runs once after all tasks, on a
    machine that runs tasks, so that a remote job completes without this process. `processes`: local child processes.
    `name`: part of a remote job's name. `place`: the folder of the results; Dataflow runs only one job for it at a
    time.
    """

    function: Callable[[Any, Progress], Mapping[str, int]]
    tasks: Sequence[Any]
    finish: Callable[[], object] | None = None
    processes: int
    name: str
    place: str


class Runner(Protocol):
    @property
    def is_here(self) -> bool:
        """Return whether tasks run on this machine."""

    def check(self, root: str) -> None:
        """Raise PrepError if the runner is not reachable, or its workers cannot reach the folder `root`."""

    def run(self, work: Work, progress: Progress) -> None:
        """Run all tasks, then `work.finish`.

        Raises: the error of the first failed task, after the running tasks have ended; WorkerDiedError if a local
            process died; PrepError for any other failure of a remote job.
        """
