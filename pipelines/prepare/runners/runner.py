"""Interface of a runner: call a function for each task, anywhere and in any order, then finish.

runner.run(work) ──► function(task, progress) ... function(task, progress) ──► finish()

here        local worker processes, or this process for a small job; the default
on Beam     every runner that Beam has
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipelines.prepare.process.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Tasks to run. The functions travel by pickle.

    `function` returns the counts that a task adds to a Beam job's metrics. `finish` runs after all tasks, where they
    run: a remote job completes without this process. `processes`: local child processes, 0 for none. `name` is for
    people. `place`, the folder of the results, identifies the work: a remote service refuses to run it twice at a time.
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
        """Check that the runner is reachable, and its workers can reach the output `root`.

        Raises: ConfigError; PrepError.
        """

    def run(self, work: Work, progress: Progress) -> None:
        """Run all tasks, and finish; `progress` counts finished work, if workers report it.

        Raises: the first failed task's error, when the running tasks have ended; WorkerDiedError on this machine;
            PrepError for any other failure of a remote job.
        """
