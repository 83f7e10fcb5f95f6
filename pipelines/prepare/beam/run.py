"""What the threads of one process share while they make one dataset, and no other build in that process.

launcher      Run ──► DoFns, which Beam pickles: of the run goes only its id
same process  the launcher's own run, by that id: its encoder, its counters, and whether somebody failed already
elsewhere     a new run, which all DoFns with that id share; nobody reads its counters
"""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

from pipelines.prepare.beam.failures import Failures
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress

__all__ = ["Run"]

# By id. A run goes with the last DoFn that has it.
_runs: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class Run:
    """The state of one Beam job in this process.

    failures   the errors of its workers, if the launcher is here
    progress   its counters
    """

    def __init__(
        self,
        *,
        encoder: BatchEncoder | None = None,
        progress: Progress | None = None,
        num_tasks: int = 0,
        key: str | None = None,
    ) -> None:
        """`encoder` is the launcher's own, for workers that are its threads. `num_tasks`: the shards that this process
        will make, as far as it is known.
        """
        self.failures = Failures()
        self.progress = progress or Progress()
        self._cores = cores()
        self._slots = threading.BoundedSemaphore(self._cores)
        self._alone = threading.Lock()
        self._counting = threading.Lock()
        self._waiting, self._gathering = num_tasks, 0
        self._encoder = encoder if encoder and encoder.concurrent else None
        self._opening = threading.Lock()
        self._key = key or uuid.uuid4().hex
        _runs[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self._key,)

    @contextlib.contextmanager
    def gathering(self, encoder: BatchEncoder) -> Iterator[int]:
        """Held while a task's rows are gathered; gives the number of threads that the task may use.

        Tasks share nothing, while the threads of one task wait for each other. So there are as many tasks at once as
        there are cores, with one thread each; only if there are fewer tasks, each has several. An encoder in Python
        holds the GIL: gathering two shards at once would gain nothing, and hold the tokens of both.
        """
        with self._slots if encoder.concurrent else self._alone:
            with self._counting:
                self._gathering += 1
                self._waiting = max(0, self._waiting - 1)
                at_once = min(self._cores, self._gathering + self._waiting)
            try:
                yield self._cores // at_once
            finally:
                with self._counting:
                    self._gathering -= 1

    def open_encoder(self, job: Job) -> BatchEncoder:
        """The job's encoder: one for all threads if it can serve several at once, else a new one."""
        with self._opening:
            encoder = self._encoder or job.open_encoder()
            if encoder.concurrent:
                self._encoder = encoder
            return encoder


def _found(key: str) -> Run:
    with _lock:
        return _runs.get(key) or Run(key=key)
