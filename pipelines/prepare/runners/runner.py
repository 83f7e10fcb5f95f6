"""What a runner does: call a function for each task, anywhere and in any order, then finish.

runner.run(work) ──► function(task, progress) ... function(task, progress) ──► finish()

here        worker processes of this machine, or this process alone for a small job; the default
on Beam     every runner that Beam has, from DirectRunner to Dataflow, with the same graph for all of them
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipelines.prepare.process.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Tasks to run. The functions travel by pickle: they are functions of modules, or objects of classes there.

    `function` returns the counts that a task adds to the metrics of a Beam job. `finish` runs once all tasks are done,
    where the tasks run: a job elsewhere completes without this process. `processes`: child processes on this machine, 0
    for none. `name` is for people; `place`, the folder of the results, identifies the work: a service that runs jobs
    elsewhere never runs two with the same name and place.
    """

    function: Callable[[Any, Progress], Mapping[str, int]]
    tasks: Sequence[Any]
    finish: Callable[[], object] | None = None
    processes: int
    name: str
    place: str


class Runner(Protocol):
    """Runner of tasks; `is_here`: on this machine, by processes that see what this one sees."""

    @property
    def is_here(self) -> bool:
        """Return whether tasks run in processes of this machine that see what this process sees."""

    def check(self, root: str) -> None:
        """Check before any work is done that the runner can be reached, and its workers the output `root`.

        Raises: ConfigError; PrepError.
        """

    def run(self, work: Work, progress: Progress) -> None:
        """Run all tasks, and finish; `progress` counts what is done, as far as the workers tell.

        Raises: the error of the first task that fails, once the running ones have ended; WorkerDiedError on this
            machine; PrepError for any other failure of a job elsewhere.
        """
