"""State that the steps of one Beam job share within a process."""

from __future__ import annotations

from pipelines.prepare.beam.failures import Failures
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.shared import Shared

__all__ = ["Run"]


class Run(Shared):
    """The state of a Beam job in this process: the failures of its work here, and counters, read in the launcher."""

    def __init__(self, *, progress: Progress | None = None) -> None:
        super().__init__()
        self.failures = Failures()
        self.progress = progress or Progress()
